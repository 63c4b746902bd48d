"""The policy ``least-waste``: place a pod where the expected waste of the cluster rises least.

The cost of a node's state is what is wasted of its cards (`node_waste`: what is expected to stay
idle once the node is full, and what the next pod cannot use), less what its idle cards are worth to
pods that are short of such cards (`scarcity`). How much each counts depends on whether pods leave
(`turnover`). A pod goes where that cost, with the price of the card model (`model_prices`), rises
least: among nodes and, for one card, among the cards of a node.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import (
    WHOLE_CARD_MILLI,
    Columns,
    Demand,
    FreeResources,
    FreeResourceTable,
    IntArray,
)
from fracgpu.placement.policies.least_waste.card_states import Allowance, CardStates
from fracgpu.placement.policies.least_waste.fill.fill_sequences import FillSequences
from fracgpu.placement.policies.least_waste.fragments import Fragments
from fracgpu.placement.policies.least_waste.model_prices import ModelPrices
from fracgpu.placement.policies.least_waste.node_waste import NodeWaste
from fracgpu.placement.policies.least_waste.options import NONE_CLOSED, PlacementOptions
from fracgpu.placement.policies.least_waste.ranking import Ranking
from fracgpu.placement.policies.least_waste.scarcity import Scarcity
from fracgpu.placement.policies.least_waste.turnover import FILLING, Weights
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

# Prices move slowly: they are computed again after this many changes of nodes.
_REFRESH_EVERY: Final = 16
_WARMED_AT_ONCE: Final = 512  # nodes at which a step of warming looks, and what it evaluates
_STEP_MS: Final = 2
# The options of the least recently ranked kinds of pods are dropped: beyond 36 MB, at 6 bytes for
# each card of each node, but not below as many kinds as are common together.
_MAX_CELLS: Final = 6_000_000
_FEWEST_KINDS, _MOST_KINDS = 16, 512


class LeastWaste:
    """Ranks nodes for pods.

    Pure and deterministic: it does no I/O, and the same calls in the same order give the same
    answers. Prices lag behind the nodes by a few changes; all other caches change no answer.

    Args:
        classes: the workload's mix, from `WorkloadMix.classes`.
        models: card models of the cluster; `put` adds others.
        weights: what counts how much.

    Attributes:
        weights: as given.
    """

    def __init__(
        self,
        classes: Sequence[PodClass] = (),
        models: Sequence[str] = (),
        weights: Weights = FILLING,
    ) -> None:
        self.weights = weights
        self._nodes = FreeResourceTable(models)
        self._rows: dict[str, int] = {}
        self._classes: tuple[PodClass, ...] = tuple(classes)
        self._rebuild()

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
        """Set another mix.

        This empties all caches, and the next rankings fill them again. A server that must not stall
        builds a second policy, warms it step by step (`warming`), and then swaps the two.
        """
        self._classes = tuple(classes)
        self._rebuild()

    def put(self, name: str, free: FreeResources) -> None:
        """Set what a node has free."""
        if free.model not in self._nodes.models:
            self._nodes.add_model(free.model)
            self._rebuild()
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
        self._prices_at = -_REFRESH_EVERY
        self._costs_at = -1

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
            among: rows to rank, without repeats; None ranks every node.
            closed: cards that this pod does not get, by row.
            allowance: how many states may be evaluated; None for as many as it takes.
        """
        self._keep_up()
        nodes = self._nodes
        rows = nodes.candidate_rows(demand)
        if among is not None:
            named = np.zeros(nodes.size, np.bool_)
            named[among] = True
            rows = rows[named[rows]]
        # A pod that does not get some cards has options that no other pod has.
        options = PlacementOptions(demand) if closed else self._options_of(demand)
        options.update(nodes, self._states, rows, closed)
        self._evaluate(options, rows, allowance or Allowance(), closed)
        # One entry for each option of each node, in order of nodes: `at` counts within *rows*.
        at, option = np.nonzero(options.idle_cards[rows] >= 0)
        node = rows[at]
        cost = self._rise(demand, options, node, option)
        # Where the options of each node begin; `at` ascends, so they are adjacent.
        first = np.flatnonzero(np.diff(at, prepend=-1))
        if len(first) == len(at):
            return Ranking(
                rows=node, cost_milli=cost, card=options.card[node, option].astype(np.int64)
            )
        # Options that are not known come last, and count where no other is there.
        cost[np.isnan(cost)] = np.inf
        least = np.minimum.reduceat(cost, first)
        # Keep the first option of least cost of each node: options are ordered by tightness.
        group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(at))))
        hits = np.flatnonzero(cost == least[group])
        chosen = hits[np.flatnonzero(np.diff(group[hits], prepend=-1))]
        cost[np.isinf(cost)] = np.nan
        return Ranking(
            rows=node[chosen],
            cost_milli=cost[chosen],
            card=options.card[node[chosen], option[chosen]].astype(np.int64),
        )

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
        cost[fits] = self._rise(demand, options, rows[fits], same[fits].argmax(1))
        return cost

    def _rise(
        self, demand: Demand, options: PlacementOptions, node: IntArray, option: IntArray
    ) -> NDArray[np.float64]:
        """Return how much the cost of each node rises if a pod takes that option of it."""
        nodes = self._nodes
        cost: NDArray[np.float64] = options.waste_milli[node, option] - self._scarcity.worth_milli(
            model=nodes.model[node],
            cpu_milli=nodes.cpu_milli[node] - demand.cpu_milli,
            idle_cards=options.idle_cards[node, option].astype(np.int64),
        )
        # The rise over the cost as the node is now; a fuller node is preferred.
        cost -= self._cost_now[node] - self.weights.idle * self._idle_milli[node]
        cost += self._prices.by_model[nodes.model[node]] * demand.gpu_milli
        return cost

    def _evaluate(
        self,
        options: PlacementOptions,
        rows: IntArray,
        allowance: Allowance,
        closed: Mapping[int, Columns] = NONE_CLOSED,
    ) -> bool:
        """Evaluate what is not known of some options and their nodes; report whether all is known.

        An option is of use only with the cost of its node as it is now, so both come in turn.
        """
        nodes, states = self._nodes, self._states
        row, option = options.unknown(nodes, rows, np.isnan(self._waste_now[rows]))
        wanted = len(row)
        if not wanted or allowance.spent:
            return not wanted
        row, option = (found[: allowance.most(wanted)] for found in (row, option))
        names, lost, cpu_milli, levels = options.states_of(nodes, states, row, option, closed)
        now = nodes.levels[row, : nodes.width]
        found = states.evaluate(
            np.stack((self._name[row], names), axis=1).ravel(),
            np.stack((self._cpu_milli(row), cpu_milli), axis=1).ravel(),
            model=np.repeat(nodes.model[row], 2),
            levels=np.stack((now, levels), axis=1).reshape(2 * len(row), -1),
            allowance=allowance,
        ).reshape(-1, 2)
        # What is known stays where the table has forgotten it and the allowance is spent.
        seen, also = ~np.isnan(found[:, 0]), ~np.isnan(found[:, 1])
        self._waste_now[row[seen]] = found[seen, 0] + self._lost[row[seen]]
        changed = np.unique(row)
        self._cost_now[changed] = self._cost(changed)
        options.waste_milli[row[also], option[also]] = found[also, 1] + lost[also]
        return len(row) == wanted and not np.isnan(found).any()

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
        for key in reversed(tuple(self._options)):  # rankings meanwhile change the order
            yield from self._warming_one(key)

    def _warming_one(self, key: tuple[int, int, int]) -> Iterator[int]:
        """Evaluate what rankings of one kind of pods need, of the nodes that changed."""
        if key not in self._options:  # it was dropped meanwhile
            return
        options, nodes = self._options[key], self._nodes
        if options.complete_at == nodes.now:
            return
        moment, rows, width = nodes.now, nodes.changed_since(options.complete_at), nodes.width
        for start in range(0, len(rows), _WARMED_AT_ONCE):
            part, known = rows[start : start + _WARMED_AT_ONCE], False
            while not known:
                self._keep_up()
                options.update(nodes, self._states, part)
                known = self._evaluate(options, part, Allowance(self.evaluated_in(_STEP_MS)))
                yield self.evaluated
        if nodes.width == width:  # else the options of every row have been forgotten
            options.complete_at = moment

    def _rebuild(self) -> None:
        models = self._nodes.models
        self._waste = NodeWaste(
            FillSequences(self._classes, models),
            # Its tables may be large, and only these weights read them.
            Fragments(self._classes if self.weights.fragment else (), models),
            self.weights,
        )
        self._scarcity = Scarcity(self._classes, models, weight=self.weights.scarcity)
        self._prices = ModelPrices(self._classes, models)
        self._clear_caches()

    def _clear_caches(self) -> None:
        """Empty the caches; the arrays are [row], over the rows of the table of nodes."""
        self._made_for = len(self._nodes.model)
        self._states = CardStates(self._waste, models=len(self._nodes.models), nodes=self._made_for)
        self._options: dict[tuple[int, int, int], PlacementOptions] = {}
        self._name = np.zeros(0, np.uint64)
        self._lost = np.zeros(0, np.float32)
        self._waste_now = np.zeros(0, np.float32)
        self._idle_cards = np.zeros(0, np.int64)
        self._idle_milli = np.zeros(0, np.int64)
        self._cost_now = np.zeros(0, np.float64)
        self._states_at = self._costs_at = -1
        self._prices_at = -_REFRESH_EVERY

    def _make_room(self) -> None:
        nodes = self._nodes
        missing = nodes.size - len(self._name)
        if not missing:
            return
        if len(nodes.model) > self._made_for:  # what is known of nodes and options stays
            self._made_for = len(nodes.model)
            self._states.make_room(nodes=self._made_for)
        self._name = np.concatenate((self._name, np.zeros(missing, np.uint64)))
        self._lost = np.concatenate((self._lost, np.zeros(missing, np.float32)))
        self._waste_now = np.concatenate((self._waste_now, np.full(missing, np.nan, np.float32)))
        self._idle_cards = np.concatenate((self._idle_cards, np.zeros(missing, np.int64)))
        self._idle_milli = np.concatenate((self._idle_milli, np.zeros(missing, np.int64)))
        self._cost_now = np.concatenate((self._cost_now, np.zeros(missing)))

    def _keep_up(self) -> None:
        """Update the cached state and cost of each node that changed."""
        self._make_room()
        nodes = self._nodes
        if nodes.now == self._costs_at:
            return
        rows = nodes.changed_since(self._costs_at)
        self._costs_at = nodes.now
        levels, model = nodes.levels[rows, : nodes.width], nodes.model[rows]
        self._name[rows], self._lost[rows] = self._states.names(model, levels)
        self._waste_now[rows] = self._lost[rows] + self._states.waste_milli(
            self._name[rows], self._cpu_milli(rows)
        )
        self._idle_cards[rows] = (levels == WHOLE_CARD_MILLI).sum(1)
        self._idle_milli[rows] = levels.sum(1, dtype=np.int64)
        if nodes.now - self._prices_at >= _REFRESH_EVERY:
            self._prices_at = nodes.now
            rows = np.arange(nodes.size)
            self._scarcity.refresh(
                model=nodes.model[rows],
                cpu_milli=nodes.cpu_milli[rows],
                idle_cards=self._idle_cards,
            )
            self._prices.refresh(
                model=nodes.model[rows], idle_milli=self._idle_milli, cards=nodes.cards_there[rows]
            )
        self._cost_now[rows] = self._cost(rows)

    def _cpu_milli(self, rows: IntArray) -> IntArray:
        # Negative if the node is overcommitted; -1 in a row without a node.
        return np.maximum(self._nodes.cpu_milli[rows], 0)

    def _cost(self, rows: IntArray) -> NDArray[np.float64]:
        cost: NDArray[np.float64] = self._waste_now[rows] - self._scarcity.worth_milli(
            model=self._nodes.model[rows],
            cpu_milli=self._cpu_milli(rows),
            idle_cards=self._idle_cards[rows],
        )
        return cost

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
        cells = max(1, self._nodes.size * self._nodes.width)
        return min(max(_MAX_CELLS // cells, _FEWEST_KINDS), _MOST_KINDS)
