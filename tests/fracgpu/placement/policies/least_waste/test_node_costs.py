"""Costs follow the nodes, and what was evaluated of a node stays until it changes."""

import numpy as np
import pytest

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.policies.least_waste.card_states import Allowance, CardStates
from fracgpu.placement.policies.least_waste.node_costs import NodeCosts
from fracgpu.placement.policies.least_waste.options import PlacementOptions
from fracgpu.placement.policies.least_waste.turnover import FILLING
from tests.fracgpu.placement.policies.least_waste.demands import HALF, MODELS, a_fill, mix, node

FIRST = np.array([0])


def costs_of(nodes: FreeResourceTable) -> tuple[NodeCosts, CardStates]:
    states = CardStates(a_fill(mix(), MODELS), models=len(MODELS), nodes=1)
    return NodeCosts(mix(), nodes, states, FILLING), states


def test_the_waste_of_a_node_is_unknown_until_it_is_evaluated_and_again_once_it_changes() -> None:
    nodes = FreeResourceTable(MODELS)
    nodes.put(nodes.add(), node(500, 300))
    costs, _ = costs_of(nodes)

    costs.keep_up()
    assert np.isnan(costs.waste_milli[0])
    costs.know(FIRST, np.array([40.0], np.float32))
    known = costs.waste_milli[0]
    costs.know(FIRST, np.array([np.nan], np.float32))
    nodes.put(nodes.add(), node(1000))
    costs.keep_up()
    assert costs.waste_milli[0] == known >= 40.0
    nodes.put(0, node(400, 300))
    costs.keep_up()
    assert np.isnan(costs.waste_milli[0])


def test_a_node_that_is_as_full_in_all_but_waste_costs_more_by_what_is_wasted() -> None:
    nodes = FreeResourceTable(MODELS)
    for _ in range(2):
        nodes.put(nodes.add(), node(500))
    costs, states = costs_of(nodes)
    costs.keep_up()
    options, rows = PlacementOptions(HALF), np.arange(2)
    options.update(nodes, states, rows)
    row, option = options.unknown(nodes, states, rows, costs.standing)
    names, _, cpu, levels = options.states_of(nodes, states, row, option)
    allowance = Allowance()
    states.evaluate(names, cpu, model=nodes.model[row], levels=levels, allowance=allowance)
    options.waste_milli[row, option] = 0.0
    costs.know(rows, np.array([100.0, 40.0], np.float32))

    ranking = costs.ranking(HALF, options, rows, complete=True)

    # What was wasted before is saved.
    assert ranking.rows.tolist() == [0, 1]
    assert ranking.cost_milli[1] - ranking.cost_milli[0] == pytest.approx(60.0)
