"""What is a leftover of a move, and what becomes of it; the rest is in test_surging.py."""

from datetime import timedelta

import pytest

from fracgpu import names
from fracgpu.disruption.move import UNDER_WAY
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MovePhase
from kube.client import KubeClient
from rebalancer.moves.janitor import Janitor, Remedy, leftovers, no_longer_needed, what_to_do
from rebalancer.moves.steps import OwnerFacts
from rebalancer.moves.store import MoveStore
from simulator.demo.definitions import install_definitions
from tests.fakes.clock import NOON
from tests.support.making_room import a_waiting_pod
from tests.support.moves import a_beneficiary
from tests.support.rebalancing import a_move, a_placed_pod
from tests.support.records import a_record

RELEASED = a_placed_pod("pod-a", annotations={names.MOVED_BY: "m"})
TOLD = a_placed_pod("pod-b", annotations={names.NOTICE: "2026-01-05T12:00:00Z"})
PLAIN = a_placed_pod("pod-c")
HAS_ALL = OwnerFacts(there=True, observed=True, desired=2, ready=2)
MISSES_ONE = OwnerFacts(there=True, observed=True, desired=2, ready=1)


@pytest.mark.parametrize("phase", MovePhase)
def test_marks_without_a_move_under_way_are_leftovers(phase: MovePhase) -> None:
    record = a_record(phase, move=a_move(pod_uid="pod-a"))

    found = leftovers([RELEASED, TOLD, PLAIN], [record])

    assert found == ([TOLD] if phase in UNDER_WAY else [RELEASED, TOLD])


@pytest.mark.parametrize(
    ("owner", "released", "orphaned", "remedy"),
    [
        (HAS_ALL, True, False, Remedy.EVICT),
        (MISSES_ONE, True, False, Remedy.RESTORE),
        (OwnerFacts(there=True, desired=2, ready=2), True, False, Remedy.RESTORE),  # an older spec
        (HAS_ALL, False, False, Remedy.WAIT),
        (MISSES_ONE, False, False, Remedy.WAIT),
        (OwnerFacts(there=False), True, False, Remedy.EVICT),
        (OwnerFacts(there=False), False, False, Remedy.EVICT),
        (OwnerFacts(there=False), True, True, Remedy.RESTORE),
        (OwnerFacts(there=False), False, True, Remedy.RESTORE),
    ],
)
def test_a_pod_without_a_controller_goes_only_if_nobody_misses_it(
    owner: OwnerFacts, released: bool, orphaned: bool, remedy: Remedy
) -> None:
    assert what_to_do(owner, released=released, orphaned=orphaned) is remedy


async def test_old_moves_are_forgotten_once_a_minute(kube: KubeClient) -> None:
    await install_definitions(kube)
    store = MoveStore(kube, guard=lambda: None)
    janitor = Janitor(kube, store, guard=lambda: None)
    old, young = NOON - timedelta(days=8), NOON - timedelta(days=6)
    await janitor.sweep([], now=NOON)
    for uid, when in (("old", old), ("young", young)):
        ended = a_record(MovePhase.DONE, move=a_move(pod_uid=uid), now=when, phase_since=when)
        await store.put(ended)

    await janitor.sweep([], now=NOON + timedelta(seconds=59))
    assert len(store.records) == 2
    await janitor.sweep([], now=NOON + timedelta(seconds=60))

    assert [record.spec.pod.uid for record in store.records] == ["young"]
    await store.load()
    assert len(store.records) == 1


LATER = NOON + timedelta(minutes=30)
HOLDING = a_record(
    MovePhase.DONE,
    move=a_move(beneficiary=a_beneficiary("GPU-hot", uid="big", held_until=LATER)),
)


@pytest.mark.parametrize(
    ("pods", "ended"),
    [
        ([a_waiting_pod("big")], False),
        ([a_waiting_pod("big", node="n1")], True),  # it is placed; and may end soon
        ([a_waiting_pod("another")], True),  # it was deleted
    ],
)
def test_cards_are_kept_no_longer_than_the_pod_waits(pods: list[PlacedPod], ended: bool) -> None:
    by_uid = {pod.uid: pod for pod in pods}

    found = no_longer_needed([HOLDING], by_uid, now=NOON)

    assert found == ([HOLDING] if ended else [])
    assert no_longer_needed([HOLDING], by_uid, now=LATER) == []


async def test_the_end_of_a_hold_is_written_into_the_move(kube: KubeClient) -> None:
    await install_definitions(kube)
    store = MoveStore(kube, guard=lambda: None)
    janitor = Janitor(kube, store, guard=lambda: None)
    await store.put(HOLDING)

    await janitor.end_holds({}, now=NOON)
    await janitor.end_holds({}, now=NOON + timedelta(seconds=15))

    await store.load()
    (record,) = store.records
    assert record.status.held_until == NOON
    beneficiary = record.past().move.beneficiary
    assert beneficiary is not None
    assert beneficiary.held_until == NOON
