"""The extender's HTTP server."""

import asyncio
import gc
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from component.leader_gate import LeaderGate
from fracgpu.names import GANG
from process.http2.connections import ALPN
from process.telemetry import Readiness
from process.tls import ServingTls
from scheduler.extender.api import FilterResult, ProtocolError
from scheduler.extender.filter import StaleCacheRetry, narrowed
from scheduler.extender.server import ExtenderServer
from scheduler.metrics import RequestActivity
from tests.certs.tls_harness import a_ca, a_client, a_leaf, trusting
from tests.component.test_leader_gate import AnElection
from tests.scheduler.harness import Harness
from tests.support.gpu import a_gpu_pod
from tests.support.http2_caller import Http2Caller

RECORDED = Path(__file__).parents[2] / "contracts" / "kube_scheduler"


class Served:
    """A cluster whose extender listens on loopback."""

    def __init__(
        self, cluster: Harness, url: str, http: aiohttp.ClientSession, *, port: int
    ) -> None:
        self.cluster = cluster
        self.port = port
        self.url = url
        self.http = http

    async def post(self, verb: str, body: bytes) -> tuple[int, str]:
        async with self.http.post(f"{self.url}/{verb}", data=io.BytesIO(body)) as answer:
            return answer.status, await answer.text()

    async def ask(self, verb: str, body: bytes) -> Any:
        status, text = await self.post(verb, body)
        assert status == 200, text
        return json.loads(text)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(f"{self.url}/{path}") as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def serving(
    *nodes: str,
    leads: bool = True,
    narrow: bool = False,
    tls: ssl.SSLContext | None = None,
    activity: RequestActivity | None = None,
) -> AsyncIterator[Served]:
    cluster = Harness(*(nodes or ("gpu-1", "gpu-2")), cards=4)
    election = AnElection()
    if leads:
        election.leading.set()
    leader_gate = LeaderGate(election)
    server = ExtenderServer(
        extender=cluster.extender,
        stale_cache_retry=StaleCacheRetry(
            cluster.extender, cluster.changes, cluster.clock, limit_s=0.0
        ),
        cycles=cluster.cycles,
        gangs=cluster.gangs,
        preemptor=cluster.preemptor,
        binder=cluster.binder,
        leader_gate=leader_gate,
        metrics=cluster.metrics,
        clock=cluster.clock,
        registry=cluster.registry,
        readiness=lambda: Readiness(checks={"leader": leader_gate.why_not()}),
        host="127.0.0.1",
        port=0,
        body_limit_mib=1,
        narrow=narrowed if narrow else None,
        ssl_context=tls,
        activity=activity,
    )
    await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            scheme = "http" if tls is None else "https"
            yield Served(cluster, f"{scheme}://127.0.0.1:{server.port}", http, port=server.port)
    finally:
        await server.stop(1.0)


@asynccontextmanager
async def serving_http2(
    *, leads: bool = True, activity: RequestActivity | None = None
) -> AsyncIterator[tuple[Served, Http2Caller]]:
    """Serve with mutual TLS, as in a cluster, to a caller over HTTP/2, as kube-scheduler is."""
    ca = a_ca()
    leaf = a_leaf(ca)
    tls = ServingTls(require_client_certificate=True, alpn=ALPN)
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=ca.cert_pem)
    async with (
        serving(leads=leads, tls=tls.context, activity=activity) as served,
        Http2Caller.connect(served.port, trusting(ca.cert_pem, client=a_client(ca))) as caller,
    ):
        yield served, caller


async def test_a_bind_which_mostly_waits_is_no_activity() -> None:
    activity = RequestActivity()
    begun = []
    async with serving_http2(activity=activity) as (served, caller):
        for verb, body in (("filter", "filter-names"), ("bind", "bind")):
            await caller.ask(f"/{verb}", recorded(body))
            begun.append(activity.begun)
    async with serving(activity=activity) as served:
        for verb, body in (("filter", "filter-names"), ("bind", "bind")):
            await served.post(verb, recorded(body))
            begun.append(activity.begun)

    assert begun == [1, 1, 2, 2]


async def test_nodes_that_have_all_changed_are_taken_over_a_few_at_a_time() -> None:
    observed: list[int] = []

    async def others() -> None:
        while True:
            observed.append(served.cluster.matrix.now)
            await asyncio.sleep(0)

    nodes = (f"gpu-{number}" for number in range(100))
    async with serving(*nodes) as served, asyncio.TaskGroup() as group:
        watching = group.create_task(others())
        await served.ask("filter", recorded("filter-names"))
        watching.cancel()

    steps = [later - earlier for earlier, later in pairwise(observed)]
    assert sum(steps) == 100
    assert max(steps) <= 32


