"""The fit index gives every node the result that `place` gives."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import Card, CardUuid, Cordon, CordonEffect, Health, NodeCards
from fracgpu.placement.fit_index import (
    FITS,
    OBSTACLES,
    RESOLVABLE,
    FitIndex,
    Obstacle,
    cards_for_whole_pod,
    obstacle,
    refusal,
)
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import FitReason, NoPlacement, Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy, Topology
from fracgpu.state.allocation import CardAllocation, PodRecord, Slice
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import PodAllocation
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.core import GRANULE_MIB, a_need, a_pod_need, a_record, kinds, on, small_mib
from tests.support.examples import at_least
from tests.support.gpu import some_cards

LATER = NOON + timedelta(minutes=1)
MODELS = ("NVIDIA A30", "NVIDIA A100 80GB", "Tesla T4")


@st.composite
def cards(draw: st.DrawFn, node: str) -> tuple[Card, ...]:
    uuids = [CardUuid(f"GPU-{node}-{n}") for n in range(draw(st.integers(0, 5)))]
    return tuple(
        Card(
            uuid=uuid,
            index=n,
            model=draw(st.sampled_from(MODELS)),
            total_mib=Mib(GRANULE_MIB * draw(st.integers(0, 4))),
            health=draw(st.sampled_from([Health.HEALTHY] * 4 + [Health.UNHEALTHY])),
            links={
                other: draw(st.integers(0, 3))
                for other in uuids
                if other != uuid and draw(st.booleans())
            },
            slots=draw(st.sampled_from([32, 32, 0, 1, 2])),
        )
        for n, uuid in enumerate(uuids)
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeCards:
    here = draw(cards(name))
    some = st.sampled_from([card.uuid for card in here] or [CardUuid("GPU-gone")])
    ratio = st.sampled_from([0.0, 0.25, 0.9])
    return NodeCards(
        node=name,
        cards=here,
        cordons=tuple(
            Cordon(
                card=uuid,
                until=draw(st.sampled_from([NOON, LATER])),
                reason="hot",
                effect=draw(st.sampled_from(CordonEffect)),
            )
            for uuid in draw(st.sets(some, max_size=2))
        ),
        shared=draw(st.sampled_from([True, True, True, False])),
        schedulable=draw(st.sampled_from([True, True, True, False])),
        heat=draw(st.dictionaries(some, ratio, max_size=2)),
        foreign=draw(st.dictionaries(some, small_mib.map(Mib), max_size=1)),
        load_time=draw(st.sampled_from([NOON, NOON - timedelta(hours=1), None])),
    )


@st.composite
def needs(draw: st.DrawFn) -> PodNeed:
    drawn = sorted(
        draw(st.lists(kinds, min_size=1, max_size=2)), key=lambda kind: kind.value == "app"
    )
    containers: Sequence[ContainerNeed] = [
        a_need(
            draw(small_mib),
            name=f"c{n}",
            kind=kind,
            cards=draw(st.sampled_from([1, 1, 2, 3])),
            cores=draw(st.sampled_from([0, 0, 30, 80])),
            share=draw(st.sampled_from([None, None, Fraction(1, 2)])),
        )
        for n, kind in enumerate(drawn)
    ]
    return PodNeed(
        containers=tuple(containers),
        models=draw(st.sampled_from([(), (), ("*A30*",), ("!*T4*",)])),
        strategy=draw(st.sampled_from([None, *Strategy])),
        topology=draw(st.sampled_from([None, None, *Topology])),
    )


@st.composite
def holds(draw: st.DrawFn, node: NodeCards) -> dict[CardUuid, CardAllocation]:
    if not node.cards:
        return {}
    uuids = st.sampled_from([card.uuid for card in node.cards])
    allocation = st.builds(
        CardAllocation,
        mib=small_mib.map(Mib),
        cores=st.sampled_from([0, 30, 60]),
        slots=st.sampled_from([1, 1, 2]),
    )
    return draw(st.dictionaries(uuids, allocation, max_size=2))


def assert_agrees(index: FitIndex, ledger: Ledger, need: PodNeed, strategy: Strategy) -> None:
    result = index.evaluate(need, strategy=strategy, now=NOON)
    for name in ledger.nodes:
        node_info = ledger.node(name, now=NOON)
        assert node_info is not None
        (row,) = index.matrix.rows_of([name]).tolist()
        expected = place(node_info, need, strategy=strategy)
        if isinstance(expected, Placement):
            assert result.verdict[row] == FITS
            assert result.score[row] == expected.score
            assert result.avoided[row] == expected.avoided
        else:
            met, resolvable = index.obstacle_of(int(result.verdict[row]))
            assert met is obstacle({expected.whole, *expected.refusals.values()})
            assert resolvable == bool({expected.whole, *expected.refusals.values()} & RESOLVABLE)


NAMES = ("n1", "n2", "n3")


@settings(max_examples=at_least(100))
@given(data=st.data(), strategy=st.sampled_from(Strategy))
def test_the_sweep_equals_the_search_whatever_happens_in_between(
    data: st.DataObject,
    strategy: Strategy,
) -> None:
    ledger = Ledger()
    index = FitIndex(NodeMatrix(ledger))
    asked = data.draw(st.lists(needs(), min_size=1, max_size=2))
    for step in range(data.draw(st.integers(1, 3))):
        node = data.draw(nodes(data.draw(st.sampled_from(NAMES))))
        ledger.set_node(node)
        held = data.draw(holds(node))
        ledger.observe(PodAllocation(pod_uid=f"p{step}", node=node.node, by_card=held))
        if data.draw(st.booleans()):
            ledger.remove_node(data.draw(st.sampled_from(NAMES)))
        for need in asked:
            assert_agrees(index, ledger, need, strategy)


def test_a_pod_without_cores_does_not_fit_on_a_card_that_holds_more_compute_than_it_has() -> None:
    ledger, index = an_index()
    for pod in ("p0", "p1"):
        held = CardAllocation(mib=Mib(1), cores=60, slots=1)
        ledger.observe(PodAllocation(pod_uid=pod, node="n0", by_card={CardUuid("GPU-0"): held}))

    assert_agrees(index, ledger, a_pod_need(a_need(1)), Strategy.PACK)
    assert index.obstacle_of(verdict(index, 1)) == (Obstacle.COMPUTE, True)


def an_index(count: int = 1, mib: int = 800) -> tuple[Ledger, FitIndex]:
    ledger = Ledger()
    for n in range(count):
        card = Card(uuid=CardUuid(f"GPU-{n}"), index=0, model="A", total_mib=Mib(mib))
        ledger.set_node(NodeCards(node=f"n{n}", cards=(card,)))
    return ledger, FitIndex(NodeMatrix(ledger))


def verdict(index: FitIndex, mib: int, node: str = "n0", *, late: bool = False) -> int:
    result = index.evaluate(
        a_pod_need(a_need(mib)), strategy=Strategy.PACK, now=LATER if late else NOON
    )
    return int(result.verdict[index.matrix.rows_of([node])[0]])


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("topology", [None, Topology.ANY, Topology.NVLINK])
@pytest.mark.parametrize("avoided", [(), (0,), (0, 1, 2)], ids=str)
def test_several_cards_are_ranked_as_by_the_search(
    strategy: Strategy, topology: Topology | None, avoided: Sequence[int]
) -> None:
    """Properties seldom draw a node on which a pod of several cards fits in more than one way."""
    uuids = [CardUuid(f"GPU-{number}") for number in range(4)]
    ledger = Ledger()
    ledger.set_node(
        NodeCards(
            node="n",
            cards=tuple(
                Card(
                    uuid=uuid,
                    index=number,
                    model="NVIDIA A30",
                    total_mib=Mib(1000),
                    links={uuids[number ^ 1]: 3},
                )
                for number, uuid in enumerate(uuids)
            ),
            cordons=tuple(
                Cordon(
                    card=uuids[number],
                    until=LATER,
                    reason="hot",
                    effect=CordonEffect.PREFER_NO_SCHEDULE,
                )
                for number in avoided
            ),
            heat={uuid: number / 4 for number, uuid in enumerate(uuids)},
            load_time=NOON,
        )
    )
    for number, mib in enumerate((100, 300, 500, 900)):
        holds = {uuids[number]: CardAllocation(mib=Mib(mib), cores=20 * number)}
        ledger.observe(PodAllocation(pod_uid=f"p{number}", node="n", by_card=holds))
    index = FitIndex(NodeMatrix(ledger))

    for cards in (1, 2, 3, 4):
        need = replace(a_pod_need(a_need(200, cards=cards, cores=40)), topology=topology)
        assert_agrees(index, ledger, need, strategy)


def test_containers_fit_on_one_card_if_all_they_take_together_is_free() -> None:
    _, index = an_index()
    index.matrix.refresh(now=NOON)
    kinds_of_two = (
        (a_need(400, name="a", cores=50), a_need(400, name="b", cores=50)),
        (a_need(400, name="a", cores=50), a_need(400, name="b", cores=51)),
        (a_need(400, name="a"), a_need(401, name="b")),
        (a_need(100, name="a"), a_need(100, name="b", cards=2)),
    )

    fits = [cards_for_whole_pod(index.matrix, a_pod_need(*pair)).any() for pair in kinds_of_two]

    assert fits == [True, False, False, False]


def test_a_node_that_nobody_reported_is_unseen_and_may_still_come() -> None:
    _, index = an_index()

    assert index.obstacle_of(verdict(index, 100, "nowhere")) == (Obstacle.NO_CARDS, True)


def test_rows_grow_and_those_of_nodes_that_went_are_used_again() -> None:
    ledger, index = an_index(200)
    assert verdict(index, 800, "n199") == FITS

    ledger.remove_node("n7")
    assert index.obstacle_of(verdict(index, 800, "n7"))[0] is Obstacle.NO_CARDS
    card = Card(uuid=CardUuid("GPU-new"), index=0, model="A", total_mib=Mib(80))
    ledger.set_node(NodeCards(node="new", cards=(card,)))

    assert verdict(index, 800, "new") != FITS
    assert verdict(index, 80, "new") == FITS
    assert index.matrix.size == 201


def test_an_assumption_counts_and_a_lapsed_one_does_not() -> None:
    ledger, index = an_index()
    record: PodRecord = a_record("u")
    ledger.assume(record, node="n0", assignment=on("GPU-0", 500), until=LATER)

    assert verdict(index, 500) != FITS
    assert verdict(index, 500, late=True) == FITS


def test_a_cordon_counts_until_its_time() -> None:
    ledger, index = an_index()
    node = ledger.nodes["n0"]
    cordon = Cordon(card=CardUuid("GPU-0"), until=LATER, reason="hot")
    ledger.set_node(replace(node, cordons=(cordon,)))

    assert verdict(index, 80) != FITS
    assert verdict(index, 80, late=True) == FITS


def test_memory_that_strangers_use_is_not_free() -> None:
    ledger, index = an_index()
    ledger.set_node(replace(ledger.nodes["n0"], foreign={CardUuid("GPU-0"): Mib(300)}))

    assert verdict(index, 500) == FITS
    assert verdict(index, 501) != FITS


@pytest.mark.parametrize("strategy", Strategy)
def test_a_node_is_worked_out_again_only_when_it_changed(strategy: Strategy) -> None:
    ledger, index = an_index(50)
    need = a_pod_need(a_need(100))
    index.evaluate(need, strategy=strategy, now=NOON)
    moment = index.matrix.now

    ledger.observe(
        PodAllocation(
            pod_uid="p", node="n3", by_card={CardUuid("GPU-3"): CardAllocation(mib=Mib(1))}
        )
    )
    index.evaluate(need, strategy=strategy, now=NOON)

    assert index.matrix.changed_since(moment).tolist() == index.matrix.rows_of(["n3"]).tolist()


def test_one_more_container_is_searched_node_by_node() -> None:
    ledger, index = an_index(2)
    need = a_pod_need(a_need(400, name="a"), a_need(401, name="b"))
    result = index.evaluate(need, strategy=Strategy.PACK, now=NOON)
    node_info = ledger.node("n0", now=NOON)
    assert node_info is not None
    found = place(node_info, need, strategy=Strategy.PACK)

    assert isinstance(found, NoPlacement)
    met, _ = index.obstacle_of(int(result.verdict[index.matrix.rows_of(["n0"])[0]]))
    assert met is obstacle({found.whole, *found.refusals.values()}) is Obstacle.TOGETHER
    assert Slice(card=CardUuid("GPU-0"), mib=Mib(1)).cores == 0


@pytest.mark.parametrize("reason", FitReason)
def test_every_reason_is_one_of_six_obstacles(reason: FitReason) -> None:
    assert len(Obstacle) == 6
    assert reason in OBSTACLES
    assert obstacle([None, reason]) is OBSTACLES[reason]


def test_of_several_reasons_the_one_nearest_to_a_yes_is_said() -> None:
    assert obstacle([FitReason.UNHEALTHY, FitReason.TOO_LITTLE_FREE, None]) is Obstacle.MEMORY
    assert obstacle([FitReason.TOO_FEW_CARDS, FitReason.WRONG_MODEL]) is Obstacle.TOGETHER


def test_the_commonest_obstacle_is_said_first() -> None:
    counted = {Obstacle.MEMORY: 900, Obstacle.OTHER_CARDS: 4_100, Obstacle.NO_CARDS: 900}

    assert refusal(counted) == (
        "node(s) without a fitting card (4100 wrong card model or size, "
        "900 too little free memory, 900 no shared cards known; fracgpu explain says more)"
    )


def test_what_is_remembered_of_needs_on_thousands_of_nodes_stays_below_20_megabytes() -> None:
    ledger = Ledger()
    for number in range(5_000):
        ledger.set_node(NodeCards(node=f"n{number}", cards=some_cards(f"n{number}", count=1)))
    index = FitIndex(NodeMatrix(ledger))
    index.evaluate(a_pod_need(a_need(1)), strategy=Strategy.PACK, now=NOON)
    tracemalloc.start()
    try:
        for mib in range(2, 250):
            index.evaluate(a_pod_need(a_need(mib)), strategy=Strategy.PACK, now=NOON)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 20_000_000
