"""What each node costs as it is, and by how much that rises with a pod.

The cost of a node is what is wasted of its cards, less what its idle cards are worth to pods that
are short of such cards (`scarcity`). A pod adds the price of the card model (`model_prices`).
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI, Demand, IntArray
from fracgpu.placement.policies.least_waste.card_states import CardStates
from fracgpu.placement.policies.least_waste.fill.compiled_options import (
    NodeArrays,
    PriceArrays,
)
from fracgpu.placement.policies.least_waste.fill.compiled_states import Names, Waste
from fracgpu.placement.policies.least_waste.model_prices import ModelPrices
from fracgpu.placement.policies.least_waste.options import PlacementOptions
from fracgpu.placement.policies.least_waste.ranking import Ranking, cheapest_of_each
from fracgpu.placement.policies.least_waste.scarcity import Scarcity
from fracgpu.placement.policies.least_waste.turnover import Weights
from fracgpu.placement.policies.least_waste.workload_mix import PodClass

# Prices move slowly: they are computed again after this many changes of nodes.
_REFRESH_EVERY: Final = 16


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that have CPU, memory and a model for a pod.

    Attributes:
        rows: the nodes, ascending.
        ranking: their ranking, if it was found at once.
    """

    rows: IntArray
    ranking: Ranking | None


