"""The policy ``least-waste``: place a pod where the expected waste of the cluster rises least.

The cost of a node's state is the share of its cards that is expected to stay idle once the node is
full (`fill_sequences`), less what its idle cards are worth to pods that are short of such cards
(`scarcity`). A pod goes where that cost, with the price of the card model (`model_prices`), rises
least: among nodes and, for one card, among the cards of a node.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import (
    Columns,
    Demand,
    FreeResources,
    FreeResourceTable,
    IntArray,
)
from fracgpu.placement.policies.least_waste.card_states import MAX_STATES, CardStates
from fracgpu.placement.policies.least_waste.fill_sequences import FillSequences
from fracgpu.placement.policies.least_waste.model_prices import ModelPrices
from fracgpu.placement.policies.least_waste.options import PlacementOptions
from fracgpu.placement.policies.least_waste.scarcity import Scarcity
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

# Prices move slowly: they are computed again after this many changes of nodes.
_REFRESH_EVERY: Final = 16
# Nodes for each step of warming, so that a step takes about ten milliseconds at most.
_WARMED_AT_ONCE: Final = 64
# Between otherwise equal nodes prefer the fuller one: a ten-thousandth of what is idle on a node is
# added to its cost. With ample CPU and many small pods every card can be filled in any order, and
# all other costs are equal.
_TIE_WEIGHT: Final = 1e-4
NONE_CLOSED: Final[Mapping[int, Columns]] = MappingProxyType({})
# Beyond this many kinds of pods the options of the least recently used kind are dropped.
_MAX_OPTIONS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a pod would cost on each node where it fits; the arrays have one entry for each.

    Attributes:
        rows: the nodes as rows of the policy's table, ascending.
        cost_milli: thousandths of a card that the cluster is expected to lose; lower is better.
        card: for a pod on one card, the best card of that node; else -1.
    """

    rows: IntArray
    cost_milli: NDArray[np.float64]
    card: IntArray

    @property
    def best(self) -> int | None:
        """The position of the best node, the lowest row among equals; None if none fits."""
        return int(self.cost_milli.argmin()) if len(self.rows) else None


