"""What a plan has to prove, one part at a time."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.load_history import LoadHistory
from fracgpu.disruption.methods import make_room
from fracgpu.disruption.move import HeldBack, HoldReason
from fracgpu.disruption.policy import MakeRoom
from fracgpu.disruption.room.card_table import CardTable
from fracgpu.disruption.room.prover import StateProver, held_for, room_context
from fracgpu.disruption.room.search import MovablePod, PlannedMove, RoomPlan, find_room
from fracgpu.k8s.node_affinity import NodeExpression, NodeRules
from fracgpu.k8s.resources import PODS
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from fracgpu.k8s.scheduling.constraints import SchedulingConstraints
from fracgpu.k8s.scheduling.objects import SchedulingNode
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import MovePhase
from fracgpu.state.snapshot import NodeInfo, Snapshot
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.core import a_card, a_node_info
from tests.support.moves import a_beneficiary
from tests.support.rebalancing import (
    ACTIVE,
    CARD_MIB,
    a_cluster,
    a_move,
    a_node,
    a_past_move,
    a_reading,
    a_small_pod,
    a_waiting_pod,
    begun,
)

HELD = {"n1": {"a0": 4000}, "n2": {"b0": 8000, "b1": 2000}}


def prover(state: DisruptionState, waiting: PlacedPod | None = None, **policy: Any) -> StateProver:
    context = room_context(state, policy=replace(ACTIVE, **policy), now=NOON)
    return StateProver(context, waiting or a_waiting_pod())


def target_of(state: DisruptionState, card: str = "a0", **policy: Any) -> str | None:
    asked = prover(state, **policy)
    (pod,) = asked.movable(CardUuid(card))
    found = next(asked.targets(pod, frozenset({CardUuid(card)})), None)
    return found[1] if found else None


def test_the_target_is_the_one_that_the_clusters_strategy_prefers() -> None:
    state = a_cluster(HELD)
    assert target_of(state) == "b0"
    assert target_of(replace(state, strategy=Strategy.SPREAD)) == "b1"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"readings": {"b0": a_reading(0.55)}}, id="it would be busier than allowed"),
        pytest.param({"readings": {"b0": None}}, id="it is not measured"),
        pytest.param(
            {"readings": {"b0": replace(a_reading(0.1), repeating=True)}},
            id="what is measured of it repeats itself",
        ),
        pytest.param(
            {"readings": {"b0": replace(a_reading(0.1), history_ratio=0.7)}},
            id="it has not been measured for long",
        ),
        pytest.param(
            {"readings": {"b0": replace(a_reading(0.1), free_mib=Mib(4100))}},
            id="it has less free memory than the ledger says",
        ),
    ],
)
def test_a_card_that_would_not_stay_cool_is_no_target(change: dict[str, Any]) -> None:
    assert target_of(a_cluster(HELD, **change)) == "b1"


def test_a_card_that_was_often_busy_is_no_target_though_it_is_calm_on_average() -> None:
    state = a_cluster({**HELD, "n2": {"b0": 8000, "b1": 0}}, readings={"b0": a_reading(0.3)})
    assert target_of(state) == "b0"
    (uid,) = state.snapshot.card(CardUuid("b0")).pods  # type: ignore[union-attr]
    busy = np.array([[0.0, 0.8] * 18])
    often = LoadHistory(rows={uid: 0}, busy=busy, full=np.zeros(busy.shape, np.bool_))
    assert target_of(replace(state, history=often)) != "b0"


def test_a_pod_that_is_not_measured_counts_with_all_that_its_card_does() -> None:
    busy = {"a0": a_reading(0.55)}
    assert target_of(a_cluster(HELD, readings=busy)) is None
    measured = {"a0": a_reading(0.55, pods={"p-a0": 0.1})}
    assert target_of(a_cluster(HELD, readings=measured)) == "b0"


def test_a_card_that_the_owner_left_or_that_has_just_been_a_target_is_none() -> None:
    left = a_past_move(minutes_ago=30, source=CardUuid("b0"), owner_uid="owner-p-a0")
    joined = a_past_move(minutes_ago=5, target=CardUuid("b1"))
    roomy: dict[str, Any] = {
        "owner_cooldown_s": 60,
        "max_per_namespace_per_hour": 9,
    }
    assert target_of(a_cluster(HELD, past=[left]), **roomy) == "b1"
    assert target_of(a_cluster(HELD, past=[left, joined]), **roomy) is None


def test_a_move_that_was_only_shown_keeps_no_card_from_one_that_is_made() -> None:
    made = a_past_move(minutes_ago=30, source=CardUuid("b0"), owner_uid="owner-p-a0")
    shown = begun(made.spec, minutes_ago=30, phase=MovePhase.RECOMMENDED)
    assert target_of(a_cluster(HELD, past=[shown])) == "b0"


def test_a_node_that_the_pod_may_not_run_on_is_no_target() -> None:
    elsewhere = NodeExpression(key="zone", operator="In", values=("far",))
    nowhere = SchedulingConstraints(node=NodeRules(selector=(elsewhere,)))
    pod = a_small_pod("p", "a0", node="n1", rules=nowhere)
    assert target_of(a_cluster({"n1": {"a0": 0}, "n2": HELD["n2"]}, pod)) is None


def test_the_waiting_pod_fits_only_on_the_cards_that_are_meant_for_it() -> None:
    state = a_cluster({"n1": {"a0": 4000, "a1": 0}})
    asked = prover(state)
    (pod,) = asked.movable(CardUuid("a0"))
    assert asked.fits("n1", [CardUuid("a1")], ())
    assert not asked.fits("n1", [CardUuid("a0")], ())
    assert asked.fits("n1", [CardUuid("a0")], (pod,))


def test_the_waiting_pod_needs_cpu_on_the_node_once_the_moved_pods_have_left() -> None:
    def fits(asked_milli: int, *, leaves: bool) -> bool:
        asks = SchedulingConstraints(requests=(("cpu", asked_milli),))
        has = SchedulingConstraints(requests=(("cpu", 3000),))
        pod = a_small_pod("p", "a0", node="n1", rules=has)
        waiting = a_waiting_pod(rules=asks, mib=4000)
        state = a_cluster({"n1": {"a0": 0}}, pod, waiting)
        node = SchedulingNode(name="n1", allocatable={"cpu": 8000, PODS: 10})
        state = replace(state, scheduling=SchedulingCluster([node], [pod.scheduled]))
        asked = prover(state, waiting)
        gone = tuple(asked.movable(CardUuid("a0"))) if leaves else ()
        return asked.fits("n1", [CardUuid("a0")], gone)

    assert fits(5000, leaves=False)
    assert not fits(6000, leaves=False)
    assert fits(8000, leaves=True)
    assert not fits(8001, leaves=True)


def test_a_pod_that_the_budgets_hold_back_is_not_moved() -> None:
    lately = a_past_move(minutes_ago=5, owner_uid="owner-p-a0")
    assert prover(a_cluster(HELD)).movable(CardUuid("a0"))
    assert prover(a_cluster(HELD, past=[lately])).movable(CardUuid("a0")) == []


def test_a_pod_larger_than_any_room_elsewhere_is_not_weighed() -> None:
    held = {"n1": {"a0": 4000}, "n2": {"b0": 20_001}}
    assert [len(prover(a_cluster(held)).movable(CardUuid(card))) for card in ("a0", "b0")] == [1, 0]


def test_two_replacements_are_put_on_one_node_only_if_it_takes_both() -> None:
    def beside(cpu: int) -> bool:
        asks = SchedulingConstraints(requests=(("cpu", 3000),))
        pods = [a_small_pod(name, "a0", node="n1", mib=2000, rules=asks) for name in ("p", "q")]
        state = a_cluster({"n1": {"a0": 0}, "n2": {"b0": 0, "b1": 0}}, *pods)
        nodes = [
            SchedulingNode(name=name, allocatable={"cpu": cpu, PODS: 10}) for name in ("n1", "n2")
        ]
        cluster = SchedulingCluster(nodes, [pod.scheduled for pod in pods])
        asked = prover(replace(state, scheduling=cluster))
        first, second = asked.movable(CardUuid("a0"))
        node, card = next(asked.targets(first, frozenset({CardUuid("a0")})))
        assert node == "n2"
        return asked.fits_beside(second, "n2", [PlannedMove(pod=first, node=node, card=card)])

    assert beside(6000)
    assert not beside(5999)


def test_what_a_restart_takes_is_a_part_of_what_a_move_costs() -> None:
    slow = a_small_pod("slow", "a0", node="n1", mib=2000)
    started = slow.info.started_at
    assert started is not None
    slow = replace(slow, info=replace(slow.info, ready_at=started + timedelta(minutes=30)))
    quick = a_small_pod("quick", "a0", node="n1", mib=9000)
    asked = prover(a_cluster({"n1": {"a0": 0}, "n2": {"b0": 0}}, slow, quick))
    assert [pod.uid for pod in asked.movable(CardUuid("a0"))] == ["quick", "slow"]


def test_a_pod_that_is_on_its_way_is_not_moved_again() -> None:
    on_its_way = a_past_move(minutes_ago=1, under_way=True, pod_uid="p-a0", owner_uid="other")
    assert prover(a_cluster(HELD, past=[on_its_way])).movable(CardUuid("a0")) == []


def test_the_context_is_built_once_for_one_state() -> None:
    state = a_cluster(HELD)
    first = room_context(state, policy=ACTIVE, now=NOON)
    assert room_context(state, policy=ACTIVE, now=NOON) is first
    assert room_context(replace(state), policy=ACTIVE, now=NOON) is not first


def test_fifty_waiting_pods_cost_few_looks_at_a_thousand_nodes() -> None:
    """Few nodes are tried for each, and each pod that might be moved is asked about once."""
    nodes = {f"n{row}": {f"n{row}-{column}": 0 for column in range(8)} for row in range(1000)}
    pods = [
        a_small_pod(f"{card}-{number}", card, node=node, mib=6600)
        for node, cards in nodes.items()
        for card in cards
        for number in range(3)
    ]
    waiting = [
        a_waiting_pod(f"w{number}", cards=(1, 2, 4, 8)[number % 4], mib=CARD_MIB)
        for number in range(50)
    ]
    state = a_cluster(nodes, pods=[*pods, *waiting])
    policy = replace(ACTIVE, make_room=MakeRoom.ACTIVE)
    held: list[HeldBack] = []

    for pod in waiting:
        assert make_room.plan_for(state, pod.uid, held, policy=policy, now=NOON) == ()

    assert [one.reason for one in held] == [HoldReason.NO_ROOM] * 50
    context = room_context(state, policy=policy, now=NOON)
    assert 50 <= context.asked <= 2000  # 36 for each; every pod of every card would be 24,000


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
            MovablePod(
                uid=uid, owner=uid, card=card, allocation=allocation, cost=float(allocation.mib)
            )
            for uid in sorted(set(info.pods) - self.pinned)
            for allocation in [self.snapshot.pods[uid].by_card[card]]
        ]
        return sorted(pods, key=lambda pod: (pod.cost, pod.uid))

    def fits(self, node: str, cards: Sequence[CardUuid], moved: Sequence[MovablePod]) -> bool:
        of_node = self.snapshot.nodes[node].cards
        return node not in self.refused and all(card in of_node for card in cards)

    def targets(
        self, pod: MovablePod, keep_off: frozenset[CardUuid]
    ) -> Iterator[tuple[str, CardUuid]]:
        for name, node in self.snapshot.nodes.items():
            for card in node.cards:
                if card not in keep_off and self.free[card] >= pod.allocation.mib:
                    yield name, card

    def fits_beside(self, pod: MovablePod, node: str, before: Sequence[PlannedMove]) -> bool:
        return True


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
    most_moves: int = 3,
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
    table = CardTable(SnapshotIndex().matrix(snapshot))
    need = PodNeed(containers=(ContainerNeed(name="main", cards=cards, mib=Mib(mib)),))
    everywhere = np.ones(len(table.uuids), np.bool_)
    flags = everywhere if among is None else table.flags([CardUuid(card) for card in among])
    prover = FirstFit(snapshot, pinned, refused)
    return find_room(table, need, prover, cards=flags, most_moves=most_moves)


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


def _fewest_moves(
    held: Mapping[str, Mapping[str, Sequence[int]]], *, cards: int, mib: int, most: int
) -> int | None:
    """Try every choice of cards of one node, pods on them and targets; None if none makes room."""
    free = {card: CARD_MIB - sum(pods) for node in held.values() for card, pods in node.items()}
    found = []
    for node in held.values():
        for chosen in combinations(node, cards):
            pods = [(card, size) for card in chosen for size in node[card]]
            others = [card for card in free if card not in chosen]
            for moves in range(most + 1):
                for moved in combinations(pods, moves):
                    left = Counter({card: free[card] for card in chosen})
                    left.update(dict.fromkeys(chosen, 0))
                    for card, size in moved:
                        left[card] += size
                    if min(left.values()) >= mib and any(
                        all(free[card] >= size for card, (_, size) in zip(to, moved, strict=True))
                        for to in permutations(others, moves)
                    ):
                        found.append(moves)
    return min(found, default=None)


@settings(deadline=None)
@given(nodes=_nodes, cards=st.integers(1, 3), mib=st.sampled_from([6000, 12_000, 24_000]))
def test_no_plan_moves_more_pods_than_the_best_of_any_one_node(
    nodes: list[list[list[int]]], cards: int, mib: int
) -> None:
    held: dict[str, dict[str, list[int]]] = {
        f"n{row}": {f"c{row}-{column}": pods for column, pods in enumerate(node)}
        for row, node in enumerate(nodes)
    }
    fewest = _fewest_moves(held, cards=cards, mib=mib, most=3)
    total = sum(CARD_MIB - sum(pods) for node in held.values() for pods in node.values())
    plan = _search(held, cards=cards, mib=mib)
    if fewest and total >= cards * mib:
        assert plan is not None
        assert len(plan.moves) == fewest
    else:
        assert plan is None


ELSEWHERE: Held = {"n9": {"x": [], "y": [], "z": []}}  # where the waiting pod may not run


def test_a_node_that_lacks_more_memory_wins_if_fewer_pods_have_to_be_moved() -> None:
    held = {"n1": {"a": [2800] * 5}, "n2": {"b": [14_500]}, **ELSEWHERE}
    assert _moved(_search(held, mib=17_000, refused=frozenset({"n9"}))) == ["b.0"]


def test_of_plans_with_as_many_moves_the_one_that_loses_least_wins_on_whatever_node() -> None:
    held = {"n1": {"a": [13_000]}, "n2": {"b": [5000, 10_000]}, **ELSEWHERE}
    assert _moved(_search(held, mib=11_500, refused=frozenset({"n9"}))) == ["b.0"]


def _table(**nodes: NodeInfo) -> CardTable:
    return CardTable(SnapshotIndex().matrix(Snapshot(nodes=nodes, pods={})))


def test_flags_are_in_the_order_of_nodes_and_cards() -> None:
    table = _table(n2=a_node_info(a_card("c")), n1=a_node_info(a_card("a"), a_card("b", index=1)))
    assert table.nodes == ["n1", "n2"]
    assert table.uuids == ["a", "b", "c"]
    assert table.flags([CardUuid("c"), CardUuid("unknown")]).tolist() == [False, False, True]
    assert _table().flags([]).tolist() == []


@pytest.mark.parametrize("phase", MovePhase)
def test_cards_are_kept_while_the_hold_of_the_move_says_so(phase: MovePhase) -> None:
    soon = a_beneficiary("a0", held_until=NOON + timedelta(minutes=1))
    past = begun(a_move(beneficiary=soon), phase=phase)
    kept = phase not in (MovePhase.RECOMMENDED, MovePhase.ROLLING_BACK, MovePhase.ABORTED)
    assert held_for([past], now=NOON) == ({"a0": "uid-big"} if kept else {})
    assert held_for([begun(a_move(), phase=phase)], now=NOON) == {}
