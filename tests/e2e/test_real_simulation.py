"""Which nodes take a pod: our simulation against a real kube-scheduler, on random clusters."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fracgpu.k8s.node import decode_node
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.k8s.scheduling.node_filters import NodeFilter, allowed_nodes, refusals
from fracgpu.k8s.scheduling.objects import (
    ScheduledPod,
    scheduled_pod_of,
    scheduling_node_of,
)
from fracgpu.k8s.scheduling.volumes import Storage, read_claim, read_volume
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from kube.objects import decode_object
from simulator.envtest.control_plane import ControlPlane
from tests.support.gpu import register
from tests.support.real_apiserver import real_api_server
from tests.support.scheduling import NAMESPACES as RANDOM_NAMESPACES
from tests.support.scheduling import ZONE, Json, RandomScheduling, names_of, pod_json, read_pod
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NODES_COUNT = 16
BOUND = 48
ASKED = 60


@dataclass(slots=True)
class FilterLog:
    """An extender that refuses every node, and remembers for each pod which ones it was asked."""

    nodes: dict[str, set[str]] = field(default_factory=dict)

    def take(self, asked: Json) -> Json:
        meta = asked["Pod"]["metadata"]
        names = asked["NodeNames"]
        self.nodes.setdefault(f"{meta['namespace']}/{meta['name']}", set(names))
        refused = dict.fromkeys(names, "only looking")
        return {"NodeNames": [], "FailedAndUnresolvableNodes": refused}


@contextmanager
def listening(log: FilterLog) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = json.dumps(log.take(json.loads(body))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def configuration(url: str, kubeconfig: Path) -> Json:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 500},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": "looking", "percentageOfNodesToScore": 100}],
        "extenders": [{"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}],
    }


def _scheduled(body: bytes) -> ScheduledPod | None:
    pod = decode_pod(body)
    return scheduled_pod_of(pod, scheduling_constraints_of(pod))


async def observed(client: KubeClient) -> SchedulingCluster:
    """Read the cluster from the API server, as the rebalancer does."""
    nodes = await client.list(NODES)
    pods = await client.list(PODS)
    claims = await client.list(PERSISTENT_VOLUME_CLAIMS)
    volumes = await client.list(PERSISTENT_VOLUMES)
    return SchedulingCluster(
        (scheduling_node_of(decode_node(bytes(raw))) for raw in nodes.items),
        (pod for raw in pods.items if (pod := _scheduled(bytes(raw))) is not None),
        namespaces=RANDOM_NAMESPACES,
        storage=Storage(
            claims={
                (meta["namespace"], meta["name"]): read_claim(bytes(raw))
                for raw in claims.items
                if (meta := decode_object(raw)["metadata"])
            },
            volumes={
                decode_object(raw)["metadata"]["name"]: read_volume(bytes(raw))
                for raw in volumes.items
            },
        ),
    )


async def make_volumes(client: KubeClient) -> None:
    """Create a volume for each zone, one of every zone and one of one node, each with its claim."""
    places: dict[str, Json] = {
        "zone-a": {"labels": {ZONE: "a"}},
        "zone-a-or-b": {"labels": {ZONE: "a__b"}},
        "anywhere": {},
        "node-2": {"node": "node-2"},
        "one-pod": {"modes": ["ReadWriteOncePod"]},
    }
    for name, place in places.items():
        modes = place.get("modes", ["ReadWriteMany"])
        spec: Json = {
            "capacity": {"storage": "1Gi"},
            "accessModes": modes,
            "csi": {"driver": "csi.example", "volumeHandle": name},
            "claimRef": {"namespace": "red", "name": name},
        }
        if "node" in place:
            wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": [place["node"]]}
            terms = [{"matchExpressions": [wanted]}]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        await client.create(
            PERSISTENT_VOLUMES,
            {"metadata": {"name": name, "labels": place.get("labels", {})}, "spec": spec},
        )
        claim = {
            "metadata": {
                "name": name,
                "namespace": "red",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {
                "accessModes": modes,
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": name,
                "storageClassName": "",
            },
        }
        await client.create(PERSISTENT_VOLUME_CLAIMS, claim)


def with_claim(name: str, claim: str, **more: Any) -> Json:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    return pod_json(name, namespace="red", volumes=[volume], **more)


async def create_pods(client: KubeClient, pods: list[Json]) -> None:
    for pod in pods:
        meta = {key: value for key, value in pod["metadata"].items() if key != "uid"}
        await client.create(PODS, {**pod, "metadata": meta})


async def ask(api: ControlPlane, client: KubeClient, pods: list[Json], workdir: Path) -> FilterLog:
    """Return which nodes kube-scheduler's own filters leave for each pod."""
    log = FilterLog()
    asked = [{**pod, "spec": {**pod["spec"], "schedulerName": "looking"}} for pod in pods]
    with listening(log) as url:
        config = workdir / "kube-scheduler.json"
        kubeconfig = api.kubeconfig(workdir / "admin.kubeconfig")
        config.write_text(json.dumps(configuration(url, kubeconfig)))
        await create_pods(client, asked)
        await api.start_scheduler(config)

        async def all_tried() -> bool:
            listing = await client.list(PODS)
            bodies = [decode_object(raw) for raw in listing.items]
            waiting = [body for body in bodies if not body["spec"].get("nodeName")]
            return len(waiting) == len(pods) and all(_tried(body) for body in waiting)

        await until(all_tried, what="kube-scheduler has tried every pod", limit_s=200)
        await asyncio.sleep(0)
    return log


def _tried(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(
        condition["type"] == "PodScheduled" and condition["status"] == "False"
        for condition in conditions
    )


@pytest.mark.parametrize("seed", range(4))
async def test_the_simulation_allows_exactly_the_nodes_that_kube_scheduler_does(
    tmp_path: Path, seed: int
) -> None:
    source = RandomScheduling(seed)
    async with (
        real_api_server(tmp_path) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        for name, labels in RANDOM_NAMESPACES.items():
            await client.create(NAMESPACES, {"metadata": {"name": name, "labels": dict(labels)}})
        nodes = source.nodes(NODES_COUNT)
        for node in nodes:
            await register(client, node)
        await make_volumes(client)
        bound = source.pods(BOUND, prefix="bound")
        for number, pod in enumerate(bound):
            pod["spec"]["nodeName"] = f"node-{number % NODES_COUNT}"
        bound += [with_claim("uses-one-pod", "one-pod", node="node-3")]
        await create_pods(client, bound)
        asked = source.pods(ASKED, prefix="asked")
        claims = ("zone-a", "zone-a-or-b", "anywhere", "node-2", "one-pod")
        asked += [with_claim(f"wants-{claim}", claim) for claim in claims]
        log = await ask(api, client, asked, tmp_path)
        cluster = await observed(client)
        stored = {
            f"{body['metadata']['namespace']}/{body['metadata']['name']}": body
            for body in map(decode_object, (await client.list(PODS)).items)
        }

    wrong = {}
    answers = set()
    for key, body in stored.items():
        if body["spec"].get("nodeName"):
            continue
        placing = read_pod(body)
        ours = names_of(
            cluster, allowed_nodes(cluster, placing, without=frozenset({NodeFilter.ATTACHMENT}))
        )
        theirs = log.nodes.get(key, set())
        answers.add(frozenset(theirs))
        if ours != theirs:
            wrong[key] = (ours - theirs, theirs - ours, refusals(cluster, placing), body["spec"])
    assert not wrong
    assert len(answers) > 10, "the pods are told apart"
