"""Compiled code judges nodes as NumPy does, to the bit, and reads nothing that is not there."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import Card, CardUuid, Cordon, CordonEffect, Health, NodeCards
from fracgpu.placement.fit_index import FitIndex
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.policies.least_waste.fill.compiled_fit import (
    CompiledFit,
    Judgement,
    is_supported,
)
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy
from fracgpu.state.ledger import Ledger
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.core import GRANULE_MIB

LATER = NOON.replace(year=NOON.year + 1)
MODELS = ("A", "B", "C")


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeCards:
    cards = [
        Card(
            uuid=CardUuid(f"{name}/{index}"),
            index=index,
            model=draw(st.sampled_from(MODELS)),
            total_mib=Mib(GRANULE_MIB * draw(st.integers(0, 6))),
            health=draw(st.sampled_from([Health.HEALTHY] * 5 + [Health.UNHEALTHY])),
            slots=draw(st.sampled_from([32, 0])),
        )
        for index in range(draw(st.integers(0, 8)))
    ]
    some = st.sampled_from([card.uuid for card in cards] or [CardUuid("gone")])
    effect = st.sampled_from([CordonEffect.PREFER_NO_SCHEDULE] * 2 + [CordonEffect.NO_SCHEDULE])
    return NodeCards(
        node=name,
        cards=tuple(cards),
        cordons=tuple(
            Cordon(card=uuid, until=LATER, reason="hot", effect=draw(effect))
            for uuid in draw(st.sets(some, max_size=3))
        ),
        foreign={uuid: Mib(draw(st.integers(0, 500))) for uuid in draw(st.sets(some, max_size=6))},
        schedulable=draw(st.sampled_from([True, True, True, False])),
    )


NEEDS = st.builds(
    PodNeed,
    containers=st.builds(
        ContainerNeed,
        name=st.just("main"),
        cards=st.integers(1, 4),
        mib=st.integers(1, 500).map(Mib),
        cores=st.sampled_from([0, 0, 100, 101]),
        share=st.sampled_from([None, None, Fraction(1, 2), Fraction(1, 3), Fraction(1)]),
    ).map(lambda container: (container,)),
    models=st.sampled_from([(), ("A",), ("!B",), ("nothing",)]),
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_verdicts_and_scores_are_the_same_to_the_bit(data: st.DataObject) -> None:
    ledger = Ledger()
    matrix = NodeMatrix(ledger)
    compiled, plain = (FitIndex(matrix, compiled=which) for which in (True, False))
    need = data.draw(NEEDS)
    for _ in range(2):
        for name in data.draw(st.sets(st.integers(0, 6).map("n{}".format), min_size=1)):
            ledger.set_node(data.draw(nodes(name)))
        found, wanted = (
            index.evaluate(need, strategy=Strategy.LEAST_WASTE, now=NOON)
            for index in (compiled, plain)
        )
        assert found.verdict.tolist() == wanted.verdict.tolist()
        assert found.score.tobytes() == wanted.score.tobytes()
        assert found.avoided.tolist() == wanted.avoided.tolist()


def a_matrix() -> NodeMatrix:
    ledger = Ledger()
    card = Card(uuid=CardUuid("c"), index=0, model="A", total_mib=Mib(GRANULE_MIB))
    ledger.set_node(NodeCards(node="n", cards=(card,)))
    matrix = NodeMatrix(ledger)
    matrix.refresh(now=NOON)
    return matrix


def judge(matrix: NodeMatrix, *, rows: int, models: int) -> None:
    judgement = Judgement(
        ContainerNeed(name="main", mib=Mib(1)),
        np.ones(models, np.bool_),
        verdict=np.zeros(rows, np.int64),
        score=np.zeros(rows),
        avoided=np.zeros(rows, np.bool_),
    )
    CompiledFit(matrix).judge(judgement, -1)


@pytest.mark.parametrize(("rows", "models"), [(1, 1), (2, 0)])
def test_a_row_that_there_is_no_room_for_or_an_unknown_model_is_refused(
    rows: int, models: int
) -> None:
    matrix = a_matrix()
    assert matrix.size == 2, "one stands for unknown nodes"

    judge(matrix, rows=2, models=1)
    with pytest.raises(AssertionError):
        judge(matrix, rows=rows, models=models)


def test_a_share_whose_terms_are_too_long_is_left_to_numpy() -> None:
    matrix = NodeMatrix(Ledger())

    for share, supported in ((Fraction(1, 2**31 - 1), True), (Fraction(1, 2**31), False)):
        container = ContainerNeed(name="main", mib=Mib(1), share=share)
        assert is_supported(container, matrix) is supported
