"""Compiled options and costs are those of NumPy, to the bit, whatever happens to the nodes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import Demand, FreeResources
from fracgpu.placement.policies.least_waste.card_states import Allowance, CardStates
from fracgpu.placement.policies.least_waste.fill.compiled_evaluation import Pairs, Question
from fracgpu.placement.policies.least_waste.node_costs import NodeCosts
from fracgpu.placement.policies.least_waste.options import PlacementOptions
from fracgpu.placement.policies.least_waste.policy import LeastWaste
from fracgpu.placement.policies.least_waste.turnover import FILLING, TURNING_OVER
from tests.fracgpu.placement.policies.least_waste.demands import (
    EVERY,
    HALF,
    MODELS,
    PAIR,
    a_fill,
    known_nodes,
    mix,
    node,
    varied_mix,
)

FREE = st.builds(
    FreeResources,
    model=st.sampled_from(MODELS),
    cpu_milli=st.integers(-1_000, 128_000),
    memory_mib=st.just(1_000_000),
    card_milli=st.lists(
        st.integers(0, 1000) | st.sampled_from([0, 190, 500, 690, 1000]), min_size=4, max_size=9
    ).map(tuple),
)
DEMAND = st.sampled_from(EVERY) | st.builds(
    Demand,
    cpu_milli=st.integers(0, 20_000),
    cards=st.integers(1, 3),
    share_milli=st.integers(1, 1000),
    models=st.sampled_from([None, frozenset({"T4"})]),
)
NAME = st.integers(0, 5).map("node-{}".format)
STEP = st.one_of(
    st.tuples(st.just("put"), NAME, FREE),
    st.tuples(st.just("drop"), NAME),
    st.tuples(st.just("rank"), DEMAND, st.none() | st.integers(0, 60)),
    st.tuples(st.just("rank"), DEMAND, st.none() | st.integers(0, 60)),
    st.tuples(st.just("some"), DEMAND, st.sets(st.integers(0, 5)), st.sets(st.integers(0, 3))),
    st.tuples(st.just("cards"), DEMAND, st.integers(0, 3)),
    st.tuples(st.just("warm"), st.lists(DEMAND, max_size=2)),
    st.tuples(st.just("reprice")),
)


def after(policy: LeastWaste, step: tuple[object, ...]) -> list[object]:
    """Return what a policy answers to a step, as it is in memory."""
    match step:
        case "put", str(name), FreeResources() as free:
            policy.put(name, free)
        case "drop", str(name):
            policy.drop(name)
        case "rank", Demand() as demand, allowance:
            assert allowance is None or isinstance(allowance, int)
            return answer(policy, demand, allowance=Allowance(allowance))
        case "some", Demand() as demand, set(among), set(cards):
            rows = np.array([row for row in among if row in policy.rows.values()], np.int64)
            closed = {int(rows[0]): frozenset(cards)} if len(rows) and cards else {}
            return answer(policy, demand, among=rows, closed=closed)
        case "cards", Demand(cards=1) as demand, int(column):
            rows = np.array(sorted(policy.rows.values()), np.int64)
            return [policy.card_costs(demand, rows, np.full(len(rows), column)).tobytes()]
        case "warm", list(demands):
            return list(policy.warming(demands))
        case _:
            policy.reprice()
    return []


def answer(policy: LeastWaste, demand: Demand, **how: object) -> list[object]:
    ranking = policy.rank(demand, **how)  # type: ignore[arg-type]
    arrays = ranking.rows, ranking.cost_milli, ranking.card
    # Of NaN, which sign it has is no part of the answer.
    return [np.where(array != array, -1, array).tolist() for array in arrays]  # noqa: PLR0124


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(STEP, min_size=1, max_size=25),
    weights=st.sampled_from([FILLING, TURNING_OVER]),
)
def test_rankings_are_the_same_to_the_bit_after_any_changes_with_any_allowance(
    steps: list[tuple[object, ...]], weights: object
) -> None:
    compiled, plain = (
        LeastWaste(mix(), MODELS, weights, compiled=which)  # type: ignore[arg-type]
        for which in (True, False)
    )
    for step in steps:
        assert after(compiled, step) == after(plain, step), step
    assert compiled.evaluated == plain.evaluated


@pytest.mark.parametrize("demand", [HALF, PAIR])
@pytest.mark.parametrize("row", [-1, 1, 10**9])
def test_a_row_that_is_not_there_is_refused(demand: Demand, row: int) -> None:
    nodes = FreeResourceTable(MODELS)
    free = FreeResources(model="T4", cpu_milli=9_000, memory_mib=1, card_milli=(1000, 1000))
    nodes.put(nodes.add(), free)
    states = CardStates(a_fill(mix(), MODELS), models=len(MODELS), nodes=1)
    options, standing = PlacementOptions(demand), known_nodes(1)
    options.update(nodes, states, np.array([0]))
    wrong, first = np.array([row]), np.array([0])

    evaluation = states.evaluation
    assert evaluation is not None
    question = evaluation.question(2, nodes.width)
    weights = NodeCosts(mix(), nodes, states, FILLING).prices

    with pytest.raises(AssertionError):
        options.update(nodes, states, wrong)
    with pytest.raises(AssertionError):
        options.unknown(nodes, states, wrong, standing)
    for chosen in ((wrong, first), (first, np.array([2])), (first, np.array([-1]))):
        pairs = Pairs(*chosen, question, 0)
        with pytest.raises(AssertionError):
            evaluation.ask_pairs(nodes, options.arrays, standing, pairs)
        with pytest.raises(AssertionError):
            evaluation.know(nodes, options.arrays, weights, standing, pairs)


def test_no_more_is_asked_than_there_is_room_for() -> None:
    nodes = FreeResourceTable(MODELS)
    nodes.put(nodes.add(), node(1000))
    states = CardStates(a_fill(mix(), MODELS), models=len(MODELS), nodes=1)
    options, standing, chosen = PlacementOptions(HALF), known_nodes(1), (np.array([0]),) * 2
    options.update(nodes, states, chosen[0])
    evaluation = states.evaluation
    assert evaluation is not None
    question = Question(2, nodes.width)
    weights = NodeCosts(mix(), nodes, states, FILLING).prices
    there, beyond = Pairs(*chosen, question, 0), Pairs(*chosen, question, 1)

    evaluation.ask_pairs(nodes, options.arrays, standing, there)
    assert evaluation.missing(question, 2, most=0) == 0
    with pytest.raises(AssertionError):
        evaluation.ask_pairs(nodes, options.arrays, standing, beyond)
    with pytest.raises(AssertionError):
        evaluation.missing(question, 3, most=0)
    with pytest.raises(AssertionError):
        evaluation.answer(question, 3, np.zeros(0, np.float32))
    with pytest.raises(AssertionError):
        evaluation.know(nodes, options.arrays, weights, standing, beyond)


@pytest.mark.parametrize(("model", "level"), [(2, 0), (-1, 0), (0, 1001), (0, -1)])
def test_no_state_of_a_model_or_a_level_that_is_not_there_is_asked_for(
    model: int, level: int
) -> None:
    states = CardStates(a_fill(mix(), MODELS), models=len(MODELS), nodes=1)
    names = np.ones(1, np.uint64)

    with pytest.raises(AssertionError):
        states.evaluate(
            names,
            np.zeros(1, np.int64),
            model=np.array([model]),
            levels=np.full((1, 2), level, np.int16),
            allowance=Allowance(),
        )


@pytest.mark.parametrize("rows", [[-1], [0, 0], [1, 0], [0, 9]], ids=str)
def test_only_rows_that_are_there_and_ascend_are_ranked(rows: list[int]) -> None:
    policy = LeastWaste(mix(), MODELS, compiled=True)
    for number in range(2):
        policy.put(f"n{number}", replace(node(1000, 1000), model="T4"))

    assert policy.rank(HALF, among=np.array([0, 1])).rows.tolist() == [0, 1]
    with pytest.raises(AssertionError):
        policy.rank(HALF, among=np.array(rows))


def test_among_a_thousand_cpu_requests_compiled_code_finds_the_same_prices() -> None:
    compiled, plain = (
        LeastWaste(varied_mix(), ("A100",), compiled=which) for which in (True, False)
    )
    # What is left is below, between, at and above the requests, which are 2,000, 2,007 and so on.
    for number, left in enumerate((0, 1999, 2000, 2003, 2006, 2007, 5500, 8825, 8826, 9000)):
        free = node(*[1000] * 8)
        for policy in (compiled, plain):
            policy.put(f"n{number}", replace(free, cpu_milli=4000 + left))

    assert answer(compiled, HALF) == answer(plain, HALF)
    assert len(set(answer(plain, HALF)[1])) > 5, "the steps make a difference"  # type: ignore[call-overload]
