"""Every plan that is found really makes room, with few moves, and none is found for nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.room.card_table import CardTable
from fracgpu.disruption.room.search import MovablePod, PlannedMove, RoomPlan, find_room
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import Snapshot
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.making_room import a_small_pod
from tests.support.rebalancing import CARD_MIB, a_node

Held = Mapping[str, Mapping[str, Sequence[int]]]  # node → card → MiB of each pod on it


class FirstFit:
    """Moves any pod but the pinned ones, to the first other card with room.

    The waiting pod fits on the cards of one node, unless that is *refused*.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pinned: frozenset[str] = frozenset(),
        refused: frozenset[str] = frozenset(),
    ) -> None:
        self.snapshot = snapshot
        self.refused = refused
        self.pinned = pinned
        self.free = {
            uuid: int(card.free_mib)
            for node in snapshot.nodes.values()
            for uuid, card in node.cards.items()
        }

    def movable(self, card: CardUuid) -> Sequence[MovablePod]:
        info = self.snapshot.card(card)
        assert info is not None
        pods = [
            MovablePod(uid=uid, card=card, allocation=allocation, cost=float(allocation.mib))
            for uid in sorted(set(info.pods) - self.pinned)
            for allocation in [self.snapshot.pods[uid].by_card[card]]
        ]
        return sorted(pods, key=lambda pod: (pod.cost, pod.uid))

    def fits(self, node: str, cards: Sequence[CardUuid], moved: Sequence[MovablePod]) -> bool:
        of_node = self.snapshot.nodes[node].cards
        return node not in self.refused and all(card in of_node for card in cards)

    def target(
        self, pod: MovablePod, before: Sequence[PlannedMove], keep_off: frozenset[CardUuid]
    ) -> tuple[str, CardUuid] | None:
        taken = {move.card: move.pod.allocation.mib for move in before}
        for name, node in self.snapshot.nodes.items():
            for card in node.cards:
                left = self.free[card] - taken.get(card, 0)
                if card not in keep_off and card not in taken and left >= pod.allocation.mib:
                    return name, card
        return None


def _snapshot(held: Held) -> Snapshot:
    ledger = Ledger()
    for name, cards in held.items():
        ledger.set_node(a_node(name, *cards))
        for card, amounts in cards.items():
            for number, mib in enumerate(amounts):
                pod = a_small_pod(f"{card}.{number}", card, node=name, mib=mib)
                ledger.set_pod(pod.info.record)
    return ledger.snapshot(now=NOON)


def _search(  # noqa: PLR0913 - what there is, what waits, and what may not be
    held: Held,
    *,
    cards: int = 1,
    mib: int = CARD_MIB,
    pinned: frozenset[str] = frozenset(),
    among: Sequence[str] | None = None,
    away: Sequence[str] = (),
    refused: frozenset[str] = frozenset(),
) -> RoomPlan | None:
    """Search for room on the cards *among* all, while nodes *away* take no pods.

    The waiting pod may not run on nodes *refused*.
    """
    snapshot = _snapshot(held)
    snapshot = replace(
        snapshot,
        nodes={
            name: replace(info, node=replace(info.node, schedulable=name not in away))
            for name, info in snapshot.nodes.items()
        },
    )
    table = CardTable(snapshot.nodes)
    need = PodNeed(containers=(ContainerNeed(name="main", cards=cards, mib=Mib(mib)),))
    everywhere = np.ones(len(table.uuids), np.bool_)
    flags = everywhere if among is None else table.flags([CardUuid(card) for card in among])
    return find_room(table, need, FirstFit(snapshot, pinned, refused), cards=flags)


def _moved(plan: RoomPlan | None) -> list[str] | None:
    return sorted(move.pod.uid for move in plan.moves) if plan else None


def test_the_fewest_moves_win_then_the_least_memory() -> None:
    held = {
        "n1": {"a": [3000, 3000]},
        "n2": {"b": [9000]},
        "n3": {"c": [8000]},
        "n4": {"d": [12_000]},
    }
    assert _moved(_search(held)) == ["c.0"]


