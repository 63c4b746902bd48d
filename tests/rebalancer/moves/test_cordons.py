"""Cordons: ours are written, renewed and removed; those of others stay."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from fracgpu import names
from fracgpu.cards.annotations import write_cordons
from fracgpu.cards.card import CardUuid, Cordon, CordonEffect, NodeCards
from fracgpu.state.card_hold import hold_of
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import UNDER_WAY, MovePhase
from kube.client import KubeClient
from kube.kinds import NODES, Kind
from rebalancer.moves.cordons import Cordons, DesiredCordons, desired_on
from rebalancer.moves.janitor import Janitor, Remedy, leftovers, no_longer_needed, what_to_do
from rebalancer.moves.steps import OwnerFacts
from rebalancer.moves.store import MoveStore
from simulator.demo.definitions import install_definitions
from tests.fakes.clock import NOON
from tests.support.moves import a_beneficiary
from tests.support.moving import cordons_of, make_cluster
from tests.support.rebalancing import (
    COOL_CARD,
    HOT_CARD,
    a_move,
    a_node,
    a_placed_pod,
    a_waiting_pod,
)
from tests.support.records import a_record

MINUTE = timedelta(minutes=1)
LASTING = 5 * MINUTE


def wanted(
    *repel: CardUuid, cool: tuple[CardUuid, ...] = (), avoid: tuple[CardUuid, ...] = ()
) -> DesiredCordons:
    return DesiredCordons(
        cordon=frozenset(repel),
        avoid=frozenset(avoid),
        cool=frozenset(cool),
        lasting=LASTING,
    )


def a_cordon(until: datetime, reason: str = "hot", card: CardUuid = HOT_CARD) -> Cordon:
    return Cordon(card=card, until=until, reason=reason)


def avoids(until: datetime, reason: str = "warm", card: CardUuid = HOT_CARD) -> Cordon:
    return replace(a_cordon(until, reason, card), effect=CordonEffect.PREFER_NO_SCHEDULE)


def a_cordoned(*cordons: Cordon) -> NodeCards:
    return replace(a_node("n1", HOT_CARD, COOL_CARD), cordons=cordons)


OURS = a_cordon(NOON + LASTING)
WARM = avoids(NOON + LASTING)


@pytest.mark.parametrize(
    ("there", "want", "after"),
    [
        ((), wanted(), None),
        ((), wanted(HOT_CARD), (OURS,)),
        ((), wanted(CardUuid("GPU-of-another-node")), None),
        ((OURS,), wanted(HOT_CARD), None),
        # renewed in the second half of its life
        ((a_cordon(NOON + 2 * MINUTE),), wanted(HOT_CARD), (OURS,)),
        ((a_cordon(NOON + 3 * MINUTE),), wanted(HOT_CARD), None),
        # removed at once if the card is known to be cool, else left to expire
        ((OURS,), wanted(cool=(HOT_CARD,)), ()),
        ((OURS,), wanted(), None),
        ((a_cordon(NOON - MINUTE),), wanted(), ()),
        # others
        ((a_cordon(NOON + MINUTE, "maintenance"),), wanted(HOT_CARD), None),
        ((a_cordon(NOON + MINUTE, "maintenance"),), wanted(cool=(HOT_CARD,)), None),
        ((a_cordon(NOON - MINUTE, "maintenance"),), wanted(HOT_CARD), (OURS,)),
        (
            (a_cordon(NOON + MINUTE, "maintenance", COOL_CARD),),
            wanted(HOT_CARD),
            (a_cordon(NOON + MINUTE, "maintenance", COOL_CARD), OURS),
        ),
        # first avoided, then closed at once; not opened to be avoided before the cordon expires
        ((), wanted(avoid=(HOT_CARD,)), (WARM,)),
        ((WARM,), wanted(avoid=(HOT_CARD,)), None),
        ((avoids(NOON + 2 * MINUTE),), wanted(avoid=(HOT_CARD,)), (WARM,)),
        ((WARM,), wanted(HOT_CARD), (OURS,)),
        ((a_cordon(NOON + MINUTE),), wanted(avoid=(HOT_CARD,)), None),
        ((a_cordon(NOON),), wanted(avoid=(HOT_CARD,)), (WARM,)),
        ((OURS,), wanted(avoid=(HOT_CARD,), cool=(HOT_CARD,)), (WARM,)),
        # a card that is cool again is avoided until its entry expires
        ((WARM,), wanted(cool=(HOT_CARD,)), None),
        ((avoids(NOON),), wanted(cool=(HOT_CARD,)), ()),
        # others
        ((a_cordon(NOON + MINUTE, "maintenance"),), wanted(avoid=(HOT_CARD,)), None),
        ((avoids(NOON + MINUTE, "maintenance"),), wanted(avoid=(HOT_CARD,)), None),
        ((avoids(NOON + MINUTE, "maintenance"),), wanted(HOT_CARD), (OURS,)),
    ],
)
def test_what_should_stand_on_a_node(
    there: tuple[Cordon, ...], want: DesiredCordons, after: tuple[Cordon, ...] | None
) -> None:
    assert desired_on(a_cordoned(*there), want, now=NOON) == after


@pytest.fixture
async def nodes(kube: KubeClient) -> dict[str, NodeCards]:
    await make_cluster(kube)
    return {"n1": a_node("n1", HOT_CARD), "n2": a_node("n2", COOL_CARD)}


async def test_what_another_wrote_since_our_last_news_is_kept(
    kube: KubeClient, nodes: dict[str, NodeCards]
) -> None:
    theirs = write_cordons([a_cordon(NOON + MINUTE, "maintenance", CardUuid("GPU-x"))])
    patch = {"metadata": {"annotations": {"fracgpu.io/cordons": theirs}}}
    await kube.patch(NODES, "n1", patch)

    await Cordons(kube).publish(nodes, wanted(HOT_CARD), now=NOON)

    assert await cordons_of(kube, "n1") == {HOT_CARD: "hot", "GPU-x": "maintenance"}


def test_cordons_that_cannot_be_read_become_one_of_each_card_that_is_not_known_to_be_cool() -> None:
    node = replace(a_cordoned(), unreadable={"fracgpu.io/cordons": "no JSON"})

    assert desired_on(node, wanted(cool=(COOL_CARD,)), now=NOON) == (OURS,)
    assert desired_on(node, wanted(cool=(COOL_CARD, HOT_CARD)), now=NOON) == ()


async def test_garbage_in_the_annotation_is_replaced(
    kube: KubeClient, nodes: dict[str, NodeCards]
) -> None:
    await kube.patch(NODES, "n1", {"metadata": {"annotations": {"fracgpu.io/cordons": "{"}}})

    await Cordons(kube).publish(nodes, wanted(HOT_CARD), now=NOON)

    assert await cordons_of(kube, "n1") == {HOT_CARD: "hot"}


async def test_a_node_that_is_gone_is_named_and_the_others_are_written(
    kube: KubeClient, nodes: dict[str, NodeCards]
) -> None:
    nodes = {"a-gone-node": replace(a_node("a-gone-node", "GPU-gone")), **nodes}
    want = wanted(CardUuid("GPU-gone"), HOT_CARD)

    failed = await Cordons(kube).publish(nodes, want, now=NOON)

    assert failed == ["a-gone-node"]
    assert await cordons_of(kube, "n1") == {HOT_CARD: "hot"}


class Meddled(KubeClient):
    """A client with a concurrent writer that changes a node right after each read of it."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes:
        body = await super().get(kind, name, namespace=namespace)
        theirs = write_cordons([a_cordon(NOON + MINUTE, "maintenance", CardUuid("GPU-x"))])
        patch = {"metadata": {"annotations": {"fracgpu.io/cordons": theirs}}}
        await self.patch(kind, name, patch)
        return body


