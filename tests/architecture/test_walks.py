"""A walk through the product runs in the few files with which docs/architecture.md draws it."""

import base64
import json
import ssl
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import MovePhase
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NAMESPACES, PODS, SECRETS
from rebalancer.usage import promql
from rebalancer.usage.measured import Measured, MeasuredUsage
from rebalancer.usage.prometheus import Prometheus
from simulator.apiserver.server import ApiServer
from tests.certs.tls_harness import a_ca, a_client, a_leaf, trusting
from tests.fakes.prometheus import knowing, serving
from tests.scheduler.test_service import Replica
from tests.support.gpu import a_gpu_pod, a_sharing_node, register
from tests.support.http2_caller import Http2Caller
from tests.support.moving import Usage, a_rig, make_cluster
from tests.support.rebalancing import COOL_CARD, HOT_CARD
from tests.support.waiting import until
from tests.support.walks import ROOT, Walk, drawn, followed
from tests.webhook.builders import a_pod, a_review
from tests.webhook.cluster import Harness, a_harness, running, says

MOST_FILES = 24
TITLES = ("From a pod's request to its grant", "From filter to bind", "From usage to a move")
# What carries bytes and knows of no card, and what a policy does behind its interface.
CARRIERS = ("kube/", "process/")
POLICY = "fracgpu/placement/policies/least_waste/"
# From usage to a move: what carries the walk, and what of it only reports or cleans up.
MOVERS = ("rebalancer/", "fracgpu/disruption/")
REPORTERS = (
    *("rebalancer/metrics.py", "rebalancer/event_reporter.py", "rebalancer/decisions.py"),
    *("rebalancer/hindsight.py", "rebalancer/moves/janitor.py"),
)
NODES = ("gpu-1", "gpu-2")
WALKS = 5
AT_ONCE = replace(RebalancerPolicy(mode=Mode.ACTIVE, startup_grace_s=0), notice_s=0)


def on_the_map(path: str) -> str:
    """Return the file with which a file of a walk is drawn; empty if it is not drawn."""
    if path.startswith(CARRIERS):
        return ""
    return f"{POLICY}order.py" if path.startswith(POLICY) else path


def common_to(walks: Iterable[Walk]) -> list[str]:
    """Return the drawn files that all walks have.

    What happened to run beside one of them, such as a watch event, is part of none.
    """
    common = set.intersection(*(set(walk.files) for walk in walks))
    return sorted({one for path in common if (one := on_the_map(path))})