class NodeCosts:
    """The state and the cost of each node; `keep_up` follows its changes.

    Args:
        classes: the workload's mix.
        nodes: the nodes.
        states: what is known of states.
        weights: what counts how much.

    Attributes:
        name: [row] the state of the node's cards.
        waste_milli: [row] what is wasted of them; NaN until it is known.
        standing: these and more, for compiled code.
        prices: what counts beside the waste, for compiled code.
        priced: the number of the change of nodes as of which the prices are.
    """

    def __init__(
        self,
        classes: Sequence[PodClass],
        nodes: FreeResourceTable,
        states: CardStates,
        weights: Weights,
    ) -> None:
        self._nodes, self._states, self._weights = nodes, states, weights
        compiled = states.options is not None
        self._scarcity = Scarcity(classes, nodes.models, weights, compiled=compiled)
        self._model_prices = ModelPrices(classes, nodes.models)
        self._allocate(0)
        self._seen = -1
        self.priced = -_REFRESH_EVERY

    def _allocate(self, rows: int) -> None:
        self.name: Names = np.zeros(rows, np.uint64)
        self._lost: Waste = np.zeros(rows, np.float32)
        self.waste_milli: Waste = np.full(rows, np.nan, np.float32)
        self._idle_cards: IntArray = np.zeros(rows, np.int64)
        self._idle_milli: IntArray = np.zeros(rows, np.int64)
        self._cost: NDArray[np.float64] = np.zeros(rows, np.float64)
        self.prices = PriceArrays(
            worth=self._scarcity.worth,
            cpu_steps=self._scarcity.cpu_steps,
            by_model=self._model_prices.by_model,
            cost_now=self._cost,
            idle_milli=self._idle_milli,
            idle=self._weights.idle,
        )
        self.standing = NodeArrays(
            *(self.name, self._lost, self.waste_milli),
            idle_cards=self._idle_cards,
            idle_milli=self._idle_milli,
            cost=self._cost,
        )

    def reprice(self) -> None:
        """Compute the prices again at the next `keep_up`, rather than a few changes later."""
        self.priced = -_REFRESH_EVERY
        self._seen = -1

    def _make_room(self) -> None:
        before, size = len(self.name), self._nodes.size
        if before == size:
            return
        kept = self.name, self._lost, self.waste_milli
        sums = self._idle_cards, self._idle_milli, self._cost
        self._allocate(size)
        self.name[:before], self._lost[:before], self.waste_milli[:before] = kept
        self._idle_cards[:before], self._idle_milli[:before], self._cost[:before] = sums

    def keep_up(self) -> None:
        """Update the state and cost of each node that changed."""
        self._make_room()
        nodes = self._nodes
        if nodes.now == self._seen:
            return
        moment, self._seen = self._seen, nodes.now
        reprice = nodes.now - self.priced >= _REFRESH_EVERY
        if self._states.options is not None:
            self._states.options.update_nodes(nodes, self.standing, moment)
            if reprice:
                self._refresh_prices()
                moment = -1  # the prices are in every cost
            self._states.options.price_nodes(nodes, self.prices, self.standing, moment)
            return
        rows = nodes.changed_since(moment)
        levels, model = nodes.levels[rows, : nodes.width], nodes.model[rows]
        self.name[rows], self._lost[rows] = self._states.names(model, levels)
        self.waste_milli[rows] = self._lost[rows] + self._states.waste_milli(
            self.name[rows], self.cpu_milli(rows)
        )
        self._idle_cards[rows] = (levels == WHOLE_CARD_MILLI).sum(1)
        self._idle_milli[rows] = levels.sum(1, dtype=np.int64)
        if reprice:
            self._refresh_prices()
            rows = np.arange(nodes.size)
        self._set_cost(rows)

    def _refresh_prices(self) -> None:
        nodes, size = self._nodes, self._nodes.size
        self.priced = nodes.now
        self._scarcity.refresh(
            model=nodes.model[:size],
            cpu_milli=nodes.cpu_milli[:size],
            idle_cards=self._idle_cards,
        )
        self._model_prices.refresh(
            model=nodes.model[:size],
            idle_milli=self._idle_milli,
            cards=nodes.cards_there[:size],
        )

    def know(self, rows: IntArray, expected_milli: Waste) -> None:
        """Set what was evaluated of nodes; NaN leaves the waste of a node as it is."""
        seen = ~np.isnan(expected_milli)
        self.waste_milli[rows[seen]] = expected_milli[seen] + self._lost[rows[seen]]
        self._set_cost(rows)

    def cpu_milli(self, rows: IntArray) -> IntArray:
        """Return the free CPU of nodes."""
        # Negative if the node is overcommitted; -1 in a row without a node.
        return np.maximum(self._nodes.cpu_milli[rows], 0)

    def _set_cost(self, rows: IntArray) -> None:
        self._cost[rows] = self.waste_milli[rows] - self._scarcity.worth_milli(
            model=self._nodes.model[rows],
            cpu_milli=self.cpu_milli(rows),
            idle_cards=self._idle_cards[rows],
        )

    def rise(
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
        cost -= self._cost[node] - self._weights.idle * self._idle_milli[node]
        cost += self._model_prices.by_model[nodes.model[node]] * demand.gpu_milli
        return cost

    def _moment(self) -> dict[str, int]:
        return {"changed": self._nodes.now, "priced": self.priced}

    def candidates(self, demand: Demand, options: PlacementOptions, among: IntArray) -> Candidates:
        """Return the nodes *among* rows, which ascend, that a pod may take, with their options.

        Options of other nodes stay as they are. As long as all of them are known, they are ranked
        as well.
        """
        nodes, compiled = self._nodes, self._states.options
        options.make_room(nodes)
        if compiled is None:
            options.ask(nodes.model[among])
            rows = nodes.candidate_rows(demand, among)
            options.update(nodes, self._states, rows)
            return Candidates(rows=rows, ranking=None)
        ranked = compiled.rank(nodes, options.arrays, self.prices, demand, among)
        if ranked.more_models:
            options.ask_more()
        ranking = None
        if ranked.best is not None:
            found, cost, card = ranked.best
            ranking = Ranking(
                rows=found, cost_milli=cost, card=card, complete=True, **self._moment()
            )
        return Candidates(rows=ranked.rows, ranking=ranking)

    def ranking(
        self, demand: Demand, options: PlacementOptions, rows: IntArray, *, complete: bool
    ) -> Ranking:
        """Return the best option of a pod on each of *rows* that has one.

        *complete* says that every option of these nodes is known.
        """
        moment = self._moment()
        if self._states.options is not None:
            found, cost, card = self._states.options.costs(
                self._nodes, options.arrays, self.prices, demand.gpu_milli, rows
            )
            return Ranking(rows=found, cost_milli=cost, card=card, complete=complete, **moment)
        # One entry for each option of each node, in order of nodes: `at` counts within *rows*.
        at, option = np.nonzero(options.idle_cards[rows] >= 0)
        node = rows[at]
        cost = self.rise(demand, options, node, option)
        chosen = cheapest_of_each(at, cost)
        return Ranking(
            rows=node[chosen],
            cost_milli=cost[chosen],
            card=options.card[node[chosen], option[chosen]].astype(np.int64),
            complete=complete,
            **moment,
        )
