"""The core, without an API server, answers as the extender does."""

import json
from datetime import timedelta
from typing import Any

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.names import ASSIGNMENT
from fracgpu.placement.outcome import Placement
from fracgpu.placement.policies.least_waste.mix import Demand
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Slice
from fracgpu.state.move_object import MovePhase
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.reservation import claims_of
from fracgpu.units import Mib
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from scheduler.cache.event_handlers import decode_any_pod
from scheduler.core import SchedulerCore
from scheduler.extender.api import ExtenderArgs
from tests.fakes.clock import NOON, VirtualClock
from tests.support.gpu import (
    a_bound_gpu_pod,
    a_gpu_pod,
    a_sharing_node,
    refused_status,
    some_cards,
)
from tests.support.moves import a_beneficiary, move_of


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


def with_cpu(name: str, cpu: str, **pod: Any) -> bytes:
    body = a_gpu_pod(name, mib=1000, **pod)
    body["metadata"]["uid"] = name
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    return json.dumps(body).encode()


def test_a_pod_gets_no_cpu_that_is_kept_for_one_that_waits_for_cards() -> None:
    """Whatever pods have requested counts, also those without cards; the node has 64 CPUs."""
    core = a_core("a", "b")
    plain = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "20"}}}]}
    body = {"metadata": {"name": "x", "uid": "x"}, "spec": {"nodeName": "a", **plain}}
    core.handlers.pod_changed(
        Change(
            type=ChangeType.ADDED,
            key=ObjectKey("default", "x"),
            uid="x",
            resource_version="1",
            object=decode_any_pod(json.dumps(body).encode()),
        )
    )
    kept = a_beneficiary("GPU-a-0", held_until=NOON + timedelta(hours=1), cpu_milli=40_000)
    core.ledger.set_claims(
        claims_of(
            move_of(
                source=("a", "GPU-a-0"),
                target=("b", "GPU-b-0"),
                phase=MovePhase.VERIFYING,
                beneficiary=kept,
            )
        )
    )

    def passed(cpu: str) -> tuple[str, ...]:
        asked = ExtenderArgs(pod=decode_pod_info(with_cpu("p", cpu)), node_names=("a", "b"))
        return tuple(core.extender.filter(asked).passed)

    assert passed("4") == ("a", "b")
    assert passed("5") == ("b",)

    binding = decode_pod_info(with_cpu("q", "3"))
    slices = {"train": (Slice(card=CardUuid("GPU-a-1"), mib=Mib(1)),)}
    later = NOON + timedelta(minutes=1)
    core.ledger.assume(binding.record, node="a", assignment=slices, until=later, host=binding.host)
    assert core.host_left("a", "q") != core.host_left("a", "p")
    assert passed("1") == ("a", "b")
    assert passed("2") == ("b",)


def test_the_cluster_turns_over_once_pods_that_were_bound_are_deleted_as_fast_as_others_come() -> (
    None
):
    core = a_core("a", strategy=Strategy.LEAST_WASTE)
    core.least_waste.learn_now()

    def pod_changed(number: int, what: ChangeType) -> None:
        body = a_bound_gpu_pod(f"p{number}", node="a", mib=24_000)
        body["metadata"]["uid"] = f"uid-{number}"
        pod = decode_any_pod(json.dumps(body).encode())
        key = ObjectKey("default", f"p{number}")
        core.handlers.pod_changed(
            Change(type=what, key=key, uid=f"uid-{number}", resource_version="1", object=pod)
        )

    for number in range(60):
        pod_changed(number, ChangeType.ADDED)
    core.least_waste.learn_now()
    assert not core.least_waste.outdated
    for number in range(60):
        pod_changed(number, ChangeType.DELETED)
        pod_changed(number, ChangeType.DELETED)  # a deletion told twice counts once
    assert core.least_waste.outdated


def test_a_pod_for_which_no_node_is_found_is_learnt_once_and_not_again_when_it_is_bound() -> None:
    core = a_core("a", strategy=Strategy.LEAST_WASTE)

    def pod_changed(*, refused: bool = False, node: str = "") -> None:
        body = a_gpu_pod("p", mib=24_000, cards=2)
        body["metadata"]["uid"] = "uid-p"
        if refused:
            body["status"] = refused_status()
        if node:
            slices = [{"card": card.uuid, "mib": 24_000} for card in some_cards("a")[:2]]
            body["metadata"]["annotations"][ASSIGNMENT] = json.dumps({"train": slices})
            body["spec"]["nodeName"] = node
        core.handlers.pod_changed(
            Change(
                type=ChangeType.MODIFIED,
                key=ObjectKey("default", "p"),
                uid="uid-p",
                resource_version="1",
                object=decode_any_pod(json.dumps(body).encode()),
            )
        )

    def weights() -> dict[int, float]:
        core.least_waste.learn_now()
        return {one.demand.cards: one.frequency_ratio for one in core.least_waste.classes}

    core.least_waste.learn_now()
    core.least_waste.expect([Demand(cards=1, share_milli=500)])
    pod_changed()
    assert weights() == {1: 1.0}
    for _ in range(3):  # each change of a pod that waits is told
        pod_changed(refused=True)
    assert weights() == pytest.approx({1: 0.5, 2: 0.5}, rel=1e-3)
    pod_changed(node="a")
    assert weights() == pytest.approx({1: 0.5, 2: 0.5}, rel=1e-3)
