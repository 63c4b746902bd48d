"""Every card of a snapshot as columns, so that one pass finds the few that are worth a look."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.placement.fit import (
    USABLE,
    CardRequest,
    Cards,
    cards_of,
    node_reason,
    suits,
    unfit_reasons,
)
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.snapshot import NodeInfo

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class CardTable:
    """The cards of all nodes, node by node in the order of their names.

    Attributes:
        nodes: the names of the nodes; *node* of a card is an index into it.
        cards: all cards in a line; one that is kept for some pod is as open as any.
        open: the card takes new slices if it has room.
    """

    def __init__(self, nodes: Mapping[str, NodeInfo]) -> None:
        self.nodes = sorted(nodes)
        infos = [
            (row, entry)
            for row, name in enumerate(self.nodes)
            for entry in nodes[name].cards.items()
        ]
        self.uuids = [uuid for _, (uuid, _) in infos]
        self.index = {uuid: number for number, uuid in enumerate(self.uuids)}
        self.node: Numbers = np.array([row for row, _ in infos], np.int64)
        self.cards: Cards = cards_of(
            [
                structs.replace(info, kept_for="") if info.kept_for else info
                for _, (_, info) in infos
            ]
        ).at(0)
        takes = np.array([node_reason(nodes[name]) is None for name in self.nodes], np.bool_)
        self.open: Flags = (self.cards.state == USABLE) & takes[self.node]

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
