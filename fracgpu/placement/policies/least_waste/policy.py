"""The policy ``least-waste``: put a pod where the cluster loses least by it.

The cost of a node's state is the idle card share expected to be left once the node is full
(`fill_sequences`), less what its idle cards are worth to pods that are short of such (`scarcity`).
A pod goes where that cost rises least, over nodes and, for a share, over cards.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import Demand, FreeResources, FreeResourceTable, Index
from fracgpu.placement.policies.least_waste.card_states import MAX_STATES, CardStates
from fracgpu.placement.policies.least_waste.fill_sequences import FillSequences
from fracgpu.placement.policies.least_waste.model_prices import ModelPrices
from fracgpu.placement.policies.least_waste.options import PlacementOptions
from fracgpu.placement.policies.least_waste.scarcity import Scarcity
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

# Prices move slowly: they are set anew after so many changes of nodes.
_REFRESH_EVERY: Final = 16
# A step of warming takes some ten milliseconds at most.
_WARMED_AT_ONCE: Final = 64
# Where nothing else tells nodes apart, fill up the fuller one: a ten-thousandth of what is idle on
# it. With ample CPU and a friendly mix, every card can be filled in the end, in any order.
_TIE_WEIGHT: Final = 1e-4
# Beyond this many kinds of request the ones asked for longest ago are worked out again.
_MAX_OUTCOMES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a pod would cost on each node where it fits.

    Attributes:
        rows: the nodes, as the rows that ``add`` gave them, ascending.
        cost_milli: thousandths of a card that the cluster is expected to lose; lower is better.
        card: for a pod of one card, the best card on that node; else -1.
    """

    rows: Index
    cost_milli: NDArray[np.float64]
    card: Index

    @property
    def best(self) -> int | None:
        """Where in here the best node stands, the lowest row among equals; None where none fits."""
        return int(self.cost_milli.argmin()) if len(self.rows) else None