def parse(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


class Scheduling:
    """A real extender behind TLS and HTTP/2, asked as kube-scheduler asks."""

    def __init__(self, replica: Replica, caller: Http2Caller) -> None:
        self.replica = replica
        self.caller = caller

    async def ask(self, verb: str, args: dict[str, Any]) -> Any:
        answer = await self.caller.ask(f"/{verb}", json.dumps(args).encode())
        assert answer.status == 200, bytes(answer.body)
        return json.loads(bytes(answer.body))

    async def knows_one(self) -> bool:
        """Report whether one pod waits, and every Binding before has been observed."""
        url = f"{self.replica.telemetry}/metrics"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            found = parse(await answer.text())
        waiting = sum(
            sample.value for sample in found if sample.name == "fracgpu_scheduler_waiting_pods"
        )
        assumed = [it.value for it in found if it.name == "fracgpu_scheduler_assumptions"]
        return waiting == 1 and assumed == [0]

    async def place(self, pod: dict[str, Any]) -> Walk:
        """Have a pod filtered and bound, and return the walk from the first to the Binding."""
        meta = pod["metadata"]
        with followed(last="bind") as walk:
            found = await self.ask("filter", {"Pod": pod, "NodeNames": NODES})
            (node,) = found["NodeNames"]
            bound = await self.ask(
                "bind",
                {
                    "PodName": meta["name"],
                    "PodNamespace": meta["namespace"],
                    "PodUID": meta["uid"],
                    "Node": node,
                },
            )
        assert bound == {"Error": ""}
        return walk


def a_secret() -> tuple[dict[str, Any], ssl.SSLContext]:
    """Return the extender's Secret, and what a caller has to present and to trust."""
    ca = a_ca()
    leaf = a_leaf(ca)
    data = {"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem, "ca.crt": ca.cert_pem}
    trust = trusting(ca.cert_pem, client=a_client(ca))
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    where = {"name": "tls", "namespace": names.SYSTEM_NAMESPACE}
    return {"metadata": where, "data": encoded}, trust


@pytest.mark.parametrize("title", TITLES)
def test_a_walk_is_short(title: str) -> None:
    files = drawn(title)
    assert 0 < len(files) <= MOST_FILES
    assert [path for path in files if not (ROOT / path).is_file()] == []


@pytest.mark.timeout(120)
async def test_from_filter_to_bind(tmp_path: Path) -> None:
    secret, trust = a_secret()
    walks: list[Walk] = []
    async with ApiServer.start() as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        async with connect(kubeconfig) as client:
            await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
            await client.create(SECRETS, secret)
            for node in NODES:
                await register(client, a_sharing_node(node))
            replica = Replica(kubeconfig, "a")
            replica.settings = replace(replica.settings, tls_secret="tls", narrow_filter=True)
            async with replica.running():
                await replica.until_ready()
                async with Http2Caller.connect(replica.settings.listen_port, trust) as caller:
                    scheduling = Scheduling(replica, caller)
                    for number in range(WALKS):
                        pod = await client.create(PODS, a_gpu_pod(f"p{number}", mib=1000))
                        await until(scheduling.knows_one, what="the cache has caught up")
                        walks.append(await scheduling.place(pod))

    assert common_to(walks) == sorted(drawn("From filter to bind"))


async def review(cluster: Harness, trust: ssl.SSLContext, http: aiohttp.ClientSession) -> Walk:
    """Ask the webhook about a new pod as the API server does; return the walk to its response."""
    body = a_review(a_pod(fraction="0.5"), namespace="default")
    url = f"https://127.0.0.1:{cluster.settings.listen_port}/mutate"
    with followed(last="StreamResponse.prepare") as walk:
        async with http.post(url, json=body, ssl=trust) as answer:
            response = (await answer.json())["response"]
    assert response["allowed"]
    assert response["patchType"] == "JSONPatch"
    return walk


@pytest.mark.timeout(120)
async def test_from_a_pods_request_to_its_grant(tmp_path: Path) -> None:
    async with ApiServer.start() as api, a_harness(api.kubeconfig(tmp_path / "kubeconfig")) as it:
        await register(it.client, a_sharing_node("gpu-1"))
        trust = ssl.create_default_context(cadata=it.ca.cert_pem.decode())
        async with running(it), aiohttp.ClientSession() as http:
            await it.give_certificate()
            await says(it, "200")
            walks = [await review(it, trust, http) for _ in range(WALKS)]

    assert common_to(walks) == sorted(drawn("From a pod's request to its grant"))


class FromPrometheus(Usage):
    """What the rebalancer measures, where the rig has what a test says."""

    def __init__(self, measured: MeasuredUsage) -> None:
        super().__init__()
        self._measured = measured

    async def observe(self, cards: Collection[CardUuid], policy: RebalancerPolicy) -> Measured:
        return await self._measured.observe(cards, policy)


class Series:
    """What Prometheus has of one hot and one idle card, and of the pods on the hot one."""

    def __init__(self, pods: Collection[str]) -> None:
        self._pods = pods
        self._now_s = 1e9
        levels = (promql.peak, promql.level, promql.slow_level)
        counts = (promql.samples, promql.history, promql.busy_changes)
        self._cards = {
            promql.BUSY: ("90", "5"),
            promql.AGE: ("1", "1"),
            promql.FREE_MIB: ("16000", "16000"),
            **{query(AT_ONCE): ("90", "5") for query in levels},
            **{query(AT_ONCE): ("1", "0") for query in (promql.fast_hot, promql.slow_hot)},
            **{query(AT_ONCE): ("1000", "1000") for query in counts},
        }

    def of(self, query: str) -> list[tuple[dict[str, str], str]]:
        if query == promql.SERVER_TIME:
            self._now_s += 15
            return [({}, str(self._now_s))]
        if query == promql.pod_mean(AT_ONCE):
            return [({"UUID": HOT_CARD, "pod_uid": uid}, "45") for uid in self._pods]
        values = self._cards.get(query, ())
        cards = (HOT_CARD, COOL_CARD)
        return [({"UUID": card}, value) for card, value in zip(cards, values, strict=False)]


@pytest.mark.timeout(120)
async def test_from_usage_to_a_move(kube: KubeClient) -> None:
    await make_cluster(kube, annotations={names.REBALANCE: "evict"})
    pods = [json.loads(bytes(raw))["metadata"]["uid"] for raw in (await kube.list(PODS)).items]
    requests: list[str] = []
    async with (
        serving(knowing(Series(pods).of, requests), requests) as (url, _),
        Prometheus(url, limit_s=10, limit_bytes=1 << 20) as prometheus,
    ):
        usage = FromPrometheus(MeasuredUsage(prometheus))
        async with a_rig(kube, usage=usage, policy=AT_ONCE) as rig:
            with followed(last="SideEffects.evict") as walk:
                await rig.tick_until_disturbed(kube)
            assert rig.record().phase is MovePhase.EVICTED

    carrying = [path for path in walk.files if path.startswith(MOVERS) and path not in REPORTERS]
    assert sorted(carrying) == sorted(drawn("From usage to a move"))