async def test_all_verbs_are_answered_over_http2_as_over_http1() -> None:
    args, pod = json.loads(recorded("bind")), json.loads(recorded("filter-names"))["Pod"]
    pod["metadata"]["uid"] = args["PodUID"]
    bodies = {
        "filter": recorded("filter-names"),
        "prioritize": recorded("prioritize-names"),
        "preempt": a_preempt_request("u", "gpu-1"),
        "bind": recorded("bind"),
    }
    async with serving() as plain, serving_http2() as (served, caller):
        for cluster in (plain.cluster, served.cluster):
            cluster.api.put(pod)
        for verb, body in bodies.items():
            old = await plain.post(verb, body)
            new = await caller.ask(f"/{verb}", body)
            assert (new.status, bytes(new.body).decode()) == old
            assert new.content_type == "application/json"


async def test_a_malformed_request_and_one_to_no_leader_are_told_so_over_http2() -> None:
    async with serving_http2(leads=False) as (_, caller):
        malformed = await caller.ask("/filter", b"{}")
        not_leading = await caller.ask("/prioritize", recorded("prioritize-names"))

    assert (malformed.status, not_leading.status) == (400, 503)
    assert bytes(malformed.body).startswith(b"not an ExtenderArgs: ")


async def test_probes_metrics_and_unknown_paths_are_answered_over_http2() -> None:
    async with serving_http2() as (_, caller):
        found = {
            (method, path): await caller.ask(path, method=method)
            for method, path in (
                ("GET", "/livez"),
                ("GET", "/readyz"),
                ("GET", "/metrics"),
                ("GET", "/filter"),
                ("POST", "/metrics"),
                ("POST", "/elsewhere"),
            )
        }

    assert [answered.status for answered in found.values()] == [200, 200, 200, 405, 405, 404]
    assert b"fracgpu_scheduler_requests_total" in found["GET", "/metrics"].body


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.json").read_bytes()


async def test_recorded_requests_of_kube_scheduler_are_answered() -> None:
    async with serving() as served:
        filtered = await served.ask("filter", recorded("filter-names"))
        scored = await served.ask("prioritize", recorded("prioritize-names"))

    assert {"gpu-1", "gpu-2"} <= set(filtered["NodeNames"])
    assert filtered["Error"] == ""
    assert {entry["Host"]: entry["Score"] for entry in scored} == {"gpu-1": 10, "gpu-2": 2}


