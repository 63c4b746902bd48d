"""Placements with reservations, in any order of events, never exceed a card."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from fracgpu.cards.card import FULL_CORES, CardUuid, Cordon, NodeCards
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources, pod_host, pod_requests
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import (
    NO_CHOOSERS,
    cards_without_host,
    choose_cards,
    denied_cards,
    place_held,
    reservations_for,
)
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import Assignment, PodRecord
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import Move, MovePhase
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.reservation import claims_of
from tests.fakes.clock import NOON
from tests.support.core import a_card, a_need, a_pod_need, a_record, on
from tests.support.examples import at_least
from tests.support.moves import a_beneficiary, move_of

NODES = tuple(
    NodeCards(
        node=node, cards=(a_card(f"{node}-0", mib=240), a_card(f"{node}-1", mib=240, index=1))
    )
    for node in ("n", "m")
)
NODE_NAMES = tuple(node.node for node in NODES)
CARDS = tuple((node.node, card.uuid) for node in NODES for card in node.cards)
OWNERS = ("web", "api")
MIBS = (80, 160, 240)
LATER = NOON + timedelta(minutes=10)


def a_pod(
    uid: str,
    *needs: int,
    owner: str = "web",
    cards: int = 1,
    cores: int = 0,
    containers: int = 1,
) -> PodInfo:
    names = [f"c{number}" for number in range(containers)]
    wanted = [a_need(needs[0], name=name, cards=cards, cores=cores) for name in names]
    return PodInfo(
        record=a_record(uid), need=a_pod_need(*wanted), owner=("ReplicaSet", owner, owner)
    )


def a_ledger(*moves: Move) -> Ledger:
    ledger = Ledger()
    for node in NODES:
        ledger.set_node(node)
    for move in moves:
        ledger.set_claims(claims_of(move))
    return ledger


def a_move(name: str = "a", *, mib: int = 80, owner: str = "web", **changes: object) -> Move:
    wanted = {
        "target": ("m", "m-1"),
        "source": ("n", "n-0"),
        "reserved_until": LATER,
        "source_denied_until": LATER,
    }
    return move_of(name, mib=mib, owner_uid=owner, **(wanted | changes))  # type: ignore[arg-type]


def placed(ledger: Ledger, pod: PodInfo, *nodes: str) -> str | None:
    found = place_held(ledger, pod, strategy=Strategy.PACK, now=NOON, nodes=nodes or NODE_NAMES)
    if found is None:
        return None
    ((part,),) = found.placement.assignment.values()
    return part.card


def test_a_pod_is_placed_on_the_card_that_is_held_for_it() -> None:
    ledger = a_ledger(a_move())

    assert placed(ledger, a_pod("p", 80)) == "m-1"
    assert placed(ledger, a_pod("p", 80), "n") is None
    assert placed(ledger, a_pod("p", 80, owner="api")) is None
    assert placed(ledger, a_pod("p", 160)) is None
    assert placed(ledger, a_pod("p", 80, cores=10)) is None
    assert placed(ledger, replace(a_pod("p", 80), owner=None)) is None
    assert placed(ledger, replace(a_pod("p", 80), need=None)) is None


def test_a_pod_on_several_cards_has_no_reservation() -> None:
    ledger = a_ledger(a_move())

    assert reservations_for(ledger, a_pod("p", 80, cards=2), now=NOON) == []


def test_containers_on_one_card_are_added_up() -> None:
    move = a_move(mib=160)
    request = replace_request(move, slots=2)
    ledger = a_ledger(request)
    pod = a_pod("p", 80, containers=2)

    assert [one.move for one in reservations_for(ledger, pod, now=NOON)] == ["a"]


def replace_request(move: Move, *, slots: int) -> Move:
    request = type(move.spec.request)(mib=move.spec.request.mib, slots=slots)
    spec = {name: getattr(move.spec, name) for name in move.spec.__struct_fields__}
    changed = type(move.spec)(**(spec | {"request": request}))
    return Move(metadata=move.metadata, spec=changed, status=move.status)


@pytest.mark.parametrize("why", ["full", "cordoned", "gone"])
def test_the_second_reservation_serves_if_the_first_cannot(why: str) -> None:
    first = a_move("a", target=("m", "m-1") if why != "gone" else ("gone", "gone-1"))
    ledger = a_ledger(first, a_move("b", target=("n", "n-1")))
    if why == "full":
        ledger.set_pod(a_record("full", node="m", assignment=on("m-1", 240)))
    if why == "cordoned":
        cordon = Cordon(card=CardUuid("m-1"), until=LATER, reason="hot")
        ledger.set_node(replace(NODES[1], cordons=(cordon,)))

    assert placed(ledger, a_pod("p", 80)) == "n-1"


def test_the_cards_that_a_pod_is_kept_off_are_those_of_its_controller() -> None:
    ledger = a_ledger(a_move(phase=MovePhase.DONE))

    assert denied_cards(ledger, a_pod("p", 80), now=NOON) == {CardUuid("n-0"): "n"}
    assert denied_cards(ledger, a_pod("p", 80, owner="api"), now=NOON) == {}
    assert denied_cards(ledger, replace(a_pod("p", 80), owner=None), now=NOON) == {}


class AnyOrder(RuleBasedStateMachine):
    """Moves come, change and go while pods of their controllers and others are placed.

    Every pod is placed as the extender does it: on the card that is held for it, else anywhere but
    on the cards that it is kept off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.count = 0
        self.ledger = a_ledger()
        self.matrix = NodeMatrix(self.ledger)
        self.moves: dict[str, Move] = {}
        self.under_way: dict[str, tuple[PodInfo, str, Assignment, str]] = {}
        self.bound: dict[str, PodRecord] = {}

    @rule(
        name=st.sampled_from(("a", "b", "c")),
        phase=st.sampled_from(MovePhase),
        ends=st.tuples(st.sampled_from(CARDS), st.sampled_from(CARDS)),
        mib=st.sampled_from(MIBS),
        owner=st.sampled_from(OWNERS),
    )
    def a_move_is_written(
        self,
        name: str,
        phase: MovePhase,
        ends: tuple[tuple[str, str], tuple[str, str]],
        mib: int,
        owner: str,
    ) -> None:
        until = self.now + timedelta(minutes=2)
        move = a_move(
            name,
            mib=mib,
            owner=owner,
            phase=phase,
            source=ends[0],
            target=ends[1],
            reserved_until=until,
            source_denied_until=until,
        )
        self.moves[name] = move
        self.ledger.set_claims(claims_of(move))

    @rule(name=st.sampled_from(("a", "b", "c")))
    def a_move_is_deleted(self, name: str) -> None:
        self.moves.pop(name, None)
        self.ledger.remove_move(name)

    @rule(
        mib=st.sampled_from(MIBS),
        asks=st.sampled_from([(1, 0), (1, 0), (1, 40), (2, 0), (2, 100)]),
        owner=st.sampled_from((*OWNERS, "other")),
        strategy=st.sampled_from(Strategy),
        node=st.sampled_from(NODE_NAMES),
    )
    def a_pod_is_placed(
        self, mib: int, asks: tuple[int, int], owner: str, strategy: Strategy, node: str
    ) -> None:
        self.count += 1
        cards, cores = asks
        pod = a_pod(f"u{self.count}", mib, owner=owner, cards=cards, cores=cores)
        assert pod.need is not None
        held = place_held(self.ledger, pod, strategy=strategy, now=self.now, nodes=NODE_NAMES)
        move = ""
        if held is not None:
            node, move = held.placement.node, held.move
            assignment = held.placement.assignment
            reserved = self.ledger.reservations.claims[move].reservation
            assert reserved is not None
            assert {part.card for slices in assignment.values() for part in slices} == {
                reserved.card
            }
        else:
            found = self._elsewhere(pod, pod.need, node, strategy)
            if found is None:
                return
            assignment = found
        until = self.now + timedelta(seconds=60)
        self.ledger.assume(pod.record, node=node, assignment=assignment, until=until, move=move)
        self.under_way[pod.record.uid] = (pod, node, assignment, move)

    def _elsewhere(
        self, pod: PodInfo, need: PodNeed, node: str, strategy: Strategy
    ) -> Assignment | None:
        node_info = self.ledger.node(node, now=self.now)
        assert node_info is not None
        denied = denied_cards(self.ledger, pod, now=self.now)
        answer = choose_cards(
            node_info.with_cordoned(denied),
            need,
            NO_HOST_RESOURCES,
            strategy=strategy,
            choosers=NO_CHOOSERS,
        )
        if not isinstance(answer, Placement):
            return None
        for slices in answer.assignment.values():
            assert not {part.card for part in slices} & denied.keys()
        return answer.assignment

    @rule(data=st.data(), taken=st.booleans())
    def a_binding_ends(self, data: st.DataObject, taken: bool) -> None:
        if not self.under_way:
            return
        uid = data.draw(st.sampled_from(sorted(self.under_way)))
        pod, node, assignment, move = self.under_way.pop(uid)
        if not taken or uid not in self.ledger.assumed:
            self.ledger.forget(uid)
            return
        record = replace(pod.record, node=node, assignment=assignment, move=move)
        self.bound[uid] = record
        self.ledger.set_pod(record)

    @rule(data=st.data())
    def older_news_of_a_pod_come(self, data: st.DataObject) -> None:
        if self.under_way:
            pod, *_ = self.under_way[data.draw(st.sampled_from(sorted(self.under_way)))]
            self.ledger.set_pod(pod.record)

    @rule(node=st.sampled_from(NODES))
    def a_node_goes_and_comes(self, node: NodeCards) -> None:
        self.ledger.remove_node(node.node)
        self.ledger.set_node(node)

    @rule(data=st.data(), gone=st.booleans())
    def a_pod_ends(self, data: st.DataObject, gone: bool) -> None:
        if not self.bound:
            return
        uid = data.draw(st.sampled_from(sorted(self.bound)))
        record = self.bound.pop(uid)
        if gone:
            self.ledger.remove_pod(uid)
        else:
            self.ledger.set_pod(replace(record, live=False))

    @rule(node=st.sampled_from(NODES), cordoned=st.booleans())
    def a_card_is_cordoned(self, node: NodeCards, cordoned: bool) -> None:
        cordon = Cordon(
            card=node.cards[0].uuid, until=self.now + timedelta(seconds=30), reason="hot"
        )
        self.ledger.set_node(replace(node, cordons=(cordon,) if cordoned else ()))

    @rule(seconds=st.integers(1, 90))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        for uid in self.ledger.lapse(now=self.now):
            self.under_way.pop(uid, None)

    @rule()
    def the_process_starts_again(self) -> None:
        """Everything in memory is lost; the lists have all that is bound, and all Moves."""
        self.ledger = self._from_scratch(with_assumptions=False)
        self.matrix = NodeMatrix(self.ledger)
        self.under_way.clear()

    def _from_scratch(self, *, with_assumptions: bool = True) -> Ledger:
        fresh = Ledger()
        for record in reversed(self.bound.values()):
            fresh.set_pod(record)
        for move in reversed(self.moves.values()):
            fresh.set_claims(claims_of(move))
        for name in reversed(NODE_NAMES):
            fresh.set_node(self.ledger.nodes[name])
        if with_assumptions:
            for uid, assumption in self.ledger.assumed.items():
                pod, node, assignment, carried = self.under_way[uid]
                fresh.assume(
                    pod.record,
                    node=node,
                    assignment=assignment,
                    until=assumption.until,
                    move=carried,
                )
        return fresh

    @invariant()
    def pods_never_hold_more_than_a_card_has(self) -> None:
        for node_info in self.ledger.snapshot(now=self.now).nodes.values():
            for card_info in node_info.cards.values():
                held_mib = card_info.held_mib - card_info.reserved_mib
                assert 0 <= held_mib <= card_info.card.capacity_mib
                assert card_info.held_cores <= FULL_CORES
                assert card_info.held_slots <= card_info.card.slots
                assert card_info.reserved_mib >= 0

    @invariant()
    def it_equals_the_fold_from_scratch(self) -> None:
        assert self.ledger.snapshot(now=self.now) == self._from_scratch().snapshot(now=self.now)

    @invariant()
    def what_is_reserved_is_the_sum_of_the_live_reservations(self) -> None:
        carried = {record.move for record in self.bound.values()}
        carried |= {one.move for one in self.ledger.assumed.values() if one.until > self.now}
        live = [
            reservation
            for name, move in self.moves.items()
            if (reservation := claims_of(move).reservation) is not None
            and reservation.until > self.now
            and name not in carried
        ]
        snapshot = self.ledger.snapshot(now=self.now)
        for node, uuid in CARDS:
            card_info = snapshot.nodes[node].cards[uuid]
            mine = [one for one in live if one.card == uuid]
            assert card_info.reserved_mib == sum(one.allocation.mib for one in mine)
            assert card_info.moves == {one.move for one in mine}

    @invariant()
    def what_requests_are_answered_from_is_the_ledger(self) -> None:
        self.matrix.refresh(now=self.now)
        for name in NODE_NAMES:
            node_info, row = self.ledger.node(name, now=self.now), self.matrix.rows[name]
            assert node_info is not None
            assert self.matrix.infos[row] == node_info
            assert self.matrix.free_mib[row].tolist() == [
                card.free_mib for card in node_info.cards.values()
            ]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=at_least(40), stateful_step_count=40)