class LeastWaste:
    """Judges nodes for pods.

    Pure and deterministic: it holds what it is told of nodes and of the mix, and remembers results
    that depend on nothing else.

    Args:
        classes: the workload's mix, from `WorkloadMix.classes`.
        models: card models of the cluster; others may come later.
    """

    def __init__(self, classes: Sequence[PodClass] = (), models: Sequence[str] = ()) -> None:
        self._nodes = FreeResourceTable(models)
        self._rows: dict[str, int] = {}
        self._classes: tuple[PodClass, ...] = tuple(classes)
        self._learnt()

    @property
    def classes(self) -> tuple[PodClass, ...]:
        """The mix that it judges by."""
        return self._classes

    @property
    def rows(self) -> Mapping[str, int]:
        """The row of each node, by name."""
        return self._rows

    @property
    def evaluated(self) -> int:
        """How many states it has worked out since it last learnt a mix; for metrics."""
        return self._states.evaluated

    def learn(self, classes: Sequence[PodClass]) -> None:
        """Judge by another mix from now on.

        What was remembered is void, and the next rankings work it out again. A server that must not
        stall builds a second policy, warms it step by step (`warming`), and then swaps the two.
        """
        self._classes = tuple(classes)
        self._learnt()

    def put(self, name: str, free: FreeResources) -> None:
        """Take note of what a node has left."""
        if free.model not in self._nodes.models:
            self._nodes.know(free.model)
            self._learnt()
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self._nodes.add()
        self._nodes.put(row, free)

    def drop(self, name: str) -> None:
        """Forget a node, if it was known."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._nodes.drop(row)

    def reprice(self) -> None:
        """Set prices from the nodes as they are now, rather than a few changes later."""
        self._priced = -_REFRESH_EVERY
        self._costed = -1

    def rank(self, demand: Demand, *, among: Index | None = None) -> Ranking:
        """Judge the nodes on which a pod fits.

        Args:
            demand: what the pod asks.
            among: rows to judge, ascending and without repeats; None judges every node.
        """
        self._keep_up()
        nodes, states = self._nodes, self._states
        outcome = self._outcome(demand)
        rows = nodes.roomy(demand)
        if among is not None:
            rows = rows[np.isin(rows, among, assume_unique=True)]
        after = outcome.state[rows]
        at, option = np.nonzero(after >= 0)
        node = rows[at]
        state = after[at, option]
        cpu = nodes.cpu_milli[node] - demand.cpu_milli
        cost = states.waste_milli(state, cpu) + outcome.lost_milli[node, option]
        cost = cost - self._scarcity.worth_milli(
            model=nodes.model[node], cpu_milli=cpu, idle_cards=states.idle_cards[state]
        )
        cost -= self._cost_now[node] - _TIE_WEIGHT * self._idle_milli[node]
        cost += self._prices.by_model[nodes.model[node]] * demand.gpu_milli
        first = np.flatnonzero(np.diff(at, prepend=-1))
        if len(first) == len(at):
            return Ranking(rows=node, cost_milli=cost, card=outcome.card[node, option])
        least = np.minimum.reduceat(cost, first)
        # Of a node's equally good cards, the first option is the tightest.
        group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(at))))
        hits = np.flatnonzero(cost == least[group])
        chosen = hits[np.flatnonzero(np.diff(group[hits], prepend=-1))]
        return Ranking(
            rows=node[chosen],
            cost_milli=cost[chosen],
            card=outcome.card[node[chosen], option[chosen]],
        )

    def cards(self, ranking: Ranking, position: int, demand: Demand) -> tuple[int, ...]:
        """Name the cards to take on the node at *position* of a ranking."""
        if demand.cards == 0:
            return ()
        if demand.cards == 1:
            return (int(ranking.card[position]),)
        return self._nodes.cards(int(ranking.rows[position]), demand)

    def warming(self, wants: Sequence[Demand]) -> Iterator[int]:
        """Work out beforehand what rankings of *wants* will need, in steps of some milliseconds.

        Nodes may change between two steps, and rankings may be asked for; what is not worked out by
        then is worked out by whoever needs it.

        Yields:
            After each step, how many states are worked out.
        """
        for part in self._parts():
            self._number()
            self._states.waste_milli(self._state[part], self._cpu_milli(part))
            yield self.evaluated
        for demand in wants:
            for part in self._parts():
                self.rank(demand, among=part)
                yield self.evaluated

    def _parts(self) -> Iterator[Index]:
        start = 0
        while start < self._nodes.size:  # it may grow on the way
            end = min(start + _WARMED_AT_ONCE, self._nodes.size)
            yield np.arange(start, end)
            start = end

    def _learnt(self) -> None:
        self._sequences = FillSequences(self._classes, self._nodes.models)
        self._scarcity = Scarcity(self._classes, self._nodes.models)
        self._prices = ModelPrices(self._classes, self._nodes.models)
        self._forget()

    def _forget(self) -> None:
        self._states = CardStates(self._sequences)
        self._outcomes: dict[tuple[int, int], PlacementOptions] = {}
        self._state = np.zeros(0, np.int64)
        self._lost = np.zeros(0, np.float32)
        self._idle_milli = np.zeros(0, np.int64)
        self._cost_now = np.zeros(0, np.float64)
        self._numbered = self._costed = -1
        self._priced = -_REFRESH_EVERY

    def _number(self) -> None:
        """Find the state of each node that changed."""
        if len(self._states) > MAX_STATES:
            self._forget()
        nodes = self._nodes
        missing = nodes.size - len(self._state)
        if missing:
            self._state = np.concatenate((self._state, np.zeros(missing, np.int64)))
            self._lost = np.concatenate((self._lost, np.zeros(missing, np.float32)))
            self._idle_milli = np.concatenate((self._idle_milli, np.zeros(missing, np.int64)))
            self._cost_now = np.concatenate((self._cost_now, np.zeros(missing)))
        if nodes.now == self._numbered:
            return
        rows = nodes.changed_since(self._numbered)
        self._numbered = nodes.now
        levels = nodes.levels[rows, : nodes.width]
        self._state[rows], self._lost[rows] = self._states.rows(nodes.model[rows], levels)
        self._idle_milli[rows] = levels.sum(1, dtype=np.int64)

    def _keep_up(self) -> None:
        """Bring what is remembered of each node up to date with the table."""
        self._number()
        nodes = self._nodes
        if nodes.now == self._costed:
            return
        rows = nodes.changed_since(self._costed)
        self._costed = nodes.now
        if nodes.now - self._priced >= _REFRESH_EVERY:
            self._priced = nodes.now
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

    def _cpu_milli(self, rows: Index) -> Index:
        # Nodes can be overcommitted, and rows without a node have less than nothing.
        return np.maximum(self._nodes.cpu_milli[rows], 0)

    def _cost(self, rows: Index) -> NDArray[np.float64]:
        state, cpu = self._state[rows], self._cpu_milli(rows)
        waste = self._states.waste_milli(state, cpu) + self._lost[rows]
        return waste - self._scarcity.worth_milli(
            model=self._nodes.model[rows],
            cpu_milli=cpu,
            idle_cards=self._states.idle_cards[state],
        )

    def _outcome(self, demand: Demand) -> PlacementOptions:
        key = (demand.cards, demand.share_milli)
        outcome = self._outcomes.pop(key, None) or PlacementOptions(demand)
        self._outcomes[key] = outcome  # the most recent one stands last
        if len(self._outcomes) > _MAX_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]
        outcome.keep_up(self._nodes, self._states)
        return outcome
