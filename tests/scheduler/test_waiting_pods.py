"""What keeps the waiting pods waiting, and for how long."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fracgpu import names
from fracgpu.placement.fit import Obstacle, refusal
from fracgpu.state.pod_info import PodInfo
from kube.informer import ChangeType
from scheduler.extender.gang_room import GANG_WORDS
from scheduler.fence import awaits_placement
from scheduler.metrics import Waiting, WaitReason
from tests.fakes.clock import NOON
from tests.support.core import a_need, a_pod_need, a_record
from tests.support.gpu import refused_status
from tests.support.page import PageCluster

GATES = [{"name": "queue"}]
CREATED = {"creationTimestamp": (NOON - timedelta(minutes=20)).isoformat()}


def counted(cluster: PageCluster) -> Mapping[WaitReason, int]:
    return {reason: waiting.pods for reason, waiting in cluster.board.waiting.by_reason().items()}


# As kube-scheduler 1.36 writes them; tests/e2e/test_real_waiting.py has it write them.
@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("1 Insufficient cpu, 1 Insufficient fracgpu.io/gpu-mem.", WaitReason.MEMORY),
        ("1 Insufficient fracgpu.io/gpu-slot, 1 node(s) had untolerated taint", WaitReason.COMPUTE),
        ("3 node(s) without a fitting card (2 wrong card model or size, 1 too few cards that fit "
         "together; fracgpu explain says more)", WaitReason.TOGETHER),
        ("3 node(s) without a fitting card (3 no shared cards known; fracgpu explain says more)",
         WaitReason.NO_CARDS),
        ("1 node(s) didn't match Pod's node affinity/selector.", WaitReason.NOT_CARDS),
        (f"2 Insufficient {names.GPU_MEM}, 3 {GANG_WORDS[0]} g, which waits", WaitReason.GANG),
    ],
)  # fmt: skip
def test_a_pod_waits_for_what_its_nearest_node_lacks(why: str, reason: WaitReason) -> None:
    cluster = PageCluster()
    cluster.pod("p", status=refused_status(f"0/3 nodes are available: {why}"))

    assert counted(cluster) == {reason: 1}


@pytest.mark.parametrize("obstacle", Obstacle)
def test_the_reasons_are_those_that_the_extender_gives(obstacle: Obstacle) -> None:
    cluster = PageCluster()
    cluster.pod("p", status=refused_status(refusal(Counter({obstacle: 3}))))

    assert counted(cluster) == {WaitReason[obstacle.name]: 1}


def test_a_pod_that_was_not_tried_or_cannot_be_read_says_so() -> None:
    cluster = PageCluster()
    cluster.pod("new")
    cluster.pod("odd", annotations={names.FRACTION: "half"})

    assert counted(cluster) == {WaitReason.NOT_TRIED: 1, WaitReason.REQUEST: 1}


@pytest.mark.parametrize("end", [{"what": ChangeType.DELETED}, {"on": "small"}])
def test_a_pod_that_has_a_node_or_is_gone_waits_no_more(end: Mapping[str, Any]) -> None:
    cluster = PageCluster()
    cluster.node("small")
    cluster.pod("p")

    cluster.pod("p", **end)

    assert counted(cluster) == {}


def test_the_longest_wait_is_that_of_the_pod_created_first() -> None:
    cluster = PageCluster()
    cluster.pod("young", meta={"creationTimestamp": NOON.isoformat()})
    cluster.pod("old", meta=CREATED)

    assert cluster.board.waiting.by_reason()[WaitReason.NOT_TRIED] == Waiting(
        pods=2, longest_s=1200
    )


async def test_a_gated_pod_waits_from_the_moment_its_gate_is_removed() -> None:
    cluster = PageCluster()
    cluster.pod("p", meta=CREATED, schedulingGates=GATES)
    assert counted(cluster) == {}

    cluster.pod("p", meta=CREATED)
    await cluster.advance(30)

    assert cluster.board.waiting.by_reason()[WaitReason.NOT_TRIED] == Waiting(pods=1, longest_s=30)


@pytest.mark.parametrize(
    ("pod", "awaits"),
    [
        (PodInfo(record=a_record("p")), False),
        (PodInfo(record=a_record("p"), need=a_pod_need(a_need(1))), True),
        (PodInfo(record=a_record("p"), need_problem="cannot be read"), True),
        (PodInfo(record=a_record("p", node="n"), need_problem="cannot be read"), False),
        (PodInfo(record=a_record("p", live=False), need=a_pod_need(a_need(1))), False),
        (PodInfo(record=replace(a_record("p"), terminating=True), need_problem="x"), False),
    ],
)
def test_a_pod_that_asks_for_a_card_awaits_it_even_if_its_request_cannot_be_read(
    pod: PodInfo, awaits: bool
) -> None:
    assert awaits_placement(pod) is awaits