class LeastWaste:
    """Ranks nodes for pods.

    Pure and deterministic: it does no I/O, and the same calls in the same order give the same
    answers. Prices lag behind the nodes by a few changes; all other caches change no answer.

    Args:
        classes: the workload's mix, from `WorkloadMix.classes`.
        models: card models of the cluster; `put` adds others.
    """

    def __init__(self, classes: Sequence[PodClass] = (), models: Sequence[str] = ()) -> None:
        self._nodes = FreeResourceTable(models)
        self._rows: dict[str, int] = {}
        self._classes: tuple[PodClass, ...] = tuple(classes)
        self._rebuild()

    @property
    def classes(self) -> tuple[PodClass, ...]:
        """The mix that the ranking is based on."""
        return self._classes

    @property
    def rows(self) -> Mapping[str, int]:
        """The row of each node, by name."""
        return self._rows

    @property
    def evaluated(self) -> int:
        """How many states have been evaluated since the mix was last set; for metrics."""
        return self._states.evaluated

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
    ) -> Ranking:
        """Return the cost of a pod on each node on which it fits.

        Args:
            demand: what the pod requests.
            among: rows to rank, ascending and without repeats; None ranks every node.
            closed: cards that this pod does not get, by row.
        """
        self._keep_up()
        nodes, states = self._nodes, self._states
        options = self._options_of(demand)
        if closed:
            options = options.without(closed, nodes, states)
        rows = nodes.candidate_rows(demand)
        if among is not None:
            rows = rows[np.isin(rows, among, assume_unique=True)]
        # One entry for each option of each node, in order of nodes: `at` counts within *rows*.
        after = options.state[rows]
        at, option = np.nonzero(after >= 0)
        node = rows[at]
        cost = self._rise(demand, options, node, option)
        # Where the options of each node begin; `at` ascends, so they are adjacent.
        first = np.flatnonzero(np.diff(at, prepend=-1))
        if len(first) == len(at):
            return Ranking(rows=node, cost_milli=cost, card=options.card[node, option])
        least = np.minimum.reduceat(cost, first)
        # Keep the first option of least cost of each node: options are ordered by tightness.
        group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(at))))
        hits = np.flatnonzero(cost == least[group])
        chosen = hits[np.flatnonzero(np.diff(group[hits], prepend=-1))]
        return Ranking(
            rows=node[chosen],
            cost_milli=cost[chosen],
            card=options.card[node[chosen], option[chosen]],
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
        cost = np.full(len(rows), np.nan)
        # Cards of a node with one free level lead to one state: look for the option of that level.
        first = options.card[rows]
        levels = nodes.levels[rows[:, np.newaxis], first]
        same = (levels == nodes.levels[rows, columns][:, np.newaxis]) & (options.state[rows] >= 0)
        fits = same.any(1) & np.isin(rows, nodes.candidate_rows(demand))
        cost[fits] = self._rise(demand, options, rows[fits], same[fits].argmax(1))
        return cost

    def _rise(
        self, demand: Demand, options: PlacementOptions, node: IntArray, option: IntArray
    ) -> NDArray[np.float64]:
        """Return how much the cost of each node rises if a pod takes that option of it."""
        nodes, states = self._nodes, self._states
        state = options.state[node, option]
        cpu = nodes.cpu_milli[node] - demand.cpu_milli
        waste = states.waste_milli(state, cpu) + options.lost_milli[node, option]
        cost: NDArray[np.float64] = waste - self._scarcity.worth_milli(
            model=nodes.model[node], cpu_milli=cpu, idle_cards=states.idle_cards[state]
        )
        # The rise over the cost as the node is now; idle cards break ties, see _TIE_WEIGHT.
        cost -= self._cost_now[node] - _TIE_WEIGHT * self._idle_milli[node]
        cost += self._prices.by_model[nodes.model[node]] * demand.gpu_milli
        return cost

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
        """Fill the caches for rankings of *demands*, in steps of some milliseconds.

        Nodes may change between two steps, and `rank` may be called; a ranking evaluates what it
        needs and does not find.

        Yields:
            After each step, how many states have been evaluated.
        """
        for part in self._parts():
            self._update_states()
            self._states.waste_milli(self._state[part], self._cpu_milli(part))
            yield self.evaluated
        for demand in demands:
            for part in self._parts():
                self.rank(demand, among=part)
                yield self.evaluated

    def _parts(self) -> Iterator[IntArray]:
        start = 0
        while start < self._nodes.size:  # the table may grow between two steps
            end = min(start + _WARMED_AT_ONCE, self._nodes.size)
            yield np.arange(start, end)
            start = end

    def _rebuild(self) -> None:
        self._sequences = FillSequences(self._classes, self._nodes.models)
        self._scarcity = Scarcity(self._classes, self._nodes.models)
        self._prices = ModelPrices(self._classes, self._nodes.models)
        self._clear_caches()

    def _clear_caches(self) -> None:
        """Empty the caches; the arrays are [row], over the rows of the table of nodes."""
        self._states = CardStates(self._sequences)
        self._options: dict[tuple[int, int], PlacementOptions] = {}
        self._state = np.zeros(0, np.int64)
        self._lost = np.zeros(0, np.float32)
        self._idle_milli = np.zeros(0, np.int64)
        self._cost_now = np.zeros(0, np.float64)
        self._states_at = self._costs_at = -1
        self._prices_at = -_REFRESH_EVERY

    def _update_states(self) -> None:
        """Update the state of each node that changed."""
        if len(self._states) > MAX_STATES:
            self._clear_caches()
        nodes = self._nodes
        missing = nodes.size - len(self._state)
        if missing:
            self._state = np.concatenate((self._state, np.zeros(missing, np.int64)))
            self._lost = np.concatenate((self._lost, np.zeros(missing, np.float32)))
            self._idle_milli = np.concatenate((self._idle_milli, np.zeros(missing, np.int64)))
            self._cost_now = np.concatenate((self._cost_now, np.zeros(missing)))
        if nodes.now == self._states_at:
            return
        rows = nodes.changed_since(self._states_at)
        self._states_at = nodes.now
        levels = nodes.levels[rows, : nodes.width]
        self._state[rows], self._lost[rows] = self._states.rows(nodes.model[rows], levels)
        self._idle_milli[rows] = levels.sum(1, dtype=np.int64)

    def _keep_up(self) -> None:
        """Update the cached state and cost of each node that changed."""
        self._update_states()
        nodes = self._nodes
        if nodes.now == self._costs_at:
            return
        rows = nodes.changed_since(self._costs_at)
        self._costs_at = nodes.now
        if nodes.now - self._prices_at >= _REFRESH_EVERY:
            self._prices_at = nodes.now
            rows = np.arange(nodes.size)
            self._scarcity.refresh(
                model=nodes.model[rows],
                cpu_milli=nodes.cpu_milli[rows],
                idle_cards=self._states.idle_cards[self._state],
            )
            self._prices.refresh(
                model=nodes.model[rows], idle_milli=self._idle_milli, cards=nodes.cards_there[rows]
            )
        self._cost_now[rows] = self._cost(rows)

    def _cpu_milli(self, rows: IntArray) -> IntArray:
        # Negative if the node is overcommitted; -1 in a row without a node.
        return np.maximum(self._nodes.cpu_milli[rows], 0)

    def _cost(self, rows: IntArray) -> NDArray[np.float64]:
        state, cpu = self._state[rows], self._cpu_milli(rows)
        waste = self._states.waste_milli(state, cpu) + self._lost[rows]
        return waste - self._scarcity.worth_milli(
            model=self._nodes.model[rows],
            cpu_milli=cpu,
            idle_cards=self._states.idle_cards[state],
        )

    def _options_of(self, demand: Demand) -> PlacementOptions:
        key = (demand.cards, demand.share_milli)
        options = self._options.pop(key, None) or PlacementOptions(demand)
        self._options[key] = options  # a dict keeps insertion order: most recent last
        if len(self._options) > _MAX_OPTIONS:
            del self._options[next(iter(self._options))]
        options.keep_up(self._nodes, self._states)
        return options