def test_a_share_needs_only_as_many_pods_moved_as_free_enough() -> None:
    held = {"n1": {"a": [10_000, 5000, 7000]}, "n2": {"b": [16_000]}}
    assert _moved(_search(held, mib=8000)) is None  # it fits on b already
    assert _moved(_search(held, mib=9000)) == ["a.2"]


def test_a_pod_without_a_target_stays_and_another_choice_is_tried() -> None:
    # The one pod of 11,000 would be enough, and has no target; two of 5,000 have.
    held = {
        "n1": {"a": [11_000, 5000, 5000]},
        "n2": {"b": [18_500]},
        "n3": {"c": [18_500]},
        "n4": {"d": [18_500]},
    }
    assert _moved(_search(held, mib=12_000)) == ["a.1", "a.2"]


def test_a_pinned_pod_is_never_moved() -> None:
    held = {"n1": {"a": [3000]}, "n2": {"b": [4000]}}
    assert _moved(_search(held)) == ["a.0"]
    assert _moved(_search(held, pinned=frozenset({"a.0"}))) == ["b.0"]
    assert _search(held, pinned=frozenset({"a.0", "b.0"})) is None


def test_only_cards_that_the_waiting_pod_may_get_are_freed() -> None:
    held = {"n1": {"a": [3000]}, "n2": {"b": [4000]}, "n3": {"c": [5000]}}

    assert _moved(_search(held, among=["b"])) == ["b.0"]
    assert _search(held, among=[]) is None
    assert _moved(_search(held, away=["n1"])) == ["b.0"]
    assert _search(held, away=["n1"], among=["a"]) is None


def test_a_pod_that_fits_on_a_node_that_takes_it_is_not_helped_by_moves() -> None:
    held: Held = {"n1": {"a": []}, "n2": {"b": []}, "n3": {"c": [3000]}}

    assert _search(held, refused=frozenset({"n1"})) is None
    assert _moved(_search(held, refused=frozenset({"n1", "n2"}))) == ["c.0"]


def test_one_large_pod_is_moved_rather_than_two_of_which_one_is_small() -> None:
    # The target has 9,500 MiB free: too little for the pod that waits, enough for the one of 9,000.
    held = {"n1": {"a": [9000, 1000, 13_000]}, "n2": {"b": [14_500]}, "n3": {"c": [18_000]}}
    assert _moved(_search(held, mib=10_000)) == ["a.0"]


def test_cards_of_two_nodes_are_not_one_room() -> None:
    held: Held = {"n1": {"a": []}, "n2": {"b": []}, "n3": {"c": [3000]}}
    assert _search(held, cards=2) is None


_cards = st.lists(st.integers(500, 14_000), max_size=3).filter(lambda pods: sum(pods) <= CARD_MIB)
_nodes = st.lists(st.lists(_cards, min_size=1, max_size=4), min_size=1, max_size=5)


@given(nodes=_nodes, cards=st.integers(1, 4), mib=st.sampled_from([6000, 12_000, 24_000]))
def test_a_plan_makes_the_room_it_promises_and_overfills_no_target(
    nodes: list[list[list[int]]], cards: int, mib: int
) -> None:
    held: dict[str, dict[str, list[int]]] = {
        f"n{row}": {f"c{row}-{column}": pods for column, pods in enumerate(node)}
        for row, node in enumerate(nodes)
    }
    plan = _search(held, cards=cards, mib=mib)
    if plan is None:
        return
    free = {card: CARD_MIB - sum(pods) for node in held.values() for card, pods in node.items()}
    assert 1 <= len(plan.moves) <= 3
    assert len(plan.cards) == len(set(plan.cards)) == cards
    assert set(plan.cards) <= held[plan.node].keys()
    for move in plan.moves:
        assert move.pod.card in plan.cards
        assert move.card not in plan.cards
        free[move.pod.card] += move.pod.allocation.mib
        free[move.card] -= move.pod.allocation.mib
    assert all(free[card] >= mib for card in plan.cards)
    assert min(free.values()) >= 0
