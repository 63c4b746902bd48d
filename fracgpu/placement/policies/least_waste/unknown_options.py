"""Evaluates what is not known of the options of pods, with what it takes to compare them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import Columns, IntArray
from fracgpu.placement.policies.least_waste.card_states import Allowance, CardStates
from fracgpu.placement.policies.least_waste.fill.compiled_evaluation import Pairs
from fracgpu.placement.policies.least_waste.node_costs import NodeCosts
from fracgpu.placement.policies.least_waste.options import NONE_CLOSED, PlacementOptions


@dataclass(frozen=True, slots=True)
class UnknownOptions:
    """Options of one kind of pods of which the expected waste is not known."""

    options: PlacementOptions
    row: IntArray
    option: IntArray


def evaluate(
    unknown: Sequence[UnknownOptions],
    nodes: FreeResourceTable,
    states: CardStates,
    costs: NodeCosts,
    allowance: Allowance,
    closed: Mapping[int, Columns] = NONE_CLOSED,
) -> bool:
    """Evaluate options of several kinds of pods at once; return whether all of them are known.

    An option is of use only with the cost of its node as it is now, so both come in turn.
    """
    if states.evaluation is not None and not closed:
        return _evaluate_compiled(unknown, nodes, states, costs, allowance)
    row = np.concatenate([one.row for one in unknown])
    after = [one.options.states_of(nodes, states, one.row, one.option, closed) for one in unknown]
    names, lost, cpu_milli, levels = (np.concatenate(parts) for parts in zip(*after, strict=True))
    now = nodes.levels[row, : nodes.width]
    found = states.evaluate(
        np.stack((costs.name[row], names), axis=1).ravel(),
        np.stack((costs.cpu_milli(row), cpu_milli), axis=1).ravel(),
        model=np.repeat(nodes.model[row], 2),
        levels=np.stack((now, levels), axis=1).reshape(2 * len(row), -1),
        allowance=allowance,
    ).reshape(-1, 2)
    # What is known stays where the table has forgotten it and the allowance is spent.
    costs.know(row, found[:, 0])
    waste, start = found[:, 1] + lost, 0
    for one in unknown:
        of_one = waste[start : start + len(one.row)]
        also = ~np.isnan(of_one)
        one.options.waste_milli[one.row[also], one.option[also]] = of_one[also]
        start += len(one.row)
    return not np.isnan(found).any()


def _evaluate_compiled(
    unknown: Sequence[UnknownOptions],
    nodes: FreeResourceTable,
    states: CardStates,
    costs: NodeCosts,
    allowance: Allowance,
) -> bool:
    evaluation = states.evaluation
    assert evaluation is not None
    count = sum(len(one.row) for one in unknown)
    question = evaluation.question(2 * count, nodes.width)
    asked, start = [], 0
    for one in unknown:
        pairs = Pairs(one.row, one.option, question, start)
        evaluation.ask_pairs(nodes, one.options.arrays, costs.standing, pairs)
        asked.append((one.options.arrays, pairs))
        start += len(one.row)
    states.answer(question, 2 * count, allowance)
    left = 0
    for arrays, pairs in asked:
        left += evaluation.know(nodes, arrays, costs.prices, costs.standing, pairs)
    return not left