BIG = a_beneficiary("n-0", uid="big", held_until=LATER, cpu_milli=4000, memory_mib=1000)


def a_keeping_move(name: str = "a", **changes: Any) -> Move:
    wanted: dict[str, Any] = {"phase": MovePhase.VERIFYING, "beneficiary": BIG}
    return a_move(name, **(wanted | changes))


def refused_nodes(ledger: Ledger, pod: PodInfo, *, left: HostResources | None) -> set[str]:
    found = cards_without_host(ledger, pod, host_left=lambda *_: left, now=NOON)
    return set(found.values())


def asking(cpu_milli: int, memory_mib: int = 0, uid: str = "p") -> PodInfo:
    requests = {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
    container = ContainerSpec(name="main", requests=requests)
    return PodInfo(
        record=a_record(uid, containers=(container,)),
        need=a_pod_need(a_need(80)),
        host=pod_host(pod_requests((container,))),
    )


@pytest.mark.parametrize(
    ("pod", "left", "refused"),
    [
        (asking(1000), HostResources(cpu_milli=5000, memory_mib=1000), False),
        (asking(1001), HostResources(cpu_milli=5000, memory_mib=1000), True),
        (asking(0, 500), HostResources(cpu_milli=5000, memory_mib=1500), False),
        (asking(0, 501), HostResources(cpu_milli=5000, memory_mib=1500), True),
        # Those who leave are there still: what gets free is for the pod that waits.
        (asking(1), HostResources(cpu_milli=3000, memory_mib=1000), True),
        (asking(0), HostResources(cpu_milli=3000, memory_mib=0), False),
        (asking(9000, uid="big"), HostResources(cpu_milli=5000, memory_mib=1000), False),
        (asking(9000), None, False),  # the node does not say what it has
    ],
)
def test_cpu_and_memory_are_kept_for_the_pod_that_waits(
    pod: PodInfo, left: HostResources | None, refused: bool
) -> None:
    ledger = a_ledger(a_keeping_move())
    assert refused_nodes(ledger, pod, left=left) == ({"n"} if refused else set())


def test_several_moves_of_one_plan_keep_cpu_once() -> None:
    left = HostResources(cpu_milli=5000, memory_mib=1000)
    one, another = a_keeping_move(), a_keeping_move("b", source=("n", "n-1"))
    assert refused_nodes(a_ledger(one, another), asking(1000), left=left) == set()

    second = a_beneficiary("n-1", uid="large", held_until=LATER, cpu_milli=1)
    another = a_keeping_move("b", source=("n", "n-1"), beneficiary=second)
    assert refused_nodes(a_ledger(one, another), asking(1000), left=left) == {"n"}


def test_cpu_is_kept_no_longer_than_the_cards() -> None:
    left = HostResources(cpu_milli=1000, memory_mib=1000)
    rolled_back = a_ledger(a_keeping_move(phase=MovePhase.ROLLING_BACK))
    assert refused_nodes(rolled_back, asking(1000), left=left) == set()

    placed_ = a_ledger(a_keeping_move())
    placed_.set_pod(a_record("big", node="m", assignment=on("m-0", 80)))
    assert refused_nodes(placed_, asking(1000), left=left) == set()

    lapsed = structs.replace(BIG, held_until=NOON)
    assert (
        refused_nodes(
            a_ledger(a_keeping_move(beneficiary=lapsed, reserved_until=NOON)),
            asking(1000),
            left=left,
        )
        == set()
    )
