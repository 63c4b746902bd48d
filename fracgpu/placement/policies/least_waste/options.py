"""What a pod would leave on each node: one option for each distinct free level.

The expected waste of an option is kept once it is known, and only nodes that changed are looked at
again. Rows of other nodes may be out of date: `update` brings those up to date that are asked for.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.free_resource_table import FreeResourceTable
from fracgpu.placement.node_matrix import (
    WHOLE_CARD_MILLI,
    Columns,
    Demand,
    Flags,
    IntArray,
    Levels,
)
from fracgpu.placement.policies.least_waste.card_states import CardStates
from fracgpu.placement.policies.least_waste.fill.compiled_options import NodeArrays, OptionArrays
from fracgpu.placement.policies.least_waste.fill.compiled_states import Names

NONE_CLOSED: Final[Mapping[int, Columns]] = MappingProxyType({})


class PlacementOptions:
    """What is left of nodes after a pod of one kind.

    A pod on one card has an option for each distinct free level that is enough: cards with the same
    level lead to the same state. Any other pod has one option, the tightest cards. The arrays are
    [row, option] over the rows of `FreeResourceTable`, tightest card first.

    Args:
        demand: what a pod of this kind requests; what counts is CPU, cards and share.

    Attributes:
        idle_cards: how many cards would be left idle; -1 where there is no such option.
        card: the card to take, for a pod on one card; else -1.
        waste_milli: thousandths of the node's cards expected to stay idle, the remainders included
            that are lost; NaN until it is known.
        arrays: the same arrays for compiled code.
        complete_at: the number of a change of nodes: all is known of nodes that have not changed
            since. Whoever has seen to that sets it.
    """

    def __init__(self, demand: Demand) -> None:
        self._cards, self._share = demand.cards, demand.share_milli
        self._cpu_milli = demand.cpu_milli
        self._any_asked = False
        self._asked: Flags = np.zeros(0, np.bool_)  # [model]
        self._allocate(0, 1)

    def _allocate(self, rows: int, options: int) -> None:
        self.complete_at = -1
        self._seen = np.full(rows, -1, np.int64)
        self.idle_cards = np.full((rows, options), -1, np.int8)
        self.card = np.full((rows, options), -1, np.int8)
        self.waste_milli = np.full((rows, options), np.nan, np.float32)
        self.arrays = OptionArrays(
            (self._cards, self._share, self._cpu_milli),
            seen=self._seen,
            asked=self._asked,
            idle_cards=self.idle_cards,
            card=self.card,
            waste_milli=self.waste_milli,
        )

    def update(
        self,
        nodes: FreeResourceTable,
        states: CardStates,
        rows: IntArray,
        closed: Mapping[int, Columns] = NONE_CLOSED,
    ) -> None:
        """Compute the options of those *rows* that have changed, without the *closed* cards."""
        self.make_room(nodes)
        if states.options is not None and not closed:
            states.options.update(nodes, self.arrays, rows)
            return
        rows = rows[nodes.changed[rows] > self._seen[rows]]
        if not len(rows):
            return
        self._seen[rows] = nodes.changed[rows]
        at, option, after, card = self._after(nodes, rows, closed)
        self.idle_cards[rows] = -1
        where = rows[at], option
        self.card[where] = card
        self.idle_cards[where] = (after == WHOLE_CARD_MILLI).sum(1)
        names, lost = states.names(nodes.model[where[0]], after)
        cpu_milli = np.maximum(nodes.cpu_milli[where[0]] - self._cpu_milli, 0)
        self.waste_milli[where] = states.waste_milli(names, cpu_milli) + lost

    def make_room(self, nodes: FreeResourceTable) -> None:
        """Make the arrays as large as the table; `update` does so by itself."""
        rows, options = len(nodes.model), nodes.width if self._cards == 1 else 1
        missing = rows - len(self._seen)
        if len(self._asked) != len(nodes.models):
            self._asked, self._any_asked = np.zeros(len(nodes.models), np.bool_), False
            self._allocate(rows, options)
        elif self.card.shape[1] != options:
            self._allocate(rows, options)
        elif missing:
            seen, idle_cards = self._seen, self.idle_cards
            card, waste_milli = self.card, self.waste_milli
            self._allocate(rows, options)
            self._seen[: len(seen)] = seen
            self.idle_cards[: len(seen)] = idle_cards
            self.card[: len(seen)] = card
            self.waste_milli[: len(seen)] = waste_milli

    def ask(self, model: IntArray) -> None:
        """Note of which models, by index, nodes were asked for."""
        if not self._asked[model].all():
            self._asked[model] = True
            self.ask_more()

    def ask_more(self) -> None:
        """Note that nodes of more models were asked for, which are marked already."""
        if self._any_asked:
            self.complete_at = -1
        self._any_asked = True

    def asked_of(self, model: IntArray, rows: IntArray) -> IntArray:
        """Return the *rows* of models that were asked for; all of them before any was.

        A pod that requests MiB is one kind of pods for each size of card, and each of these kinds
        is asked for on nodes with such cards alone.
        """
        return rows[self._asked[model[rows]]] if self._any_asked else rows

    def unknown(
        self,
        nodes: FreeResourceTable,
        states: CardStates,
        rows: IntArray,
        standing: NodeArrays,
    ) -> tuple[IntArray, IntArray]:
        """Return rows and options that are not known yet, those on the tightest cards first.

        Args:
            nodes: the nodes.
            states: what was given to `update`.
            rows: rows that are up to date.
            standing: the nodes as they are; where their waste is not known, no option is.
        """
        if states.evaluation is not None:
            row, option, free = states.evaluation.unknown(nodes, self.arrays, standing, rows)
            if self._cards == 1:
                order = np.argsort(free, kind="stable")
                row, option = row[order], option[order]
            return row, option
        also = np.isnan(standing.waste_milli[rows])
        unknown = np.isnan(self.waste_milli[rows]) | also[:, None]
        at, option = np.nonzero((self.idle_cards[rows] >= 0) & unknown)
        row = rows[at]
        enough = nodes.cpu_milli[row] >= self._cpu_milli
        row, option = row[enough], option[enough]
        # For a pod on several cards, all nodes are equal here.
        left = nodes.levels[row, self.card[row, option]] if self._cards == 1 else np.zeros(len(row))
        order = np.argsort(left, kind="stable")
        return row[order], option[order]

    def states_of(
        self,
        nodes: FreeResourceTable,
        states: CardStates,
        row: IntArray,
        option: IntArray,
        closed: Mapping[int, Columns] = NONE_CLOSED,
    ) -> tuple[Names, NDArray[np.float32], IntArray, Levels]:
        """Return state, loss in remainders, CPU and levels after each of some options."""
        rows, place = np.unique(row, return_inverse=True)
        at, options, after, _ = self._after(nodes, rows, closed)
        width = self.card.shape[1]
        entry = np.searchsorted(at * width + options, place * width + option)
        levels = after[entry]
        names, lost = states.names(nodes.model[row], levels)
        return names, lost, np.maximum(nodes.cpu_milli[row] - self._cpu_milli, 0), levels

    def _after(
        self, nodes: FreeResourceTable, rows: IntArray, closed: Mapping[int, Columns]
    ) -> tuple[IntArray, IntArray, Levels, IntArray]:
        """Return one entry for each option of *rows*, in order: row, option, levels after, card."""
        levels = nodes.levels[rows, : nodes.width]
        open_levels = levels
        if closed:
            open_levels = levels.copy()
            for at, row in enumerate(rows.tolist()):
                open_levels[at, sorted(closed.get(row, ()))] = -1
        return (self._one if self._cards == 1 else self._several)(levels, open_levels)

    def _one(
        self, levels: Levels, open_levels: Levels
    ) -> tuple[IntArray, IntArray, Levels, IntArray]:
        order = np.argsort(open_levels, axis=1, kind="stable")
        ascending = np.take_along_axis(open_levels, order, axis=1)
        fits = ascending >= self._share
        fits[:, 1:] &= ascending[:, 1:] != ascending[:, :-1]  # the first card of each level
        at, option = np.nonzero(fits)
        card = order[at, option]
        after = levels[at]
        after[np.arange(len(at)), card] -= np.int16(self._share)
        return at, option, after, card

    def _several(
        self, levels: Levels, open_levels: Levels
    ) -> tuple[IntArray, IntArray, Levels, IntArray]:
        """Return the option of the tightest cards; for a pod without cards, nothing changes."""
        order = np.argsort(open_levels, axis=1, kind="stable")
        fits = np.take_along_axis(open_levels, order, axis=1) >= max(self._share, 1)
        rank = np.cumsum(fits, axis=1)
        at = np.flatnonzero(rank[:, -1] >= self._cards)
        taken = fits & (rank <= self._cards)
        after = np.take_along_axis(levels, order, axis=1)[at] - taken[at] * np.int16(self._share)
        none = np.full(len(at), -1)
        return at, np.zeros(len(at), np.int64), after, none
