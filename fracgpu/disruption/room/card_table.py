"""Every card of a node matrix in a line, so that one pass finds the few that are worth a look."""

from collections.abc import Collection, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.placement.fit import (
    SHARES,
    USABLE,
    CardRequest,
    Cards,
    cards_of,
    suits,
    unfit_reasons,
)
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import CardAllocation

Flags = NDArray[np.bool_]


class CardTable:
    """The cards of a node matrix, node by node in the order of their names.

    Attributes:
        nodes: the names of the nodes; *node* of a card is an index into it.
        rows, columns: [card] its place in the matrix.
        cards: all cards in a line; one that is kept for some pod is as open as any.
        open: the card takes new slices if it has room.
    """

    def __init__(self, matrix: NodeMatrix) -> None:
        self.nodes = sorted(matrix.rows)
        found = [
            (number, row, column, info)
            for number, row in enumerate(map(matrix.rows.__getitem__, self.nodes))
            if (node := matrix.infos[row]) is not None
            for column, info in enumerate(node.cards.values())
        ]
        infos = [info for *_, info in found]
        self.uuids = [info.card.uuid for info in infos]
        self.index = {uuid: number for number, uuid in enumerate(self.uuids)}
        places = np.array([place for *place, _ in found], np.int64).reshape(-1, 3)
        self.node, self.rows, self.columns = places.T
        self.cards: Cards = matrix.cards(slice(matrix.size)).at((self.rows, self.columns))
        kept = [number for number, info in enumerate(infos) if info.kept_for]
        opened = cards_of([structs.replace(infos[number], kept_for="") for number in kept])
        self.cards.state[kept] = opened.state[0]
        takes = matrix.node_state[self.rows] == SHARES
        self.open: Flags = (self.cards.state == USABLE) & takes

    def suits(self, need: PodNeed, container: ContainerNeed) -> Flags:
        """Return which cards would do for a container if they were empty and open."""
        opened = self.cards._replace(state=np.zeros_like(self.cards.state))
        return suits(opened, need, CardRequest.of(container))

    def flags(self, cards: Collection[CardUuid]) -> Flags:
        """Return which of the table's cards are among *cards*."""
        found = np.zeros(len(self.uuids), np.bool_)
        found[[self.index[uuid] for uuid in cards if uuid in self.index]] = True
        return found

    def has_room(self, need: PodNeed, asked: CardRequest) -> Flags:
        """Return which cards are open and take what is asked now."""
        found: Flags = self.open & (unfit_reasons(self.cards, need, asked) == USABLE)
        return found

    def has_room_without(
        self,
        number: int,
        need: PodNeed,
        asked: CardRequest,
        leaving: Sequence[Sequence[CardAllocation]],
    ) -> Flags:
        """Return for each set of allocations whether one card takes what is asked without them."""
        card = self.cards.at(np.full(len(leaving), number))
        found: Flags = unfit_reasons(card.without(leaving), need, asked) == USABLE
        return found
