"""The core, without an API server, answers as the extender does."""

import json

from fracgpu.placement.outcome import Placement
from fracgpu.request.need import Strategy
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from scheduler.core import SchedulerCore
from scheduler.extender.api import ExtenderArgs
from tests.fakes.clock import VirtualClock
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards


def a_core(*nodes: str, strategy: Strategy = Strategy.PACK) -> SchedulerCore:
    core = SchedulerCore(strategy=lambda: strategy, clock=VirtualClock())
    for name in nodes:
        node = read_node(json.dumps(a_sharing_node(name, cards=some_cards(name))).encode())
        key = ObjectKey("", name)
        core.handlers.node_changed(
            Change(type=ChangeType.ADDED, key=key, uid=name, resource_version="1", object=node)
        )
    return core


def pending(mib: int = 1000) -> PodInfo:
    return decode_pod_info(json.dumps(a_gpu_pod("p", mib=mib)).encode())


def test_the_best_node_is_the_one_with_ten_points() -> None:
    core = a_core("a", "b", "c")
    asked = ExtenderArgs(pod=pending(), node_names=("a", "b", "c"))

    scores = core.extender.prioritize(asked).tolist()

    assert core.best_node(pending(), ("a", "b", "c")) == "abc"[scores.index(10)]


def test_where_nothing_fits_there_is_no_best_node() -> None:
    core = a_core("a")

    assert core.best_node(pending(mib=30_000), ("a",)) is None
    assert core.best_node(pending(), ("unknown",)) is None
    assert core.best_node(pending(), ()) is None


def test_a_pod_that_asks_nothing_of_us_has_no_best_node_and_no_cards() -> None:
    core = a_core("a")
    plain = decode_pod_info(b'{"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}')

    assert core.best_node(plain, ("a",)) is None
    assert core.cards_on(plain, "a") is None


def test_the_cards_are_those_that_a_binding_would_name() -> None:
    core = a_core("a", strategy=Strategy.LEAST_WASTE)
    core.least_waste.learn_now()

    answer = core.cards_on(pending(), "a")

    assert isinstance(answer, Placement)
    assert [claim.card for claim in answer.assignment["train"]] == ["GPU-a-0"]
    assert core.cards_on(pending(), "unknown") is None
