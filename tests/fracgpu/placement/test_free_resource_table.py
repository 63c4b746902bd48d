"""The table holds what each node has free, and which rows have changed."""

import pytest

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import Demand, FreeResources
from tests.fracgpu.placement.policies.least_waste.demands import (
    HALF,
    MODELS,
    PAIR,
    PICKY,
    WHOLE,
    node,
)


def table(*nodes: FreeResources) -> FreeResourceTable:
    made = FreeResourceTable(MODELS)
    for free in nodes:
        made.put(made.add(), free)
    return made


def test_a_pod_has_room_where_cpu_memory_and_model_suit_it() -> None:
    nodes = table(node(1000), node(1000, cores=7), node(1000, model="T4"))

    assert nodes.candidate_rows(WHOLE).tolist() == [0, 2]
    assert nodes.candidate_rows(PICKY).tolist() == [0]
    assert nodes.candidate_rows(Demand(memory_mib=2_000_000)).tolist() == []


def test_a_pod_without_cards_goes_to_every_model() -> None:
    assert table(node(1000), node(1000, model="T4")).candidate_rows(
        Demand(cpu_milli=1)
    ).tolist() == [0, 1]


def test_a_dropped_node_takes_no_pod_and_its_row_is_used_again() -> None:
    nodes = table(node(1000), node(1000))
    nodes.drop(0)

    assert nodes.candidate_rows(Demand()).tolist() == [1]
    assert nodes.add() == 0


def test_only_rows_that_changed_are_named() -> None:
    nodes = table(node(1000), node(1000), node(1000))
    before = nodes.now
    nodes.put(1, node(500))

    assert nodes.changed_since(before).tolist() == [1]
    assert nodes.changed_since(nodes.now).tolist() == []


def test_a_model_learnt_later_leaves_the_others_as_they_were() -> None:
    nodes = table(node(1000))
    nodes.add_model("L40")
    nodes.put(nodes.add(), node(1000, model="L40"))

    assert nodes.candidate_rows(PICKY).tolist() == [0]
    assert nodes.candidate_rows(
        Demand(cards=1, share_milli=1, models=frozenset({"L40"}))
    ).tolist() == [1]


def test_the_tightest_cards_are_taken_lower_numbers_first() -> None:
    nodes = table(node(1000, 500, 600, 1000, 1000))

    assert nodes.cards(0, HALF) == (1,)
    assert nodes.cards(0, PAIR) == (0, 3)


def test_the_table_grows_with_the_cluster() -> None:
    nodes = table(*[node(1000)] * 200)

    assert nodes.candidate_rows(WHOLE).tolist() == list(range(200))


@pytest.mark.parametrize("cards", [(1001,), (-1,), (0,) * 33])
def test_cards_that_cannot_be_are_refused(cards: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="want"):
        node(*cards)


def test_a_node_has_its_cards_also_while_they_are_full() -> None:
    table = FreeResourceTable(["A"])
    row = table.add()
    table.put(row, FreeResources(model="A", cpu_milli=0, memory_mib=0, card_milli=(0, 500, 1000)))
    assert table.cards_there[row] == 3

    table.drop(row)
    assert table.cards_there[row] == 0
