"""What becomes of each node's cards if it takes a request: one option for each differing card."""

import numpy as np

from fracgpu.placement.node_matrix import Demand, FreeResourceTable, Index, Levels
from fracgpu.placement.policies.least_waste.card_states import CardStates


class PlacementOptions:
    """The states that nodes would be in after one kind of request; CPU plays no part here.

    A request for one card has an option for each different free level with room; any other request
    has one option, the tightest cards. Arrays are [node, option], tightest first.

    Attributes:
        state: the state's row in `CardStates`; -1 where there is no such option.
        lost_milli: what would be lost in remainders of that node's cards.
        card: the card to take, for a request of one card; else -1.
    """

    def __init__(self, demand: Demand) -> None:
        self._cards, self._share = demand.cards, demand.share_milli
        self._seen = 0
        self.state = np.zeros((0, 1), np.int64)
        self.lost_milli = np.zeros((0, 1), np.float32)
        self.card = np.zeros((0, 1), np.int64)

    def keep_up(self, nodes: FreeResourceTable, states: CardStates) -> None:
        """Work out anew the nodes that have changed."""
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
        at, option, after, card = self._one(levels) if self._cards == 1 else self._several(levels)
        self.state[rows] = -1
        where = rows[at], option
        self.card[where] = card
        self.state[where], self.lost_milli[where] = states.rows(nodes.model[rows[at]], after)

    def _one(self, levels: Levels) -> tuple[Index, Index, Levels, Index]:
        order = np.argsort(levels, axis=1, kind="stable")
        ascending = np.take_along_axis(levels, order, axis=1)
        fits = ascending >= self._share
        fits[:, 1:] &= ascending[:, 1:] != ascending[:, :-1]
        at, option = np.nonzero(fits)
        card = order[at, option]
        after = levels[at]
        after[np.arange(len(at)), card] -= np.int16(self._share)
        return at, option, after, card

    def _several(self, levels: Levels) -> tuple[Index, Index, Levels, Index]:
        """Take the tightest cards; of none, a request for no card makes no difference."""
        ascending = np.sort(levels, axis=1)
        fits = ascending >= max(self._share, 1)
        rank = np.cumsum(fits, axis=1)
        at = np.flatnonzero(rank[:, -1] >= self._cards)
        taken = fits & (rank <= self._cards)
        after = ascending[at] - taken[at] * np.int16(self._share)
        none = np.full(len(at), -1)
        return at, np.zeros(len(at), np.int64), after, none
