"""A pod of a Deployment gets its replacement first; others are evicted first."""

import pytest

from fracgpu.disruption.candidates import mode_of
from fracgpu.request.need import Rebalance
from fracgpu.state.move_object import MoveMode
from tests.support.rebalancing import a_placed_pod

HASHED = {"pod-template-hash": "5d4f8c"}


def test_a_pod_of_a_deployment_is_replaced_first() -> None:
    assert mode_of(a_placed_pod("a", labels=HASHED).info) is MoveMode.SURGE


@pytest.mark.parametrize(
    "owner",
    [None, ("StatefulSet", "db", "u"), ("Job", "train", "u"), ("ReplicationController", "rc", "u")],
)
def test_what_is_not_of_a_replicaset_is_evicted(owner: tuple[str, str, str] | None) -> None:
    assert mode_of(a_placed_pod("a", labels=HASHED, owner=owner).info) is MoveMode.EVICT


def test_a_bare_replicaset_selects_by_no_hash_so_its_pod_is_evicted() -> None:
    assert mode_of(a_placed_pod("a").info) is MoveMode.EVICT


def test_a_pod_that_asks_for_a_surge_gets_one_where_there_can_be_one() -> None:
    asked = a_placed_pod("a", labels=HASHED, rebalance=Rebalance.SURGE)
    assert mode_of(asked.info) is MoveMode.SURGE


def test_the_author_may_choose_eviction() -> None:
    chosen = a_placed_pod("a", labels=HASHED, rebalance=Rebalance.EVICT)
    assert mode_of(chosen.info) is MoveMode.EVICT