async def test_a_narrow_answer_names_one_node_in_the_form_of_the_request() -> None:
    async with serving(narrow=True) as served:
        by_name = await served.ask("filter", recorded("filter-names"))
        response = await served.ask("filter", recorded("filter-nodes"))

    assert by_name == {
        "Nodes": None,
        "NodeNames": ["gpu-1"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    assert [node["metadata"]["name"] for node in response["Nodes"]["items"]] == ["gpu-1"]


async def test_a_pod_whose_binding_was_refused_is_not_waited_for() -> None:
    async with serving() as served:
        cluster = served.cluster
        claim = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        first, second = cluster.create("p", volumes=claim), cluster.create("q")
        cluster.cycles.filtered(first, FilterResult(passed=("gpu-1",)))
        waiting = cluster.cycles.begin(second)
        assert waiting is not None

        names = {"PodName": "p", "PodNamespace": "default", "PodUID": first.record.uid}
        args = json.dumps(names | {"Node": "nowhere"}).encode()
        assert (await served.ask("bind", args))["Error"]

        await waiting


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
async def test_a_malformed_body_is_answered_with_400_and_a_reason_and_the_process_lives(
    verb: str,
) -> None:
    async with serving() as served:
        for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"Pod":3}', b'{"Pod":' + b"[" * 50_000):
            status, text = await served.post(verb, body)
            assert (status, text.startswith("not an Extender")) == (400, True)
        assert (await served.get("livez"))[0] == 200
        labels = {"verb": verb, "outcome": "malformed"}
        assert served.cluster.count("fracgpu_scheduler_requests_total", **labels) == 6


async def test_nothing_of_a_malformed_body_is_left_to_the_garbage_collector() -> None:
    async with serving() as served:
        gc.collect()
        gc.disable()
        try:
            responses = [
                await served.post(verb, b"{" + b"x" * 1000)
                for verb in ("filter", "prioritize", "bind", "preempt")
            ]
            # An error's traceback has the frames that have the body.
            errors = [thing for thing in gc.get_objects() if isinstance(thing, ProtocolError)]
        finally:
            gc.enable()

    assert [status for status, _ in responses] == [400] * 4
    assert errors == []


async def test_a_body_above_the_limit_is_refused() -> None:
    async with serving() as served:
        status, _ = await served.post("filter", b" " * (1024 * 1024 + 1))

    assert status == 413


def a_preempt_request(uid: str, node: str, *, as_pods: bool = False) -> bytes:
    """Return what kube-scheduler sends: UIDs, or whole pods where nodeCacheCapable is false."""
    pod = a_gpu_pod("big", mib=20_000, priority=10)
    low = a_gpu_pod("low")
    low["metadata"]["uid"] = uid
    pods = [low] if as_pods else [{"UID": uid}]
    victims = {node: {"Pods": pods, "NumPDBViolations": 0}}
    named, other = "NodeNameToMetaVictims", "NodeNameToVictims"
    if as_pods:
        named, other = other, named
    return json.dumps({"Pod": pod, named: victims, other: None}).encode()


@pytest.mark.parametrize("as_pods", [False, True])
async def test_a_preempt_request_is_answered_with_victims_by_uid(as_pods: bool) -> None:
    async with serving("n") as served:
        for card in range(4):
            served.cluster.run(f"low-{card}", card=card, mib=20_000)
        uid = served.cluster.api.pods["low-0"]["metadata"]["uid"]
        found = await served.ask("preempt", a_preempt_request(uid, "n", as_pods=as_pods))
        of_gang = json.loads(a_preempt_request(uid, "n", as_pods=as_pods))
        of_gang["Pod"]["metadata"]["annotations"][GANG] = "g/2"
        none = await served.ask("preempt", json.dumps(of_gang).encode())

    assert none["NodeNameToMetaVictims"] == {}, "room for one pod of a gang would help none"
    (victims,) = found["NodeNameToMetaVictims"].values()
    assert victims["NumPDBViolations"] == 0
    assert len(victims["Pods"]) == 1
    assert victims["Pods"][0]["UID"].startswith("uid-low-")


async def test_a_replica_that_does_not_lead_says_so_and_writes_nothing() -> None:
    async with serving(leads=False) as served:
        filtered = await served.ask("filter", recorded("filter-names"))
        bound = await served.ask("bind", recorded("bind"))
        status, text = await served.post("prioritize", recorded("prioritize-names"))
        assert (await served.post("preempt", a_preempt_request("u", "n")))[0] == 503

        assert filtered["Error"] == bound["Error"] == "another replica leads"
        assert filtered["NodeNames"] is None
        assert (status, text) == (503, "another replica leads\n")
        assert served.cluster.api.bindings == []
        assert (await served.get("readyz"))[0] == 503


async def test_a_replica_that_does_not_lead_closes_a_connection_over_http2_after_its_answers() -> (
    None
):
    async with serving_http2(leads=False) as (served, caller):
        streams = [
            await caller.begin(f"/{verb}", recorded(body), end=False)
            for verb, body in (("filter", "filter-names"), ("bind", "bind"))
        ]
        for stream in streams:  # in one piece, so that both have come when the first is answered
            caller.state.end_stream(stream)
        await caller.flush()
        async with asyncio.timeout(20):
            await caller.goodbye.wait()
            await caller.ended.wait()
        answers = [json.loads(bytes(caller.answer_to(stream).body)) for stream in streams]

    assert [answer["Error"] for answer in answers] == ["another replica leads"] * 2
    for verb in ("filter", "bind"):
        labels = {"verb": verb, "outcome": "not_leading"}
        assert served.cluster.count("fracgpu_scheduler_requests_total", **labels) == 1


@pytest.mark.parametrize("leads", [True, False])
async def test_a_replica_that_does_not_lead_closes_a_connection_over_http1(*, leads: bool) -> None:
    async with serving(leads=leads) as served:
        for verb in ("filter", "prioritize"):
            url = f"{served.url}/{verb}"
            async with served.http.post(url, data=recorded("filter-names")) as answer:
                await answer.read()
                assert (answer.headers.get("Connection") == "close") == (not leads), verb


async def test_probes_and_metrics_are_served() -> None:
    async with serving() as served:
        await served.ask("filter", recorded("filter-names"))

        assert (await served.get("readyz"))[0] == 200
        status, text = await served.get("metrics")
        assert status == 200
        wanted = 'fracgpu_scheduler_requests_total{outcome="answered",verb="filter"} 1.0'
        assert wanted in text


async def test_requests_are_answered_while_a_binding_is_under_way() -> None:
    args = json.loads(recorded("bind"))
    pod = json.loads(recorded("filter-names"))["Pod"]
    async with serving() as served, asyncio.TaskGroup() as group:
        served.cluster.api.held = asyncio.Event()
        served.cluster.api.put({**pod, "metadata": {**pod["metadata"], "uid": args["PodUID"]}})
        binding = group.create_task(served.ask("bind", recorded("bind")), name="bind")

        filtered = await served.ask("filter", recorded("filter-names"))
        served.cluster.api.held.set()

    assert filtered["Error"] == ""
    assert binding.result() == {"Error": ""}