async def test_a_write_between_our_read_and_our_write_is_not_lost(
    kube: KubeClient, nodes: dict[str, NodeCards]
) -> None:
    meddled = Meddled(kube.transport)

    failed = await Cordons(meddled).publish(nodes, wanted(HOT_CARD), now=NOON)

    assert failed == ["n1"]
    assert await cordons_of(kube, "n1") == {"GPU-x": "maintenance"}


RELEASED = a_placed_pod("pod-a", annotations={names.MOVED_BY: "m"})
NOTICED = a_placed_pod("pod-b", annotations={names.NOTICE: "2026-01-05T12:00:00Z"})
PLAIN = a_placed_pod("pod-c")
HAS_ALL = OwnerFacts(there=True, observed=True, desired=2, ready=2)
MISSES_ONE = OwnerFacts(there=True, observed=True, desired=2, ready=1)


@pytest.mark.parametrize("phase", MovePhase)
def test_marks_without_a_move_under_way_are_leftovers(phase: MovePhase) -> None:
    record = a_record(phase, move=a_move(pod_uid="pod-a"))

    found = leftovers([RELEASED, NOTICED, PLAIN], [record])

    assert found == ([NOTICED] if phase in UNDER_WAY else [RELEASED, NOTICED])


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
    store = MoveStore(kube)
    janitor = Janitor(kube, store)
    old, young = NOON - timedelta(days=8), NOON - timedelta(days=6)
    await janitor.sweep([], now=NOON)
    for uid, when in (("old", old), ("young", young)):
        ended = a_record(MovePhase.DONE, move=a_move(pod_uid=uid), now=when, phase_since=when)
        await store.put(ended)

    await janitor.sweep([], now=NOON + timedelta(seconds=59))
    assert len(store.moves) == 2
    await janitor.sweep([], now=NOON + timedelta(seconds=60))

    assert [record.spec.pod.uid for record in store.moves] == ["young"]
    await store.load()
    assert len(store.moves) == 1


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
    store = MoveStore(kube)
    janitor = Janitor(kube, store)
    await store.put(HOLDING)

    await janitor.end_holds({}, now=NOON)
    await janitor.end_holds({}, now=NOON + timedelta(seconds=15))

    await store.load()
    (record,) = store.moves
    assert record.status.held_until == NOON
    hold = hold_of(record)
    assert hold is not None
    assert hold.until == NOON
