"""The mixed cluster is what its description says."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.extender.mixed_cluster import (
    KINDS,
    MixedCluster,
    mixed_pending_pod,
    unseen_pending_pod,
)
from benchmarks.fixtures.canned_api import CARDS
from fracgpu.state.bound_pod import decode_bound_pod
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import decode_pod_info
from process.clock import SystemClock

NODES, PODS = 30, 20


def free_mib(node: int) -> list[int]:
    cluster = MixedCluster()
    cards = read_node(json.dumps(cluster.node(node)).encode()).cards
    free: dict[str, int] = {card.uuid: card.capacity_mib for card in cards}
    for number in range(PODS):
        pod = decode_bound_pod(json.dumps(cluster.bound_pod(node, number, PODS)).encode())
        assert pod is not None
        for card, allocation in pod.allocation.by_card.items():
            free[card] -= allocation.mib
    return sorted(free.values())


def test_no_card_has_more_pods_than_it_has_room_and_every_node_is_different() -> None:
    free = [free_mib(node) for node in range(NODES)]

    assert all(len(cards) == CARDS and cards[0] >= 0 for cards in free)
    assert len({tuple(cards) for cards in free}) == NODES


def test_there_are_two_models_and_some_cards_are_cordoned_and_some_nodes_closed() -> None:
    nodes = [read_node(json.dumps(MixedCluster().node(node)).encode()) for node in range(NODES)]

    assert len({node.cards[0].model for node in nodes}) == 2
    assert any(node.cordoned(now=SystemClock().now()) for node in nodes)
    assert 0 < sum(not node.schedulable for node in nodes) < NODES / 2


@pytest.mark.parametrize(
    ("pod_of", "kinds"), [(mixed_pending_pod, KINDS), (unseen_pending_pod, 200)]
)
def test_pending_pods_are_of_twenty_kinds_or_all_unlike_each_other(
    pod_of: Callable[[int], dict[str, Any]], kinds: int
) -> None:
    pods = [decode_pod_info(json.dumps(pod_of(number)).encode()) for number in range(200)]

    assert len({(pod.need, str(pod.record.containers)) for pod in pods}) == kinds
