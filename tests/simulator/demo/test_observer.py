"""The observer keeps the highest values, and distinguishes cool cards from missing pods."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.cards.annotations import write_cards
from fracgpu.cards.card import Card, CardUuid
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import EVENTS, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS
from process.clock import SystemClock
from rebalancer.usage.prometheus import Prometheus
from simulator.background import background
from simulator.demo.dashboard import StoryLine
from simulator.demo.observer import MeasuredHeat, Observer
from simulator.envtest.ports import free_ports
from simulator.envtest.prometheus import RealPrometheus
from tests.support.claims import a_claiming_pod
from tests.support.device_claims import DRIVER, a_device_claim, a_request
from tests.support.waiting import until_true

A = CardUuid("GPU-a")
CARD = Card(uuid=A, index=0, model="A10", total_mib=Mib(8000))


class Thermometer:
    """A source of measured load that a test sets."""

    def __init__(self) -> None:
        self.busy: Mapping[str, float] | None = None

    async def busy_ratio_by_card(self) -> Mapping[str, float] | None:
        return self.busy


@asynccontextmanager
async def observing(
    kube: KubeClient, busy: Thermometer, *, by_claims: bool = False
) -> AsyncIterator[Observer]:
    await kube.create(NAMESPACES, {"metadata": {"name": "demo"}})
    await kube.create(
        NODES,
        {
            "metadata": {
                "name": "n1",
                "labels": {names.SHARE_LABEL: "true"},
                "annotations": {names.NODE_CARDS: write_cards([CARD])},
            }
        },
    )
    observer = Observer(
        kube,
        busy,
        SystemClock(),
        namespace="demo",
        heated="burner-",
        hot_line=0.8,
        by_claims=by_claims,
    )
    async with background(observer.run()):
        await observer.wait_synced()
        yield observer


async def bound_pod(kube: KubeClient, name: str, mib: int, *, ready: bool = True) -> None:
    limits = {names.GPU_MEM: str(mib), names.GPU_SLOT: "1"}
    created = await kube.create(
        PODS,
        {
            "metadata": {"name": name},
            "spec": {
                "containers": [
                    {"name": "main", "image": "i", "resources": {"limits": limits}},
                ]
            },
        },
        namespace="demo",
    )
    assignment = write_assignment({"main": (Slice(card=A, mib=Mib(mib)),)})
    binding: dict[str, Any] = {
        "metadata": {
            "uid": created["metadata"]["uid"],
            "annotations": {names.ASSIGNMENT: assignment},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    await kube.bind(binding, namespace="demo", name=name)
    if ready:
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"status": {"phase": "Running", "conditions": conditions}}
        await kube.patch(PODS, name, status, namespace="demo", subresource="status")


@pytest.fixture
async def observer(kube: KubeClient) -> AsyncIterator[Observer]:
    async with observing(kube, Thermometer()) as observer:
        yield observer


async def test_the_peak_of_a_card_outlives_its_pods(kube: KubeClient, observer: Observer) -> None:
    await bound_pod(kube, "a", 3000)
    await bound_pod(kube, "b", 2000)
    await until_true(
        lambda: [peak.peak_mib for peak in observer.peaks] == [5000], what="both pods seen"
    )

    await kube.delete(PODS, "a", namespace="demo", grace_s=0)

    await until_true(lambda: len(observer.pods) == 1, what="the deletion seen")
    (peak,) = observer.peaks
    assert (peak.card, peak.capacity_mib, peak.peak_mib) == (A, 8000, 5000)


async def test_what_a_claim_was_allocated_counts_for_its_pod(kube: KubeClient) -> None:
    async with observing(kube, Thermometer(), by_claims=True) as observer:
        body = a_claiming_pod("p", 3000, claim="fracgpu-0123456789")
        body["metadata"]["namespace"] = "demo"
        pod = await kube.create(PODS, body)
        target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
        await kube.bind(
            {"metadata": {"uid": pod["metadata"]["uid"]}, "target": target},
            namespace="demo",
            name="p",
        )
        claim = a_device_claim("fracgpu-0123456789", a_request("train", "3000Mi"))
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
        claim["metadata"]["ownerReferences"] = [owner | {"controller": True}]
        made = await kube.create(RESOURCE_CLAIMS, claim, namespace="demo")
        card = {
            "request": "train",
            "driver": DRIVER,
            "pool": "n1",
            "device": "gpu-a",
            "consumedCapacity": {"memory": "3000Mi"},
        }
        status = {"allocation": {"devices": {"results": [card]}}}
        await kube.replace(RESOURCE_CLAIMS, {**made, "status": status}, subresource="status")

        await until_true(
            lambda: [peak.peak_mib for peak in observer.peaks] == [3000], what="the claim seen"
        )
        (seen,) = observer.pods
        assert seen.record.assignment == {"train": (Slice(card=A, mib=Mib(3000)),)}


async def test_a_card_is_relieved_only_when_every_heating_pod_is_back(kube: KubeClient) -> None:
    thermometer = Thermometer()
    async with observing(kube, thermometer) as observer:
        await bound_pod(kube, "burner-1", 1000)
        await bound_pod(kube, "burner-2", 1000)
        thermometer.busy = {A: 0.95}
        await until_true(lambda: observer.heat.hot_after_s is not None, what="heat seen")

        await kube.delete(PODS, "burner-1", namespace="demo", grace_s=0)
        await bound_pod(kube, "burner-3", 1000, ready=False)
        thermometer.busy = {A: 0.5}
        await until_true(lambda: observer.heat.last_busy == 0.5, what="the card cooler")

        heat = observer.heat
        assert heat.moved_pods == ("burner-1",)
        assert heat.relieved_after_s is None
        assert heat.peak_busy == 0.95

        conditions = [{"type": "Ready", "status": "True"}]
        status = {"status": {"phase": "Running", "conditions": conditions}}
        await kube.patch(PODS, "burner-3", status, namespace="demo", subresource="status")

        await until_true(lambda: observer.heat.relieved_after_s is not None, what="relief seen")
        move = "burner-1 left card n1/0; burner-3 runs in its place on card n1/0"
        assert observer.heat.move == move
        because = StoryLine("refused x: because", "refused x")
        shown = observer.dashboard(expected={"burner": 2}, roles=(), refusals=[because])
        assert [line.text for line in shown.story] == [because.text, f"moved: {move}"]


async def test_the_dashboard_shows_slices_and_where_heat_is_unknown(
    kube: KubeClient, observer: Observer
) -> None:
    await bound_pod(kube, "a", 3000)
    await until_true(lambda: bool(observer.pods), what="the pod seen")

    dashboard = observer.dashboard(expected={"a": 2}, roles=[("webhook", True)])

    (node,) = dashboard.nodes
    (card,) = node.cards
    assert (card.held_mib, card.capacity_mib, card.busy) == (3000, 8000, None)
    assert [part.pod for part in card.slices] == ["a"]
    assert dashboard.pods_expected == 2


async def test_news_is_stamped_and_kept_in_order(observer: Observer) -> None:
    observer.add_event_line("first")
    observer.add_event_line("second")

    assert [line.partition("s  ")[2] for line in observer.event_lines] == ["first", "second"]


async def test_a_replacement_beside_the_pod_that_it_replaces_is_not_one_pod_more(
    kube: KubeClient, observer: Observer
) -> None:
    for name in ("burner-1", "burner-2", "burner-3"):
        await bound_pod(kube, name, 1000)
    await until_true(lambda: len(observer.pods) == 3, what="the pods seen")

    dashboard = observer.dashboard(expected={"burner": 2, "chat": 1}, roles=())

    assert (dashboard.pods_running, dashboard.pods_expected) == (2, 3)


async def test_an_event_that_is_written_on_three_objects_is_told_once(
    kube: KubeClient, observer: Observer
) -> None:
    for count, kind in enumerate(("Pod", "ReplicaSet", "Node", "Pod")):
        event = {
            "metadata": {"name": f"e{count}"},
            "involvedObject": {"kind": kind, "namespace": "demo", "name": "burner"},
            "reason": "Evicted",
            "message": "pod demo/burner-1 was evicted" if count < 3 else "another",
            "type": "Normal",
        }
        await kube.create(EVENTS, event, namespace="demo")

    def reported() -> bool:
        return bool(observer.event_lines) and observer.event_lines[-1].endswith("another")

    await until_true(reported, what="the last event was seen")
    assert len(observer.event_lines) == 2


async def test_news_names_a_card_as_the_screen_does(kube: KubeClient) -> None:
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "namespace": "demo", "name": "burner-1"},
        "reason": "MovePlanned",
        "message": f"will move it off card {A}; card {A} on n1 has room; card n1/0 ({A}) is hot",
        "type": "Normal",
    }
    async with observing(kube, Thermometer()) as observer:
        await kube.create(EVENTS, event, namespace="demo")
        await until_true(lambda: bool(observer.event_lines), what="the event was seen")

        assert observer.event_lines[-1].endswith(
            "MovePlanned: will move it off card n1/0; card n1/0 has room; card n1/0 is hot"
        )


async def test_a_prometheus_that_knows_no_card_says_so(tmp_path: Path) -> None:
    async with (
        RealPrometheus.start(tmp_path, {}) as real,
        Prometheus(real.url, limit_s=60, limit_bytes=1_000_000) as asked,
    ):
        assert await MeasuredHeat(asked).busy_ratio_by_card() == {}


async def test_silence_is_not_an_empty_answer() -> None:
    (port,) = free_ports(1)

    async with Prometheus(f"http://127.0.0.1:{port}", limit_s=1, limit_bytes=1000) as asked:
        assert await MeasuredHeat(asked).busy_ratio_by_card() is None
