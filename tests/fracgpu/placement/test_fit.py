"""Filter, bind, preemption, explain and plan say of every request what a slow oracle says.

A new field of a request has to be drawn here, and a new rule to be said by the oracle.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from itertools import combinations, product
from math import ceil
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, Cordon, CordonEffect, Health, NodeCards
from fracgpu.cards.card_class import CardClass, Vendor, model_allowed
from fracgpu.disruption.room.card_table import CardTable
from fracgpu.explain.explanation import by_strategy, try_cards
from fracgpu.k8s.container import ContainerKind
from fracgpu.k8s.resources import NO_HOST_RESOURCES
from fracgpu.placement.fit import (
    CardRequest,
    FitReason,
    Obstacle,
    cards_of,
    obstacle,
    refusal,
    unfit_reasons,
)
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import CardSelector, CardsOnNode, evaluate, place
from fracgpu.placement.preemption import (
    PreemptionTarget,
    choose_victims,
    fits_if_emptied,
)
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.grant import grant, need_from_limits
from fracgpu.request.need import (
    ContainerNeed,
    Isolation,
    PodNeed,
    PodRequest,
    SliceRequest,
    Strategy,
)
from fracgpu.request.need import Topology as CardTopology
from fracgpu.state.allocation import Assignment, CardAllocation
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.cluster_state import ClusterState
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import CardInfo, NodeInfo, PodAllocation
from fracgpu.units import FULL_CORES, Mib
from scheduler.extender.api import ExtenderArgs
from scheduler.extender.filter import Extender
from tests.fakes.clock import NOON, VirtualClock
from tests.support.core import GRANULE_MIB, a_card, a_need, a_node_info, a_pod_need, a_record
from tests.support.examples import at_least

LATER: Final = NOON + timedelta(minutes=1)
MODELS: Final = ("NVIDIA A30", "Tesla T4", "AMD Instinct MI210")
NODES: Final = ("n1", "n2")

CONTAINER: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "name": st.just(""),  # set by its place
    "kind": st.sampled_from(ContainerKind),
    "cards": st.sampled_from([1, 1, 1, 2, 3]),
    "mib": st.integers(1, 3 * GRANULE_MIB).map(Mib),
    "cores": st.sampled_from([0, 0, 30, 80]),
    "share": st.sampled_from([None, None, Fraction(1, 2), Fraction(1, 3)]),
    "limit_share": st.sampled_from([None, None, Fraction(1, 2), Fraction(1)]),
    "limit_mib": st.sampled_from([None, None, *(Mib(n * GRANULE_MIB) for n in (1, 3, 9))]),
}
POD: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "containers": st.lists(st.fixed_dictionaries(dict(CONTAINER)), min_size=1, max_size=2),
    "vendor": st.sampled_from([None, None, *Vendor]),
    "models": st.sampled_from([(), (), ("*A30*",), ("!*T4*",)]),
    "strategy": st.sampled_from([None, *Strategy]),
    "topology": st.sampled_from([None, None, *CardTopology]),
    "isolation": st.sampled_from([(), *((isolation,) for isolation in Isolation)]),
    "by_claim": st.sampled_from([False, False, True]),
}


def names_of(cls: type) -> set[str]:
    return {field.name for field in structs.fields(cls)}


@st.composite
def needs(draw: st.DrawFn) -> PodNeed:
    """Draw a request; for every other one any card is right that has enough."""
    assert (set(POD), set(CONTAINER)) == (names_of(PodNeed), names_of(ContainerNeed))
    facts = draw(st.fixed_dictionaries(dict(POD)))
    if draw(st.booleans()):
        facts |= {"vendor": None, "models": ()}
    # A pod lists its init containers first.
    parts = sorted(facts.pop("containers"), key=lambda part: part["kind"] is ContainerKind.APP)
    containers = []
    for number, part in enumerate(parts):
        part["name"] = f"c{number}"
        if part["share"] is not None:  # of some card there is, or of another
            part["mib"] = Mib(ceil(part["share"] * draw(st.sampled_from([80, 160, 240, 640]))))
            part["limit_mib"] = None
        else:
            part["limit_share"] = None
        containers.append(ContainerNeed(**part))
    return PodNeed(containers=tuple(containers), **facts)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeCards:
    """Draw a node; of every other one nothing but amounts may refuse a pod."""
    odd = draw(st.booleans())
    uuids = [CardUuid(f"GPU-{name}-{number}") for number in range(draw(st.integers(0, 3)))]
    some = st.sampled_from(uuids or [CardUuid("GPU-gone")])
    return NodeCards(
        node=name,
        cards=tuple(
            Card(
                uuid=uuid,
                index=number,
                model=draw(st.sampled_from(MODELS)) if odd else MODELS[0],
                total_mib=Mib(GRANULE_MIB * draw(st.sampled_from([0, 1, 2, 3, 4, 8, 12]))),
                health=draw(st.sampled_from(Health)) if odd else Health.HEALTHY,
                links={other: abs(number - at) for at, other in enumerate(uuids) if other != uuid},
                slots=draw(st.sampled_from([32, 0, 1, 2])) if odd else 32,
                limits_mib=Mib(GRANULE_MIB * draw(st.sampled_from([0, 0, 1, 2, 4, 8, 16]))),
            )
            for number, uuid in enumerate(uuids)
        ),
        cordons=tuple(
            Cordon(card=uuid, until=LATER, reason="hot", effect=draw(st.sampled_from(CordonEffect)))
            for uuid in draw(st.sets(some, max_size=odd))
        ),
        shared=draw(st.sampled_from([True, True, not odd])),
        schedulable=draw(st.sampled_from([True, True, not odd])),
        heat=draw(st.dictionaries(some, st.sampled_from([0.0, 0.9]), max_size=2)),
        foreign=draw(st.dictionaries(some, st.integers(1, 80).map(Mib), max_size=odd)),
        load_time=NOON,
        identity=draw(st.sampled_from(["nri", "", names.IDENTITY_CLAIMS])),
    )


@st.composite
def pods_on(draw: st.DrawFn, node: NodeCards) -> list[PodAllocation]:
    """Draw what pods hold; some may use more also where nothing limits, since before it was so."""
    if not node.cards:
        return []
    held = st.builds(
        CardAllocation,
        mib=st.integers(0, 160).map(Mib),
        cores=st.sampled_from([0, 30, 60]),
        slots=st.sampled_from([1, 1, 2]),
        borrow_mib=st.sampled_from(draw(st.sampled_from([(0,), (0, 100), (40, 400)]))).map(Mib),
    )
    uuids = st.sampled_from([card.uuid for card in node.cards])
    drawn = draw(st.lists(st.dictionaries(uuids, held, min_size=1, max_size=2), max_size=3))
    return [
        PodAllocation(pod_uid=f"{node.node}-{number}", node=node.node, by_card=by_card)
        for number, by_card in enumerate(drawn)
    ]


def peak(parts: Sequence[tuple[ContainerKind, int]]) -> int:
    """Return what containers take at once at most, step by step as kubelet starts them."""
    most = running = 0
    for kind, amount in parts:
        most = max(most, running + amount)
        if kind is not ContainerKind.INIT:
            running += amount
    return max(most, running)


def limit_of(part: ContainerNeed, card: Card) -> int:
    """Return how much of a card a container may use: more than its memory only with limits."""
    if not card.limits_mib:
        return part.mib
    share = ceil((part.limit_share or 0) * card.capacity_mib)
    return max(part.mib, part.limit_mib or 0, share)


def card_takes(info: CardInfo, need: PodNeed, here: Sequence[ContainerNeed]) -> bool:
    """Report whether a card takes these containers of a pod side by side."""
    card = info.card
    return (
        card.health is Health.HEALTHY
        and not info.cordoned
        and not info.kept_for
        and info.by_claims == need.by_claim
        and card.model.startswith("AMD") == (need.vendor is Vendor.AMD)
        and model_allowed(card.model, globs=need.models)
        and all(
            part.share is None or ceil(part.share * card.capacity_mib) == part.mib for part in here
        )
        and peak([(part.kind, part.mib) for part in here])
        <= card.capacity_mib - info.held_mib - info.foreign_mib - info.unplaced_mib
        and peak([(part.kind, limit_of(part, card)) for part in here])
        <= (card.limits_mib or card.capacity_mib)
        - (info.held_mib + info.held_borrow_mib + info.foreign_mib + info.unplaced_mib)
        and peak([(part.kind, part.cores) for part in here]) <= FULL_CORES - info.held_cores
        and peak([(part.kind, 1) for part in here]) <= card.slots - info.held_slots
    )


def choices(infos: Sequence[CardInfo], need: PodNeed) -> Iterator[list[tuple[CardInfo, ...]]]:
    """Yield every choice of distinct cards for each container."""
    for chosen in product(*(combinations(infos, part.cards) for part in need.containers)):
        yield list(chosen)


def all_take(need: PodNeed, chosen: Sequence[Sequence[CardInfo]]) -> bool:
    infos = {info.card.uuid: info for cards in chosen for info in cards}
    return all(
        card_takes(
            info,
            need,
            [
                part
                for part, cards in zip(need.containers, chosen, strict=True)
                if uuid in {it.card.uuid for it in cards}
            ],
        )
        for uuid, info in infos.items()
    )


def takes_slices(node: NodeCards) -> bool:
    return node.shared and node.schedulable and not node.problem


def node_takes(info: NodeInfo, need: PodNeed, *, opened: bool = False) -> bool:
    if not (info.node.shared and (opened or info.node.schedulable)):
        return False
    return any(all_take(need, chosen) for chosen in choices(tuple(info.cards.values()), need))


@dataclass(slots=True, kw_only=True)
class World:
    """A few nodes with pods, and what asks about them."""

    ledger: Ledger
    matrix: NodeMatrix
    pods: Mapping[str, PodAllocation]

    def node(self, name: str) -> NodeInfo:
        info = self.ledger.node(name, now=NOON)
        assert info is not None
        return info

    def victims(self, node: str) -> list[BoundPod]:
        pods = [pod for pod in self.pods.values() if pod.node == node]
        return [BoundPod(namespace="default", name=it.pod_uid, allocation=it) for it in pods]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    ledger = Ledger()
    pods: dict[str, PodAllocation] = {}
    for name in NODES:
        node = draw(nodes(name))
        ledger.set_node(node)
        for pod in draw(pods_on(node)):
            pods[pod.pod_uid] = pod
            ledger.observe(pod)
    matrix = NodeMatrix(ledger)
    matrix.refresh(now=NOON)
    return World(ledger=ledger, matrix=matrix, pods=pods)


def check_filter(world: World, need: PodNeed, strategy: Strategy) -> None:
    clock = VirtualClock()
    extender = Extender(world.matrix, strategy=lambda: strategy, clock=clock)
    pod = PodInfo(record=a_record("asking"), need=need)
    result = extender.filter(ExtenderArgs(pod=pod, node_names=(*NODES, "unknown")))
    taking = tuple(name for name in NODES if node_takes(world.node(name), need))
    assert result.passed == taking
    assert {*result.failed, *result.unresolvable} == {*NODES, "unknown"} - set(taking)
    best = result.best()
    assert best in taking if taking else best is None


def check_bind(world: World, need: PodNeed, strategy: Strategy) -> None:
    pod = PodInfo(record=a_record("asking"), need=need)
    cards = CardSelector(ledger=world.ledger, strategy=lambda: strategy, now=lambda: NOON)
    for name in NODES:
        info = world.node(name)
        answer = cards.on_node(pod, name)
        assert isinstance(answer, CardsOnNode) == node_takes(info, need)
        if isinstance(answer, CardsOnNode):
            assert all_take(need, cards_in(info, need, answer.placement.assignment))


def cards_in(info: NodeInfo, need: PodNeed, assignment: Assignment) -> list[list[CardInfo]]:
    assert list(assignment) == [part.name for part in need.containers]
    for part in need.containers:
        slices = assignment[part.name]
        assert len({it.card for it in slices}) == part.cards
        assert {(it.mib, it.cores) for it in slices} == {(part.mib, part.cores)}
    return [[info.cards[it.card] for it in slices] for slices in assignment.values()]


def check_preemption(world: World, need: PodNeed, strategy: Strategy) -> None:
    targets = [
        PreemptionTarget(
            node=world.node(name),
            missing=NO_HOST_RESOURCES,
            potential_victims=world.victims(name),
        )
        for name in NODES
    ]
    victims = choose_victims(targets, need, strategy=strategy)
    for name, target, found in zip(NODES, targets, victims, strict=True):
        left = info = target.node
        for pod in target.potential_victims:
            if found is None or pod.uid in found.uids:
                left = left.without_allocations(pod.allocation.by_card, pod_uid=pod.uid)
        if found is None:  # either nothing helps, or nobody has to go
            assert not node_takes(left, need) or node_takes(info, need)
        else:
            assert node_takes(left, need)
        if node_takes(left, need):
            (helps,) = fits_if_emptied(world.matrix, world.matrix.rows_of([name]), need)
            assert helps


def check_explain(world: World, need: PodNeed, strategy: Strategy) -> None:
    snapshot = world.ledger.snapshot(now=NOON)
    need = by_strategy(need, ClusterState(snapshot=snapshot, strategy=strategy, pods={}, now=NOON))
    for name in NODES:
        info = world.node(name)
        answer = try_cards(info, need)
        assert isinstance(answer, Placement) == node_takes(info, need, opened=True)
        if isinstance(answer, NoPlacement):
            assert answer.text


def check_plan(world: World, need: PodNeed) -> None:
    snapshot = world.ledger.snapshot(now=NOON)
    index = SnapshotIndex()
    cells, places = index.fitting(need, snapshot), index.places(snapshot)
    table = CardTable(index.matrix(snapshot))
    for name in NODES:
        info = world.node(name)
        for uuid, card_info in info.cards.items():
            on_it = [[card_info]] * len(need.containers)
            alone = all(part.cards == 1 for part in need.containers)
            fits = takes_slices(info.node) and alone and all_take(need, on_it)
            assert cells[places[uuid]] == fits
            for part in need.containers:
                room = table.has_room(need, CardRequest.of(part))[table.index[uuid]]
                assert room == (takes_slices(info.node) and card_takes(card_info, need, [part]))


@settings(max_examples=at_least(200))
@given(world=worlds(), need=needs(), strategy=st.sampled_from(Strategy))
def test_everybody_says_what_the_oracle_says(
    world: World, need: PodNeed, strategy: Strategy
) -> None:
    check_filter(world, need, strategy)
    check_bind(world, need, strategy)
    check_preemption(world, need, strategy)
    check_explain(world, need, strategy)
    check_plan(world, need)


@settings(max_examples=at_least(100))
@given(world=worlds(), need=needs(), strategy=st.sampled_from(Strategy))
def test_many_nodes_at_once_are_told_what_each_is_told_alone(
    world: World, need: PodNeed, strategy: Strategy
) -> None:
    result = evaluate(world.matrix, need, world.matrix.rows_of(NODES), strategy=strategy)
    refused = iter(zip(result.refusals.obstacles, result.refusals.resolvable, strict=True))
    for row, name in enumerate(NODES):
        alone = place(world.node(name), need, strategy=strategy)
        assert result.fits[row] == isinstance(alone, Placement)
        if isinstance(alone, Placement):
            assert (result.score[row], result.avoided[row]) == (alone.score, alone.avoided)
        else:
            reasons = {alone.node_reason, *alone.refusals.values()} - {None}
            met, resolvable = next(refused)
            assert tuple(Obstacle)[met] is obstacle(reasons)
            assert resolvable == any(reason.resolvable for reason in reasons if reason)


@settings(max_examples=at_least(50))
@given(data=st.data())
def test_a_need_has_every_fact_of_its_request(data: st.DataObject) -> None:
    """What placement has to know of a request is a field of the same name in the need."""
    of_pod = names_of(PodNeed) - {"containers", "by_claim"}  # which the webhook decides
    assert of_pod <= set(PodRequest.__struct_fields__)
    facts = {name: data.draw(POD[name]) for name in of_pod}
    part = SliceRequest(
        container="c", cores=30, cards=2, mib=Mib(40), stated_mib=Mib(80), stated_slots=2
    )
    request = PodRequest(slices=(part,), **facts)
    card_class = CardClass(
        capacity_mib=Mib(240), models=frozenset(MODELS), most_per_node=2, cards=2, free_share=1
    )
    expected = PodNeed(containers=(a_need(40, name="c", cards=2, cores=30),), **facts)

    assert need_from_limits(request) == expected
    if not facts["models"]:
        assert grant(request, [card_class]).need == expected


# What the cards are chosen by, of those that fit; and what the pod's node affinity says.
CHOICES: Final = frozenset({"strategy", "topology", "isolation"})


def test_every_fact_of_a_pod_is_asked_by_a_rule() -> None:
    """A fact that is drawn but that no rule asks for limits nothing, which few examples show."""
    asked = set()

    class Watched(PodNeed, frozen=True):
        def __getattribute__(self, name: str) -> Any:
            asked.add(name)
            return super().__getattribute__(name)

    cards = cards_of(a_node_info(a_card("a")).cards.values())
    unfit_reasons(cards, Watched(containers=(a_need(1),)), CardRequest.of(a_need(1)))

    assert names_of(PodNeed) - {"containers"} - asked == CHOICES


def asked(info: NodeInfo, need: PodNeed) -> list[int]:
    cards = cards_of(info.cards.values())
    codes: list[int] = unfit_reasons(cards, need, CardRequest.of(need.containers[0]))[0].tolist()
    return codes


def test_of_several_reasons_the_first_counts() -> None:
    card = a_card("a", mib=80, model="T4")
    info = a_node_info(card, held={"a": CardAllocation(mib=Mib(80), cores=90, slots=32)})
    part = a_need(1, cores=20, share=Fraction(1))
    expected = {
        FitReason.WRONG_MODEL: a_pod_need(part, models=("A30",)),
        FitReason.WRONG_CLASS: a_pod_need(part),
        FitReason.TOO_LITTLE_FREE: a_pod_need(a_need(1, cores=20)),
        FitReason.TOO_FEW_CORES: a_pod_need(a_need(0, cores=20)),
        FitReason.NO_FREE_SLOT: a_pod_need(a_need(0)),
    }

    for reason, need in expected.items():
        assert asked(info, need) == [reason.code]


def test_a_card_that_is_kept_for_another_pod_is_closed() -> None:
    info = a_node_info(a_card("a"), a_card("b", index=1))
    kept = structs.replace(info.cards[CardUuid("a")], kept_for="another")
    info = replace(info, cards={**info.cards, CardUuid("a"): kept})

    assert asked(info, a_pod_need(a_need(1))) == [FitReason.CORDONED.code, 0]
    found = place(info, a_pod_need(a_need(1, cards=2)), strategy=Strategy.PACK)
    assert isinstance(found, NoPlacement)
    assert found.refusals == {CardUuid("a"): FitReason.CORDONED}


def test_every_reason_is_one_of_eight_obstacles() -> None:
    assert len(Obstacle) == 8
    assert {reason.obstacle for reason in FitReason} == set(Obstacle)
    assert [reason.code for reason in FitReason] == list(range(1, len(FitReason) + 1))


def test_of_several_reasons_the_one_nearest_to_a_yes_is_said() -> None:
    assert obstacle([FitReason.UNHEALTHY, FitReason.TOO_LITTLE_FREE, None]) is Obstacle.MEMORY
    assert obstacle([FitReason.TOO_FEW_CARDS, FitReason.WRONG_MODEL]) is Obstacle.TOGETHER


def test_the_commonest_obstacle_is_said_first() -> None:
    counted = {Obstacle.MEMORY: 900, Obstacle.OTHER_CARDS: 4_100, Obstacle.NO_CARDS: 900}

    assert refusal(counted) == (
        "node(s) without a fitting card (4100 wrong card model or size, "
        "900 too little free memory, 900 no shared cards known; fracgpu explain says more)"
    )


def test_the_cards_of_a_share_are_those_of_its_class_to_the_mib() -> None:
    third = Fraction(1, 3)
    info = a_node_info(*(a_card(f"{n}", mib=80 * n, index=n) for n in range(1, 5)))
    for mib in range(1, 120):
        wrong = FitReason.WRONG_CLASS.code
        expected = [0 if ceil(third * 80 * n) == mib else wrong for n in range(1, 5)]
        assert asked(info, a_pod_need(a_need(mib, share=third))) == expected
    huge = Fraction(10**30, 10**30 + 1)  # beyond 64 bits
    assert asked(info, a_pod_need(a_need(240, share=huge)))[2] == 0


def a_matrix(count: int) -> tuple[Ledger, NodeMatrix]:
    ledger = Ledger()
    for n in range(count):
        card = Card(uuid=CardUuid(f"GPU-{n}"), index=0, model="A", total_mib=Mib(800))
        ledger.set_node(NodeCards(node=f"n{n}", cards=(card,)))
    return ledger, NodeMatrix(ledger)


def fits(matrix: NodeMatrix, mib: int, node: str) -> bool:
    matrix.refresh(now=NOON)
    need = a_pod_need(a_need(mib))
    found = evaluate(matrix, need, matrix.rows_of([node]), strategy=Strategy.PACK)
    return bool(found.fits[0])


def test_rows_grow_and_those_of_nodes_that_went_are_used_again() -> None:
    ledger, matrix = a_matrix(200)
    assert fits(matrix, 800, "n199")

    ledger.remove_node("n7")
    assert not fits(matrix, 800, "n7")
    card = Card(uuid=CardUuid("GPU-new"), index=0, model="A", total_mib=Mib(80))
    ledger.set_node(NodeCards(node="new", cards=(card,)))

    assert not fits(matrix, 800, "new")
    assert fits(matrix, 80, "new")
    assert matrix.size == 201


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("topology", [None, *CardTopology])
@pytest.mark.parametrize("avoided", [(), (0,), (0, 1, 2)], ids=str)
def test_several_cards_are_ranked_alike_for_one_node_and_for_many(
    strategy: Strategy, topology: CardTopology | None, avoided: Sequence[int]
) -> None:
    """Properties seldom draw a node on which a pod of several cards fits in more than one way."""
    uuids = [CardUuid(f"GPU-{number}") for number in range(4)]
    effect = CordonEffect.PREFER_NO_SCHEDULE
    node = NodeCards(
        node="n",
        cards=tuple(
            replace(a_card(uuid, mib=1000, index=number), links={uuids[number ^ 1]: 3})
            for number, uuid in enumerate(uuids)
        ),
        cordons=tuple(
            Cordon(card=uuids[number], until=LATER, reason="hot", effect=effect)
            for number in avoided
        ),
        heat={uuid: number / 4 for number, uuid in enumerate(uuids)},
        load_time=NOON,
    )
    ledger = Ledger()
    ledger.set_node(node)
    for number, mib in enumerate((100, 300, 500, 900)):
        holds = {uuids[number]: CardAllocation(mib=Mib(mib), cores=20 * number)}
        ledger.observe(PodAllocation(pod_uid=f"p{number}", node="n", by_card=holds))
    matrix = NodeMatrix(ledger)
    matrix.refresh(now=NOON)
    info = ledger.node("n", now=NOON)
    assert info is not None

    for cards in (1, 2, 3, 4):
        need = structs.replace(a_pod_need(a_need(200, cards=cards, cores=40)), topology=topology)
        found = evaluate(matrix, need, matrix.rows_of(["n"]), strategy=strategy)
        alone = place(info, need, strategy=strategy)
        assert found.fits.tolist() == [isinstance(alone, Placement)]
        if isinstance(alone, Placement):
            assert (found.score[0], found.avoided[0]) == (alone.score, alone.avoided)
