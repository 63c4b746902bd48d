"""One option for each differing card; worked out anew for the nodes that changed, and no others."""

import numpy as np

from fracgpu.placement.node_matrix import Demand, FreeResourceTable
from fracgpu.placement.policies.least_waste.card_states import CardStates
from fracgpu.placement.policies.least_waste.fill_sequences import FillSequences
from fracgpu.placement.policies.least_waste.options import PlacementOptions
from tests.fracgpu.placement.policies.least_waste.wants import (
    HALF,
    MODELS,
    PAIR,
    PROCESSOR,
    mix,
    node,
)

FILL = FillSequences(mix(), MODELS)


def one_node(want: Demand, *cards: int) -> tuple[PlacementOptions, CardStates]:
    nodes, states, outcomes = FreeResourceTable(MODELS), CardStates(FILL), PlacementOptions(want)
    nodes.put(nodes.add(), node(*cards))
    outcomes.keep_up(nodes, states)
    return outcomes, states


def options(want: Demand, *cards: int) -> list[int]:
    outcomes, _ = one_node(want, *cards)
    return [int(it) for it in outcomes.card[outcomes.state >= 0]]


def test_equal_cards_are_one_option_and_the_tightest_comes_first() -> None:
    assert options(HALF, 1000, 700, 1000, 400, 700) == [1, 0]


def test_a_node_without_room_has_no_option() -> None:
    assert options(HALF, 400, 400) == []
    assert options(PAIR, 1000, 900) == []


def test_two_cards_are_one_option() -> None:
    outcomes, states = one_node(PAIR, 1000, 1000, 1000)

    assert outcomes.state.shape == (1, 1)
    assert states.idle_cards[outcomes.state[0, 0]] == 1


def test_equal_shares_of_several_cards_take_the_tightest() -> None:
    want = Demand(cards=2, share_milli=500)
    outcomes, states = one_node(want, 1000, 600, 500)
    left, _ = states.rows(np.zeros(1, np.int64), np.array([[1000, 100, 0]], np.int16))

    assert outcomes.state.tolist() == [left.tolist()]


def test_a_pod_without_cards_leaves_the_cards_as_they_are() -> None:
    outcomes, states = one_node(PROCESSOR, 1000, 600)
    same, _ = states.rows(np.zeros(1, np.int64), np.array([[1000, 600]], np.int16))

    assert outcomes.state.tolist() == [same.tolist()]


def test_a_change_of_one_node_reaches_that_node_alone() -> None:
    nodes, states, outcomes = FreeResourceTable(MODELS), CardStates(FILL), PlacementOptions(HALF)
    for _ in range(2):
        nodes.put(nodes.add(), node(1000))
    outcomes.keep_up(nodes, states)
    nodes.put(1, node(400))
    outcomes.keep_up(nodes, states)

    assert (outcomes.state >= 0).tolist() == [[True], [False]]


def test_a_wider_node_makes_room_for_its_options() -> None:
    nodes, states, outcomes = FreeResourceTable(MODELS), CardStates(FILL), PlacementOptions(HALF)
    nodes.put(nodes.add(), node(1000))
    outcomes.keep_up(nodes, states)
    nodes.put(nodes.add(), node(1000, 900, 800))
    outcomes.keep_up(nodes, states)

    assert (outcomes.state >= 0).sum(1).tolist() == [1, 3]
