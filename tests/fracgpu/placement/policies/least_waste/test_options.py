"""One option for each distinct free level, computed again only for nodes that changed."""

import numpy as np

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import Demand, IntArray
from fracgpu.placement.policies.least_waste.card_states import Allowance, CardStates
from fracgpu.placement.policies.least_waste.options import PlacementOptions
from tests.fracgpu.placement.policies.least_waste.demands import (
    HALF,
    MODELS,
    PAIR,
    PROCESSOR,
    a_fill,
    known_nodes,
    mix,
    node,
)

FILL = a_fill(mix(), MODELS)


class Nodes:
    """Nodes, and the options of pods of one kind on them."""

    def __init__(self, demand: Demand, *nodes: tuple[int, ...]) -> None:
        self.nodes = FreeResourceTable(MODELS)
        self.states = CardStates(FILL, models=len(MODELS), nodes=1)
        self.options = PlacementOptions(demand)
        for cards in nodes:
            self.nodes.put(self.nodes.add(), node(*cards))
        self.update(np.arange(self.nodes.size))

    def update(self, rows: IntArray) -> None:
        self.options.update(self.nodes, self.states, rows)

    def evaluate(self) -> None:
        row, option = self.unknown()
        names, lost, cpu_milli, levels = self.options.states_of(
            self.nodes, self.states, row, option
        )
        self.options.waste_milli[row, option] = lost + self.states.evaluate(
            names, cpu_milli, model=self.nodes.model[row], levels=levels, allowance=Allowance()
        )
        assert not len(self.unknown()[0])

    def unknown(self) -> tuple[IntArray, IntArray]:
        rows = np.arange(self.nodes.size)
        return self.options.unknown(self.nodes, self.states, rows, known_nodes(len(rows)))

    def after(self, row: int, option: int = 0) -> list[int]:
        _, _, _, levels = self.options.states_of(
            self.nodes, self.states, np.array([row]), np.array([option])
        )
        return sorted(levels[0].tolist(), reverse=True)


def option_cards(demand: Demand, *cards: int) -> list[int]:
    options = Nodes(demand, cards).options
    return [int(card) for card in options.card[options.idle_cards >= 0]]


def test_equal_cards_are_one_option_and_the_tightest_comes_first() -> None:
    assert option_cards(HALF, 1000, 700, 1000, 400, 700) == [1, 0]


def test_a_node_without_room_has_no_option() -> None:
    assert option_cards(HALF, 400, 400) == []
    assert option_cards(PAIR, 1000, 900) == []


def test_two_cards_are_one_option() -> None:
    found = Nodes(PAIR, (1000, 1000, 1000))

    assert found.options.idle_cards[:1].tolist() == [[1]]
    assert found.after(0) == [1000, 0, 0]


def test_equal_shares_of_several_cards_take_the_tightest() -> None:
    found = Nodes(Demand(cards=2, share_milli=500), (1000, 600, 500))

    assert found.after(0) == [1000, 100, 0]


def test_a_pod_without_cards_leaves_the_cards_as_they_are() -> None:
    assert Nodes(PROCESSOR, (1000, 600)).after(0) == [1000, 600]


def test_a_change_of_one_node_reaches_that_node_alone() -> None:
    found = Nodes(HALF, (1000,), (1000,))
    found.evaluate()
    found.nodes.put(1, node(400))
    found.update(np.arange(2))

    assert (found.options.idle_cards[:2] >= 0).tolist() == [[True], [False]]
    assert not len(found.unknown()[0])


def test_what_nobody_asks_for_stays_as_it_is_until_somebody_does() -> None:
    found = Nodes(HALF, (1000,), (1000,))
    for row in range(2):
        found.nodes.put(row, node(400))
    found.update(np.array([0]))
    assert (found.options.idle_cards[:2] >= 0).tolist() == [[False], [True]]

    found.update(np.array([0, 1]))
    assert (found.options.idle_cards[:2] >= 0).tolist() == [[False], [False]]


def test_a_wider_node_makes_room_for_its_options() -> None:
    found = Nodes(HALF, (1000,))
    found.nodes.put(found.nodes.add(), node(1000, 900, 800))
    found.update(np.arange(2))

    assert (found.options.idle_cards[:2] >= 0).sum(1).tolist() == [1, 3]


def test_more_nodes_than_there_was_room_for_leave_what_is_known() -> None:
    found = Nodes(HALF, (1000,))
    found.evaluate()
    before = found.options.waste_milli[0].tolist()
    while found.nodes.size < 2_000:
        found.nodes.put(found.nodes.add(), node(700))
    found.update(np.arange(found.nodes.size))

    assert found.options.waste_milli[0].tolist() == before
    assert np.unique(found.unknown()[0]).tolist() == list(range(1, 2_000))


def test_what_is_unknown_is_listed_by_the_tightest_card() -> None:
    found = Nodes(HALF, (1000, 600), (500,), (900,))
    row, option = found.unknown()
    cards = found.options.card[row, option].tolist()

    assert list(zip(row.tolist(), cards, strict=True)) == [(1, 0), (0, 1), (2, 0), (0, 0)]


def test_no_option_is_unknown_where_the_cpu_is_not_enough() -> None:
    found = Nodes(HALF)
    found.nodes.put(found.nodes.add(), node(1000, cores=3))
    found.update(np.arange(1))

    assert not len(found.unknown()[0])
