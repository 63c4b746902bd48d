"""A walk through the product runs in the few files with which docs/architecture.md draws it."""

import base64
import json
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from certs.authority import make_ca, make_client, make_serving
from fracgpu import names
from kube.access import connect
from kube.kinds import NAMESPACES, PODS, SECRETS
from process.tls import private_file
from simulator.apiserver.server import ApiServer
from tests.scheduler.test_service import Replica
from tests.support.gpu import a_gpu_pod, a_sharing_node, register
from tests.support.http2_caller import Http2Caller
from tests.support.waiting import until
from tests.support.walks import ROOT, Walk, drawn, followed

MOST_FILES = 24
# What carries bytes and knows of no card, and what a policy does behind its interface.
CARRIERS = ("kube/", "process/")
POLICY = "fracgpu/placement/policies/least_waste/"
NODES = ("gpu-1", "gpu-2")
WALKS = 5


def on_the_map(path: str) -> str:
    """Return the file with which a file of a walk is drawn; empty if it is not drawn."""
    if path.startswith(CARRIERS):
        return ""
    return f"{POLICY}order.py" if path.startswith(POLICY) else path


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


def secret_of(now: datetime) -> tuple[dict[str, Any], ssl.SSLContext]:
    """Return the extender's Secret, and what a caller has to present and to trust."""
    ca = make_ca(name="test CA", now=now, life=timedelta(hours=1))
    leaf = make_serving(ca, names=("127.0.0.1",), now=now, life=timedelta(hours=1))
    own = make_client(ca, name="kube-scheduler", now=now, life=timedelta(hours=1))
    data = {"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem, "ca.crt": ca.cert_pem}
    trust = ssl.create_default_context(cadata=ca.cert_pem.decode())
    with private_file(own.cert_pem + own.key_pem) as path:
        trust.load_cert_chain(path)
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    where = {"name": "tls", "namespace": names.SYSTEM_NAMESPACE}
    return {"metadata": where, "data": encoded}, trust


@pytest.mark.parametrize("title", ["From filter to bind"])
def test_a_walk_is_short(title: str) -> None:
    files = drawn(title)
    assert 0 < len(files) <= MOST_FILES
    assert [path for path in files if not (ROOT / path).is_file()] == []


@pytest.mark.timeout(120)
async def test_from_filter_to_bind(tmp_path: Path) -> None:
    now = datetime.now(tz=UTC)  # noqa: TID251 - TLS libraries compare with the machine's clock
    secret, trust = secret_of(now)
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

    # What happened to run beside one of them, such as a watch event, is part of none.
    common = set.intersection(*(set(walk.files) for walk in walks))
    assert sorted({one for path in common if (one := on_the_map(path))}) == sorted(
        drawn("From filter to bind")
    )
