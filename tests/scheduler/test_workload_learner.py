"""The strategy least-waste in the extender."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.names import MODEL
from fracgpu.placement.policies.least_waste.library import Library
from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod import decode_bound_pod
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from scheduler.cache.change_signal import ChangeSignal
from scheduler.cache.event_handlers import ClusterEventHandlers
from scheduler.extender.api import ExtenderArgs
from scheduler.extender.filter import Extender
from scheduler.metrics import RequestActivity
from scheduler.workload_learner import WorkloadLearner
from tests.scheduler.harness import Harness
from tests.support.gpu import a_bound_gpu_pod, a_gpu_pod, some_cards

HOST = HostResources(pods=1)  # what the pods of these tests request besides cards


def pending(**wanted: Any) -> PodInfo:
    return decode_pod_info(json.dumps(a_gpu_pod("p", **wanted)).encode())


class Wasting:
    """A cluster of four nodes with pods of half a card and of a whole one."""

    def __init__(self) -> None:
        self.cluster = Harness("a", "b", "c", "d", cards=2)
        self.cluster.run("half", node="b", card=1, mib=12_000)
        self.cluster.run("whole", node="c", card=0, mib=24_000)
        self.matrix = self.cluster.matrix
        self.order = LeastWasteOrder(
            self.matrix, self.cluster.bound_pods, now=self.cluster.clock.now
        )
        self.cluster.strategy = Strategy.LEAST_WASTE
        self.extender = Extender(
            self.matrix,
            strategy=lambda: Strategy.LEAST_WASTE,
            clock=self.cluster.clock,
            orders={Strategy.LEAST_WASTE: self.order},
        )
        self.matrix.refresh(now=self.cluster.clock.now())

    def scores(self, pod: PodInfo) -> dict[str, int]:
        nodes = ("a", "b", "c", "d")
        asked = ExtenderArgs(pod=pod, node_names=nodes)
        return dict(zip(nodes, self.extender.prioritize(asked), strict=True))

    def quality(self, pod: PodInfo, *nodes: str) -> list[float] | None:
        assert pod.need is not None
        found = self.order.score(pod.need, HOST, self.matrix.rows_of(nodes))
        return None if found is None else found.tolist()


async def test_before_it_has_learnt_the_cards_own_scores_decide() -> None:
    wasting = Wasting()
    pod = pending(mib=12_000)

    assert wasting.quality(pod, "a", "b") is None
    assert pod.need is not None
    assert wasting.order.prefer(pod.need, HOST, "b") is None
    assert not wasting.order.learnt


async def test_it_learns_from_the_pods_that_live_and_fills_what_is_begun() -> None:
    wasting = Wasting()
    assert await WorkloadLearner(wasting.order).once()
    pod = pending(mib=12_000)

    found = wasting.quality(pod, "a", "b", "d")

    assert found is not None
    assert int(np.argmax(found)) == 1
    assert pod.need is not None
    assert wasting.order.prefer(pod.need, HOST, "b") == frozenset({CardUuid("GPU-b-1")})


async def test_the_card_is_chosen_among_those_that_are_not_closed_to_the_pod() -> None:
    wasting = Wasting()
    assert await WorkloadLearner(wasting.order).once()
    need = pending(mib=12_000).need
    assert need is not None
    rows = wasting.matrix.rows_of(("a", "b", "d"))
    one = {CardUuid("GPU-b-1"): "b", CardUuid("GPU-gone"): "gone"}
    both = {**one, CardUuid("GPU-b-0"): "b"}

    assert wasting.order.prefer(need, HOST, "b", closed=one) == frozenset({CardUuid("GPU-b-0")})
    assert wasting.order.prefer(need, HOST, "b", closed=both) is None
    closed, open_ = (wasting.order.score(need, HOST, rows, closed=found) for found in (both, {}))
    assert closed is not None
    assert open_ is not None
    assert (closed[1], open_[1]) == (0.0, 1.0)


async def test_pods_on_several_cards_get_none_that_is_closed_to_them() -> None:
    wasting = Wasting()
    assert await WorkloadLearner(wasting.order).once()
    wasting.cluster.add_node("e", some_cards("e", count=3))
    wasting.matrix.refresh(now=wasting.cluster.clock.now())
    need = pending(mib=12_000, cards=2).need
    assert need is not None
    closed = {CardUuid("GPU-e-0"): "e"}

    assert wasting.order.prefer(need, HOST, "e", closed=closed) == frozenset(
        {CardUuid("GPU-e-1"), CardUuid("GPU-e-2")}
    )


async def test_the_same_mix_is_not_learnt_twice_and_another_one_is() -> None:
    wasting = Wasting()

    assert await WorkloadLearner(wasting.order).once()
    assert not await WorkloadLearner(wasting.order).once()
    for n in range(3):
        pod = a_bound_gpu_pod(f"n{n}", node="d", mib=3_000)
        pod["metadata"]["uid"] = f"new-{n}"
        observed = decode_bound_pod(json.dumps(pod).encode())
        assert observed is not None
        wasting.order.observe(observed)
    assert await WorkloadLearner(wasting.order).once()


async def test_pods_of_several_containers_are_left_to_the_cards_scores() -> None:
    wasting = Wasting()
    await WorkloadLearner(wasting.order).once()
    pod = pending(mib=1000)
    assert pod.need is not None
    two = type(pod.need)(containers=pod.need.containers * 2)

    assert wasting.order.score(two, HOST, wasting.matrix.rows_of(["a"])) is None
    assert wasting.order.prefer(two, HOST, "a") is None


class TwoModels:
    """Two nodes of each of two models, empty."""

    def __init__(self) -> None:
        self.cluster = Harness("a", "b", cards=2)
        for name in ("x", "y"):
            cards = tuple(replace(card, model="NVIDIA T4") for card in some_cards(name, count=2))
            self.cluster.add_node(name, cards)
        self.order = LeastWasteOrder(
            self.cluster.matrix, self.cluster.bound_pods, now=self.cluster.clock.now
        )

    def runs(self, name: str, *, model: str, node: str) -> None:
        notes = {MODEL: model} if model else {}
        self.cluster.run(name, node=node, mib=12_000, annotations=notes)

    def learnt(self) -> dict[frozenset[str] | None, float]:
        self.order.learn_now()
        return {
            workload_class.demand.models: workload_class.frequency_ratio
            for workload_class in self.order.classes
        }


A30, T4 = frozenset({"NVIDIA A30"}), frozenset({"NVIDIA T4"})


def test_the_shipped_policy_learns_which_models_pods_accept() -> None:
    two = TwoModels()
    two.runs("any", model="", node="a")
    two.runs("named", model="NVIDIA T4", node="x")
    two.runs("glob", model="*T4*", node="y")
    two.runs("not", model="!*T4*", node="b")

    assert two.learnt() == {None: 0.25, T4: 0.5, A30: 0.25}


def test_pods_that_come_later_are_learnt_with_their_models_as_well() -> None:
    two = TwoModels()
    two.order.learn_now()
    two.cluster.handlers = ClusterEventHandlers(
        two.cluster.ledger,
        two.cluster.changes,
        two.cluster.bound_pods,
        nominations=two.cluster.nominations,
        on_new=two.order.observe,
    )
    for n in range(4):
        two.runs(f"p{n}", model="*T4*" if n % 2 else "", node="x")

    learnt = two.learnt()

    assert learnt.keys() == {None, T4}
    assert learnt[T4] == pytest.approx(0.5, abs=1e-3)


def test_a_model_that_joins_the_fleet_is_one_that_the_globs_of_earlier_pods_allow() -> None:
    two = TwoModels()
    two.runs("glob", model="!*A30*", node="x")
    assert two.learnt().keys() == {T4}
    cards = tuple(replace(card, model="NVIDIA L4") for card in some_cards("z", count=2))
    two.cluster.add_node("z", cards)

    assert two.learnt().keys() == {T4 | {"NVIDIA L4"}}


def test_pods_on_nodes_without_cards_are_no_part_of_the_mix() -> None:
    two = TwoModels()
    two.cluster.add_node("plain", ())
    two.runs("named", model="", node="a")
    plain = a_gpu_pod("cpu", nodeName="plain")
    plain["metadata"]["annotations"] = {}
    plain["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    two.cluster.api.put(plain)
    two.cluster.see("cpu")

    assert list(two.learnt()) == [None]
    assert [workload_class.demand.cards for workload_class in two.order.classes] == [1]


@pytest.mark.parametrize("cpu", ["10P", "9E", "9" * 300])
def test_a_pod_that_requests_more_cpu_than_there_is_anywhere_ends_nothing(cpu: str) -> None:
    """Whoever may create pods can write it, and name the node, so that no scheduler sees it."""
    two = TwoModels()
    two.runs("named", model="", node="a")
    for number in range(2):
        greedy = a_gpu_pod(f"greedy-{number}", nodeName="b")
        greedy["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
        two.cluster.api.put(greedy)
        two.cluster.see(f"greedy-{number}")
    two.order.learn_now()
    pod = pending(mib=12_000)

    found = two.order.score(pod.need, HOST, two.cluster.matrix.rows_of(["a", "b"]))

    assert found is not None


@asynccontextmanager
async def learning(wasting: Wasting, changes: ChangeSignal) -> AsyncIterator[None]:
    clock = wasting.cluster.clock
    async with asyncio.TaskGroup() as group:
        task = group.create_task(WorkloadLearner(wasting.order).run(clock, changes, every_s=60.0))
        await clock.advance(0.0)
        yield
        task.cancel()


async def test_nodes_that_a_request_asked_about_are_evaluated_anew_once_they_change() -> None:
    wasting = Wasting()
    wasting.order.learn_now(ahead=False)
    async with learning(wasting, ChangeSignal()):
        wasting.quality(pending(mib=7_000), "a", "b", "c", "d")
        states = wasting.order.states
        wasting.cluster.run("other", node="d", card=1, mib=5_000)

        await wasting.cluster.clock.advance(1.0)

        assert wasting.order.states > states
        states = wasting.order.states
        assert wasting.quality(pending(mib=7_000), "a", "b", "c", "d") is not None
        assert wasting.order.states == states


async def test_a_change_of_the_cluster_is_followed_at_once() -> None:
    wasting, changes = Wasting(), ChangeSignal()
    wasting.order.learn_now()
    async with learning(wasting, changes):
        wasting.quality(pending(mib=12_000), "a")
        states = wasting.order.states
        wasting.cluster.run("other", node="d", card=1, mib=5_000)
        changes.notify()

        await wasting.cluster.clock.advance(0.0)

        assert wasting.order.states > states


async def test_twice_as_many_pods_are_learnt_before_the_minute_is_over() -> None:
    wasting, changes = Wasting(), ChangeSignal()
    async with learning(wasting, changes):
        assert wasting.order.times_learnt == 1
        for number in range(2):
            wasting.cluster.run(f"quarter-{number}", node="d", card=number, mib=6_000)
        for pod in wasting.cluster.bound_pods.pods()[-2:]:
            wasting.order.observe(pod)
        changes.notify()

        await wasting.cluster.clock.advance(0.0)

        assert wasting.order.times_learnt == 2


class Counted(LeastWasteOrder):
    """Has three steps to take, and counts them."""

    taken = 0

    def catching_up(self) -> Iterator[None]:
        for _ in range(3):
            self.taken += 1
            yield


async def loop_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_no_step_is_taken_while_a_request_is_under_way_and_one_when_it_is_answered() -> None:
    wasting, activity = Wasting(), RequestActivity()
    order = Counted(wasting.matrix, wasting.cluster.bound_pods, now=wasting.cluster.clock.now)
    learner = WorkloadLearner(order, activity, rest_s=60.0)
    async with asyncio.TaskGroup() as group:
        with activity:
            group.create_task(learner.catch_up())
            await loop_turns()
            assert order.taken == 1  # it had begun when the request was noticed
        await loop_turns()
        assert order.taken == 2
        with activity:
            await loop_turns()
        await loop_turns()
        assert order.taken == 3
        with activity:
            pass


async def test_where_no_request_comes_steps_follow_each_other() -> None:
    wasting = Wasting()
    order = Counted(wasting.matrix, wasting.cluster.bound_pods, now=wasting.cluster.clock.now)

    await WorkloadLearner(order, rest_s=60.0).catch_up()

    assert order.taken == 3


async def test_a_request_that_takes_long_stops_no_step_for_longer_than_the_rest() -> None:
    wasting, activity = Wasting(), RequestActivity()
    order = Counted(wasting.matrix, wasting.cluster.bound_pods, now=wasting.cluster.clock.now)

    with activity:
        await WorkloadLearner(order, activity, rest_s=0.001).catch_up()

    assert order.taken == 3


async def test_without_the_library_the_log_says_so_and_pods_are_placed_by_pack() -> None:
    wasting = Wasting()
    wasting.order = LeastWasteOrder(
        wasting.matrix,
        wasting.cluster.bound_pods,
        now=wasting.cluster.clock.now,
        library=Library(None, "no such file"),
    )
    wasting.extender = Extender(
        wasting.cluster.matrix,
        strategy=lambda: Strategy.LEAST_WASTE,
        clock=wasting.cluster.clock,
        orders={Strategy.LEAST_WASTE: wasting.order},
    )
    with capture_logs() as logs:
        async with learning(wasting, ChangeSignal()):
            pass

    found = [entry for entry in logs if entry["event"] == "fill_not_compiled"]
    assert [(entry["problem"], entry["log_level"]) for entry in found] == [
        ("no such file", "warning")
    ]
    packed = Extender(
        wasting.cluster.matrix, strategy=lambda: Strategy.PACK, clock=wasting.cluster.clock
    )
    pod = pending(mib=12_000)
    asked = ExtenderArgs(pod=pod, node_names=("a", "b", "c", "d"))
    assert wasting.extender.prioritize(asked).tolist() == packed.prioritize(asked).tolist()
    assert wasting.scores(pod)["b"] == 10
