"""The policy ``least-waste``: place a pod where the expected waste of the cluster rises least.

The cost of a node's state is what is wasted of its cards (`node_waste`: what is expected to stay
idle once the node is full, and what the next pod cannot use), less what its idle cards are worth to
pods that are short of such cards (`scarcity`). How much each counts depends on whether pods leave
(`turnover`). A pod goes where that cost, with the price of the card model (`model_prices`), rises
least: among nodes and, for one card, among the cards of a node.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import Columns, Demand, FreeResources, IntArray
from fracgpu.placement.policies.least_waste.card_states import Allowance, CardStates
from fracgpu.placement.policies.least_waste.fill.compiled_fill import CompiledFill
from fracgpu.placement.policies.least_waste.fill.fill_sequences import FillSequences, drawing
from fracgpu.placement.policies.least_waste.fragments import Fragments
from fracgpu.placement.policies.least_waste.node_costs import NodeCosts
from fracgpu.placement.policies.least_waste.node_waste import NodeWaste
from fracgpu.placement.policies.least_waste.options import NONE_CLOSED, PlacementOptions
from fracgpu.placement.policies.least_waste.ranking import Ranking
from fracgpu.placement.policies.least_waste.turnover import FILLING, Weights
from fracgpu.placement.policies.least_waste.unknown_options import UnknownOptions, evaluate
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

_WARMED_AT_ONCE: Final = 128  # nodes at which a step of warming looks, and what it evaluates
_STEP_MS: Final = 1
# How many kinds of pods, or how many rows of nodes, a step can look at if it evaluates nothing.
_LOOKS, _ROWS_LOOKED_AT = 16, 4_096
# A state at two amounts of CPU; that of the node as it is now is shared by its options.
_EVALUATIONS_PER_OPTION: Final = 2
# The options of the least recently ranked kinds of pods are dropped: beyond 36 MB, at 6 bytes for
# each card of each node, but not below as many kinds as are common together.
_MAX_CELLS: Final = 6_000_000
_FEWEST_KINDS, _MOST_KINDS = 16, 512


@dataclass(slots=True)
class _Step:
    """What one step of warming evaluates.

    Attributes:
        left: how many evaluations there is time for.
        unknown: what to evaluate.
        seen: kinds of pods of which all is known after it, up to the number of a change of nodes,
            with the most cards of a node.
    """

    left: int
    unknown: list[UnknownOptions] = field(default_factory=list)
    seen: list[tuple[PlacementOptions, int, int]] = field(default_factory=list)


class LeastWaste:
    """Ranks nodes for pods.

    Pure and deterministic: it does no I/O, and the same calls in the same order give the same
    answers. Prices lag behind the nodes by a few changes; all other caches change no answer.

    Args:
        classes: the workload's mix, from `WorkloadMix.classes`.
        models: card models of the cluster; `put` adds others.
        weights: what counts how much.
        compiled: whether compiled code finds options, states and costs; the answers are the same.

    Attributes:
        weights: as given.
    """

    def __init__(
        self,
        classes: Sequence[PodClass] = (),
        models: Sequence[str] = (),
        weights: Weights = FILLING,
        *,
        compiled: bool = CompiledFill.problem is None,
    ) -> None:
        self.weights = weights
        self._compiled = compiled
        self._nodes = FreeResourceTable(models)
        self._rows: dict[str, int] = {}
        self.learn(classes)

    @property
    def classes(self) -> tuple[PodClass, ...]:
        """The mix that the ranking is based on."""
        return self._classes

    @property
    def models(self) -> tuple[str, ...]:
        """The card models that it knows."""
        return self._nodes.models

    @property
    def rows(self) -> Mapping[str, int]:
        """The row of each node, by name."""
        return self._rows

    @property
    def evaluated(self) -> int:
        """How many states have been evaluated since the mix was last set; for metrics."""
        return self._states.evaluated

    def evaluated_in(self, time_ms: int) -> int:
        """Return how many evaluations take about that time: a count, whatever the load."""
        return self._waste.evaluated_in(time_ms)

    def learn(self, classes: Sequence[PodClass]) -> None:
        """Set another mix. This empties all caches, and the next rankings fill them again.

        A server that must not stall builds another policy in steps: `learning`, then `warming`.
        """
        for _ in self.learning(classes):
            pass

    def learning(self, classes: Sequence[PodClass]) -> Iterator[None]:
        """Set another mix in steps of a few milliseconds; it counts from the last one on.

        No card model may be added between two steps, as `put` may do.
        """
        nodes, weights = self._nodes, self.weights
        sequences = FillSequences((yield from drawing(classes, nodes.models)))
        # Its tables may be large, and only these weights read them.
        fragments = Fragments(classes if weights.fragment else (), nodes.models)
        yield
        waste = NodeWaste(sequences, fragments, weights)
        made_for = len(nodes.model)
        states = CardStates(
            waste, models=len(nodes.models), nodes=made_for, compiled=self._compiled
        )
        yield
        costs = NodeCosts(classes, nodes, states, weights)
        self._classes: tuple[PodClass, ...] = tuple(classes)
        self._waste, self._states, self._costs = waste, states, costs
        self._made_for = made_for
        self._options: dict[tuple[int, int, int], PlacementOptions] = {}

    def put(self, name: str, free: FreeResources) -> None:
        """Set what a node has free."""
        if free.model not in self._nodes.models:
            self._nodes.add_model(free.model)
            self.learn(self._classes)
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self._nodes.add()
        self._nodes.put(row, free)

    def drop(self, name: str) -> None:
        """Remove a node; an unknown one changes nothing."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._nodes.drop(row)

    def reprice(self) -> None:
        """Compute the prices again at the next ranking, rather than a few changes later."""
        self._costs.reprice()

    def rank(
        self,
        demand: Demand,
        *,
        among: IntArray | None = None,
        closed: Mapping[int, Columns] = NONE_CLOSED,
        allowance: Allowance | None = None,
    ) -> Ranking:
        """Return the cost of a pod on each node on which it fits.

        Args:
            demand: what the pod requests.
            among: rows to rank, ascending, without repeats; None ranks every node.
            closed: cards that this pod does not get, by row.
            allowance: how many states may be evaluated; None for as many as it takes.
        """
        self._keep_up()
        nodes = self._nodes
        # A pod that does not get some cards has options that no other pod has.
        options = PlacementOptions(demand) if closed else self._options_of(demand)
        if among is not None and not closed:
            found = self._costs.candidates(demand, options, among)
            if found.ranking is not None:
                return found.ranking
            rows = found.rows
        else:
            rows = nodes.candidate_rows(demand, among)
            options.update(nodes, self._states, rows, closed)
        complete = self._evaluate(options, rows, allowance or Allowance(), closed)
        return self._costs.ranking(demand, options, rows, complete=complete)

    def position(self, ranking: Ranking, row: int) -> int | None:
        """Return where a node is in a ranking without closed cards, if it holds there still."""
        self._keep_up()
        changed = int(self._nodes.changed[row])
        return ranking.position_of(row, changed=changed, priced=self._costs.priced)

    def card_costs(self, demand: Demand, rows: IntArray, columns: IntArray) -> NDArray[np.float64]:
        """Return the cost of a pod on one card for each of some cards, as `rank` has it.

        Args:
            demand: what the pod requests; one card.
            rows: the node of each card.
            columns: its place among the cards of the node.

        Returns:
            [card] thousandths of a card; NaN where the pod does not fit.
        """
        self._keep_up()
        nodes = self._nodes
        options = self._options_of(demand)
        candidates = np.intersect1d(rows, nodes.candidate_rows(demand))
        options.update(nodes, self._states, candidates)
        self._evaluate(options, candidates, Allowance())
        cost = np.full(len(rows), np.nan)
        # Cards of a node with one free level lead to one state: look for the option of that level.
        first = options.card[rows]
        levels = nodes.levels[rows[:, np.newaxis], first]
        same = levels == nodes.levels[rows, columns][:, np.newaxis]
        same &= options.idle_cards[rows] >= 0
        fits = same.any(1) & np.isin(rows, candidates)
        cost[fits] = self._costs.rise(demand, options, rows[fits], same[fits].argmax(1))
        return cost

    def _evaluate(
        self,
        options: PlacementOptions,
        rows: IntArray,
        allowance: Allowance,
        closed: Mapping[int, Columns] = NONE_CLOSED,
    ) -> bool:
        """Evaluate what is not known of some options and their nodes; return whether all is."""
        nodes, states, costs = self._nodes, self._states, self._costs
        row, option = options.unknown(nodes, states, rows, costs.standing)
        wanted = len(row)
        if not wanted or allowance.spent:
            return not wanted
        most = allowance.most(wanted)
        unknown = [UnknownOptions(options, row[:most], option[:most])]
        known = evaluate(unknown, nodes, states, costs, allowance, closed)
        return known and most == wanted

    def cards(
        self,
        ranking: Ranking,
        position: int,
        demand: Demand,
        closed: Mapping[int, Columns] = NONE_CLOSED,
    ) -> tuple[int, ...]:
        """Return the cards to take on the node at *position* of a ranking, with its *closed*."""
        if demand.cards == 0:
            return ()
        if demand.cards == 1:
            return (int(ranking.card[position]),)
        row = int(ranking.rows[position])
        return self._nodes.cards(row, demand, closed.get(row, frozenset()))

    def warming(self, demands: Sequence[Demand]) -> Iterator[int]:
        """Evaluate what rankings need, of these *demands* and of those ranked lately, in steps.

        A step takes some milliseconds. Nodes may change between two steps, and `rank` may be
        called.

        Yields:
            After each step, how many states have been evaluated.
        """
        for demand in reversed(demands[: self._most_kinds]):
            self._options_of(demand)
        while not (yield from self._warmed_once()):
            pass

    def _warmed_once(self) -> Generator[int, None, bool]:
        """Go once over all kinds of pods and the nodes that changed; return whether all was known.

        Each step evaluates what is unknown of as many kinds as it has time for.
        """
        nodes, all_known = self._nodes, True
        step = _Step(self.evaluated_in(_STEP_MS))
        for key in reversed(tuple(self._options)):  # rankings meanwhile change the order
            options = self._options.get(key)
            if options is None or options.complete_at == nodes.now:  # the former if it was dropped
                continue
            moment, width = nodes.now, nodes.width
            rows = options.asked_of(nodes.model, nodes.changed_since(options.complete_at))
            for start in range(0, len(rows), _WARMED_AT_ONCE):
                part, more = rows[start : start + _WARMED_AT_ONCE], True
                while more:
                    more = self._look(step, options, part)
                    if step.left <= 0:
                        all_known &= self._end(step)
                        yield self.evaluated
            step.seen.append((options, moment, width))
        if step.unknown:
            all_known &= self._end(step)
            yield self.evaluated
        else:
            self._end(step)
        return all_known

    def _look(self, step: _Step, options: PlacementOptions, rows: IntArray) -> bool:
        """Add what is unknown of some rows to a step; report whether there is more."""
        self._keep_up()
        nodes, states = self._nodes, self._states
        options.update(nodes, states, rows)
        row, option = options.unknown(nodes, states, rows, self._costs.standing)
        budget = self.evaluated_in(_STEP_MS)
        step.left -= budget // _LOOKS + budget * len(rows) // _ROWS_LOOKED_AT
        # However little is left, a look that finds something was not in vain.
        most = max(1, max(step.left, budget // 2) // _EVALUATIONS_PER_OPTION)
        if len(row):
            step.unknown.append(UnknownOptions(options, row[:most], option[:most]))
            step.left -= _EVALUATIONS_PER_OPTION * len(row)
        return len(row) > most

    def _end(self, step: _Step) -> bool:
        """Evaluate what a step has found; report whether that is known now, and begin another."""
        allowance = self.evaluated_in(_STEP_MS)
        known = not step.unknown or evaluate(
            step.unknown, self._nodes, self._states, self._costs, Allowance(allowance)
        )
        for options, moment, width in step.seen if known else ():
            if self._nodes.width == width:  # else the options of every row have been forgotten
                options.complete_at = moment
        step.left = allowance
        step.unknown.clear()
        step.seen.clear()
        return known

    def _keep_up(self) -> None:
        rows = len(self._nodes.model)
        if rows > self._made_for:  # what is known of nodes and options stays
            self._made_for = rows
            self._states.make_room(nodes=rows)
        self._costs.keep_up()

    def _options_of(self, demand: Demand) -> PlacementOptions:
        key = (demand.cards, demand.share_milli, demand.cpu_milli)
        options = self._options.pop(key, None) or PlacementOptions(demand)
        self._options[key] = options  # a dict keeps insertion order: most recent last
        while len(self._options) > self._most_kinds:
            del self._options[next(iter(self._options))]
        return options

    @property
    def _most_kinds(self) -> int:
        """How many kinds of pods have options: what fits in a bounded number of cells."""
        cells = max(1, len(self._nodes.model) * self._nodes.width)
        return min(max(_MAX_CELLS // cells, _FEWEST_KINDS), _MOST_KINDS)
