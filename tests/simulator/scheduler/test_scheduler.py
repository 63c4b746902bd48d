"""The stand-in for kube-scheduler, against the embedded API server and the real extender."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fracgpu import names
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import (
    DEVICE_CLASSES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from kube.objects import decode_object
from process.clock import SystemClock
from process.telemetry import HttpServer
from simulator.apiserver.server import ApiServer
from simulator.background import background
from simulator.scheduler.scheduler import KubeScheduler, fit_error
from tests.support.device_claims import (
    CLASS,
    a_device,
    a_device_claim,
    a_device_slice,
    a_pod_with_claim,
    a_request,
)
from tests.support.gpu import Json, a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.objects import a_pod
from tests.support.waiting import until, until_true


@dataclass(slots=True)
class FakeExtender:
    """A minimal extender that records its requests."""

    asked: list[tuple[str, Json]] = field(default_factory=list)
    passes: Callable[[str], bool] = lambda _: True
    scores: Mapping[str, int] = field(default_factory=dict)
    bind_error: str = ""
    status: int = 200
    kube: KubeClient | None = None
    before_bind: Callable[[], Awaitable[None]] | None = None

    async def answer(self, request: web.Request) -> web.Response:
        args: Json = await request.json()
        verb = request.match_info["verb"]
        self.asked.append((verb, args))
        if self.status != 200:
            return web.Response(status=self.status)
        answers = {"filter": self._filter, "prioritize": self._prioritize}
        if verb in answers:
            return web.json_response(answers[verb](args))
        return web.json_response({"Error": await self._bind(args)})

    def _filter(self, args: Json) -> Any:
        wanted: list[str] = args["NodeNames"]
        refused = {name: "node(s) it dislikes" for name in wanted if not self.passes(name)}
        passed = [name for name in wanted if self.passes(name)]
        return {"Nodes": None, "NodeNames": passed, "FailedNodes": refused, "Error": ""}

    def _prioritize(self, args: Json) -> Any:
        return [{"Host": node, "Score": self.scores.get(node, 0)} for node in args["NodeNames"]]

    async def _bind(self, args: Json) -> str:
        if self.before_bind is not None:
            await self.before_bind()
        if not self.bind_error:
            assert self.kube is not None
            await self.kube.bind(
                {"metadata": {"uid": args["PodUID"]}, "target": {"name": args["Node"]}},
                namespace=args["PodNamespace"],
                name=args["PodName"],
            )
        return self.bind_error

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]


@asynccontextmanager
async def scheduling(kube: KubeClient, extender: FakeExtender) -> AsyncIterator[KubeScheduler]:
    extender.kube = kube
    app = web.Application()
    app.router.add_post("/{verb}", extender.answer)
    server = HttpServer(app, host="127.0.0.1", port=0)
    await server.start()
    url = f"http://127.0.0.1:{server.port}"
    scheduler = KubeScheduler(kube, SystemClock(), extender_url=url)
    try:
        async with background(scheduler.run()):
            yield scheduler
    finally:
        await server.stop(1.0)


async def node_of(kube: KubeClient, name: str) -> str:
    pod = await kube.get_object(PODS, name, namespace="default")
    node: str = pod["spec"].get("nodeName", "")
    return node


async def until_bound(kube: KubeClient, name: str) -> str:
    async def bound() -> bool:
        return bool(await node_of(kube, name))

    await until(bound, what=f"{name} is bound")
    return await node_of(kube, name)


async def events_of(kube: KubeClient, name: str) -> list[tuple[str, str]]:
    listing = await kube.list(EVENTS, namespace="default")
    events = [decode_object(raw) for raw in listing.items]
    return [
        (event["reason"], event["message"])
        for event in events
        if event["involvedObject"]["name"] == name
    ]


async def until_event(kube: KubeClient, pod: str, *, reason: str) -> str:
    async def there() -> bool:
        return any(why == reason for why, _ in await events_of(kube, pod))

    await until(there, what=f"{reason} of {pod}")
    return next(text for why, text in await events_of(kube, pod) if why == reason)


async def test_it_asks_filter_prioritize_and_bind_as_kube_scheduler_does(
    kube: KubeClient,
) -> None:
    for name in ("a", "b"):
        await register(kube, a_sharing_node(name))
    extender = FakeExtender(scores={"a": 2, "b": 9})

    async with scheduling(kube, extender):
        await kube.create(PODS, a_gpu_pod("p"))
        assert await until_bound(kube, "p") == "b"

    filtered, prioritized, bound = (args for _, args in extender.asked)
    assert extender.verbs() == ["filter", "prioritize", "bind"]
    assert (filtered["Nodes"], filtered["NodeNames"]) == (None, ["a", "b"])
    assert filtered["Pod"]["metadata"]["name"] == "p"
    assert not {"kind", "apiVersion"} & set(filtered["Pod"])
    assert prioritized["Pod"] == filtered["Pod"]
    uid = filtered["Pod"]["metadata"]["uid"]
    assert bound == {"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "b"}
    assert ("Scheduled", "Successfully assigned default/p to b") in await events_of(kube, "p")


async def test_a_pod_that_wants_no_gpu_memory_is_bound_without_the_extender(
    kube: KubeClient,
) -> None:
    await register(kube, a_sharing_node("a"))
    plain = a_pod("plain")
    plain["spec"]["schedulerName"] = names.SCHEDULER_NAME
    extender = FakeExtender()

    async with scheduling(kube, extender):
        await kube.create(PODS, plain, namespace="default")
        assert await until_bound(kube, "plain") == "a"

    assert extender.asked == []


async def test_nodes_that_cannot_take_the_pod_are_not_asked_about_and_the_event_says_why(
    kube: KubeClient,
) -> None:
    closed = a_sharing_node("closed")
    closed["spec"] = {"unschedulable": True}
    tainted = a_sharing_node("tainted")
    tainted["spec"] = {"taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]}
    small = a_sharing_node("small", cards=some_cards("small", count=1, mib=800))
    for node in (closed, tainted, small):
        await register(kube, node)
    extender = FakeExtender()

    async with scheduling(kube, extender):
        await kube.create(PODS, a_gpu_pod("p", mib=2000))
        message = await until_event(kube, "p", reason="FailedScheduling")

        assert message == (
            "0/3 nodes are available: 1 Insufficient fracgpu.io/gpu-mem, "
            "1 node(s) had untolerated taint {dedicated: x}, 1 node(s) were unschedulable."
        )
        assert extender.asked == []

        async def noted() -> bool:
            pod = await kube.get_object(PODS, "p", namespace="default")
            conditions = {
                condition["type"]: condition for condition in pod["status"].get("conditions", ())
            }
            return bool(conditions.get("PodScheduled", {}).get("message") == message)

        await until(noted, what="the condition PodScheduled")
        await kube.patch(NODES, "closed", {"spec": {"unschedulable": None}})
        assert await until_bound(kube, "p") == "closed"


async def test_the_extenders_reasons_reach_the_event_and_news_bring_the_pod_back(
    kube: KubeClient,
) -> None:
    await register(kube, a_sharing_node("a"))
    extender = FakeExtender(passes=lambda _: False)

    async with scheduling(kube, extender):
        await kube.create(PODS, a_gpu_pod("p"))
        message = await until_event(kube, "p", reason="FailedScheduling")
        assert message == "0/1 nodes are available: 1 node(s) it dislikes."

        extender.passes = lambda _: True
        await kube.patch(NODES, "a", {"metadata": {"annotations": {"seen": "yes"}}})
        assert await until_bound(kube, "p") == "a"


@pytest.mark.parametrize("broken", ["bind", "http"])
async def test_after_an_error_the_pod_is_tried_again_by_itself(
    kube: KubeClient, broken: str
) -> None:
    await register(kube, a_sharing_node("a"))
    extender = FakeExtender(
        bind_error="the card was taken" if broken == "bind" else "",
        status=503 if broken == "http" else 200,
    )

    async with scheduling(kube, extender):
        await kube.create(PODS, a_gpu_pod("p"))
        message = await until_event(kube, "p", reason="FailedScheduling")
        assert ("the card was taken" if broken == "bind" else "code 503") in message

        extender.bind_error, extender.status = "", 200
        assert await until_bound(kube, "p") == "a"


async def all_tried(kube: KubeClient, count: int) -> bool:
    pods = [decode_object(bytes(raw)) for raw in (await kube.list(PODS)).items]
    tried = [pod for pod in pods if pod["spec"].get("nodeName") or pod["status"].get("conditions")]
    return len(tried) == count


async def test_an_expression_that_is_no_cel_is_said_on_the_pod(tmp_path: Path) -> None:
    async with ApiServer.start(port=0) as api, connect(api.kubeconfig(tmp_path / "k")) as kube:
        scheduler = KubeScheduler(
            kube, SystemClock(), extender_url=None, scheduler_name="default-scheduler"
        )
        await kube.create(DEVICE_CLASSES, {"metadata": {"name": CLASS}, "spec": {}})
        await register(kube, a_sharing_node("n", cards=()))
        await kube.create(RESOURCE_SLICES, a_device_slice("n", a_device("gpu-a")))
        claim = a_device_claim("c", a_request(expression="1 =="))
        await kube.create(RESOURCE_CLAIMS, claim, namespace="default")
        await kube.create(PODS, a_pod_with_claim("p", "c"), namespace="default")

        async with background(scheduler.run()):
            await until(lambda: all_tried(kube, 1), what="the pod has been tried")

        pod = await kube.get_object(PODS, "p", namespace="default")
        (condition,) = pod["status"]["conditions"]
        assert condition["reason"] == "SchedulerError"
        assert "CEL error in '1 =='" in condition["message"]


def test_a_cluster_without_nodes_is_named_as_such() -> None:
    assert fit_error({}, total=0) == "no nodes available to schedule pods"


async def test_a_pod_that_changes_while_its_binding_fails_is_tried_again(kube: KubeClient) -> None:
    await register(kube, a_sharing_node("n"))
    extender = FakeExtender()
    async with scheduling(kube, extender) as scheduler:

        async def change() -> None:
            # The second error has the words of the first, so that nothing is written of it.
            extender.bind_error = "busy" if extender.verbs().count("bind") <= 2 else ""
            labels = {"metadata": {"labels": {"changed": str(len(extender.asked))}}}
            await kube.patch(PODS, "p", labels, namespace="default")
            await until_true(lambda: uid not in scheduler._queue, what="the change is observed")

        extender.before_bind = change
        uid = (await kube.create(PODS, a_gpu_pod("p")))["metadata"]["uid"]

        assert await until_bound(kube, "p") == "n"
    assert extender.verbs().count("bind") == 3
