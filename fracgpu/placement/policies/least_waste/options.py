"""The states of each node's cards after a pod: one option for each distinct free level."""

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from fracgpu.placement.node_matrix import Columns, Demand, FreeResourceTable, IntArray, Levels
from fracgpu.placement.policies.least_waste.card_states import CardStates


class PlacementOptions:
    """The states that nodes would be in after a pod of one kind; CPU plays no part here.

    A pod on one card has an option for each distinct free level that is enough: cards with the same
    level lead to the same state. Any other pod has one option, the tightest cards. The arrays are
    [row, option] over the rows of `FreeResourceTable`, tightest card first.

    Attributes:
        state: the state in `CardStates`; -1 where there is no such option.
        lost_milli: thousandths of the node's cards that would be lost in remainders.
        card: the card to take, for a pod on one card; else -1.
    """

    def __init__(self, demand: Demand) -> None:
        self._cards, self._share = demand.cards, demand.share_milli
        self._seen = 0
        self.state = np.zeros((0, 1), np.int64)
        self.lost_milli = np.zeros((0, 1), np.float32)
        self.card = np.zeros((0, 1), np.int64)

    def keep_up(self, nodes: FreeResourceTable, states: CardStates) -> None:
        """Compute the options of the nodes that have changed."""
        options = nodes.width if self._cards == 1 else 1
        if self.state.shape != (nodes.size, options):
            self._seen = 0
            self.state = np.full((nodes.size, options), -1)
            self.lost_milli = np.zeros((nodes.size, options), np.float32)
            self.card = np.full((nodes.size, options), -1)
        if self._seen == nodes.now:
            return
        rows = nodes.changed_since(self._seen)
        self._seen = nodes.now
        levels = nodes.levels[rows, : nodes.width]
        # One entry for each option of a changed node: which node, which option, levels after it.
        at, option, after, card = self._one(levels) if self._cards == 1 else self._several(levels)
        self.state[rows] = -1
        where = rows[at], option
        self.card[where] = card
        self.state[where], self.lost_milli[where] = states.rows(nodes.model[rows[at]], after)

    def without(
        self, closed: Mapping[int, Columns], nodes: FreeResourceTable, states: CardStates
    ) -> "PlacementOptions":
        """Return the options of a pod that may not have the *closed* cards of some rows."""
        options = copy(self)
        options.state, options.card = self.state.copy(), self.card.copy()
        options.lost_milli = self.lost_milli.copy()
        for row, columns in closed.items():
            levels = nodes.levels[row, : nodes.width]
            # A level that occurs on open cards as well is still an option, with another card.
            open_cards = [at for at in range(nodes.width) if at not in columns]
            after = self._after(levels, open_cards)
            options.state[row] = options.card[row] = -1
            for option, (left, card) in enumerate(after):
                state, lost_milli = states.rows(nodes.model[row : row + 1], left[np.newaxis])
                options.state[row, option], options.lost_milli[row, option] = (
                    state[0],
                    lost_milli[0],
                )
                options.card[row, option] = card
        return options

    def _after(self, levels: Levels, open_cards: Sequence[int]) -> list[tuple[Levels, int]]:
        """Return the levels of one node after each option, tightest first, with the card taken."""
        tightest = sorted(open_cards, key=lambda at: (int(levels[at]), at))
        fitting = [at for at in tightest if levels[at] >= max(self._share, 1)]
        if self._cards == 1:
            firsts = {int(levels[at]): at for at in reversed(fitting)}
            taken = [[firsts[level]] for level in sorted(firsts)]
        else:
            taken = [fitting[: self._cards]] if len(fitting) >= self._cards else []
        found = []
        for cards in taken:
            left = levels.copy()
            left[cards] -= np.int16(self._share)
            found.append((left, cards[0] if self._cards == 1 else -1))
        return found

    def _one(self, levels: Levels) -> tuple[IntArray, IntArray, Levels, IntArray]:
        order = np.argsort(levels, axis=1, kind="stable")
        ascending = np.take_along_axis(levels, order, axis=1)
        fits = ascending >= self._share
        fits[:, 1:] &= ascending[:, 1:] != ascending[:, :-1]  # the first card of each level
        at, option = np.nonzero(fits)
        card = order[at, option]
        after = levels[at]
        after[np.arange(len(at)), card] -= np.int16(self._share)
        return at, option, after, card

    def _several(self, levels: Levels) -> tuple[IntArray, IntArray, Levels, IntArray]:
        """Return the option of the tightest cards; for a pod without cards, nothing changes."""
        ascending = np.sort(levels, axis=1)
        fits = ascending >= max(self._share, 1)
        rank = np.cumsum(fits, axis=1)
        at = np.flatnonzero(rank[:, -1] >= self._cards)
        taken = fits & (rank <= self._cards)
        after = ascending[at] - taken[at] * np.int16(self._share)
        none = np.full(len(at), -1)
        return at, np.zeros(len(at), np.int64), after, none
