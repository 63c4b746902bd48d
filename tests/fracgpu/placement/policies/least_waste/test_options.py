"""One option for each distinct free level, computed again only for nodes that changed."""

import numpy as np

from fracgpu.placement.node_matrix import Demand, FreeResourceTable
from fracgpu.placement.policies.least_waste.card_states import CardStates
from fracgpu.placement.policies.least_waste.fill_sequences import FillSequences
from fracgpu.placement.policies.least_waste.options import PlacementOptions
from tests.fracgpu.placement.policies.least_waste.demands import (
    HALF,
    MODELS,
    PAIR,
    PROCESSOR,
    mix,
    node,
)

FILL = FillSequences(mix(), MODELS)


def one_node(demand: Demand, *cards: int) -> tuple[PlacementOptions, CardStates]:
    nodes, states, options = FreeResourceTable(MODELS), CardStates(FILL), PlacementOptions(demand)
    nodes.put(nodes.add(), node(*cards))
    options.keep_up(nodes, states)
    return options, states


def option_cards(demand: Demand, *cards: int) -> list[int]:
    options, _ = one_node(demand, *cards)
    return [int(card) for card in options.card[options.state >= 0]]


def test_equal_cards_are_one_option_and_the_tightest_comes_first() -> None:
    assert option_cards(HALF, 1000, 700, 1000, 400, 700) == [1, 0]


def test_a_node_without_room_has_no_option() -> None:
    assert option_cards(HALF, 400, 400) == []
    assert option_cards(PAIR, 1000, 900) == []


def test_two_cards_are_one_option() -> None:
    options, states = one_node(PAIR, 1000, 1000, 1000)

    assert options.state.shape == (1, 1)
    assert states.idle_cards[options.state[0, 0]] == 1


def test_equal_shares_of_several_cards_take_the_tightest() -> None:
    demand = Demand(cards=2, share_milli=500)
    options, states = one_node(demand, 1000, 600, 500)
    left, _ = states.rows(np.zeros(1, np.int64), np.array([[1000, 100, 0]], np.int16))

    assert options.state.tolist() == [left.tolist()]


def test_a_pod_without_cards_leaves_the_cards_as_they_are() -> None:
    options, states = one_node(PROCESSOR, 1000, 600)
    same, _ = states.rows(np.zeros(1, np.int64), np.array([[1000, 600]], np.int16))

    assert options.state.tolist() == [same.tolist()]


def test_a_change_of_one_node_reaches_that_node_alone() -> None:
    nodes, states, options = FreeResourceTable(MODELS), CardStates(FILL), PlacementOptions(HALF)
    for _ in range(2):
        nodes.put(nodes.add(), node(1000))
    options.keep_up(nodes, states)
    nodes.put(1, node(400))
    options.keep_up(nodes, states)

    assert (options.state >= 0).tolist() == [[True], [False]]


def test_a_wider_node_makes_room_for_its_options() -> None:
    nodes, states, options = FreeResourceTable(MODELS), CardStates(FILL), PlacementOptions(HALF)
    nodes.put(nodes.add(), node(1000))
    options.keep_up(nodes, states)
    nodes.put(nodes.add(), node(1000, 900, 800))
    options.keep_up(nodes, states)

    assert (options.state >= 0).sum(1).tolist() == [1, 3]
