"""Every card of a snapshot as columns, so that one pass finds the few that are worth a look."""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import FULL_CORES, CardUuid, Health, NodeCards
from fracgpu.cards.card_class import model_allowed
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.snapshot import CardInfo, NodeInfo
from fracgpu.units import share_of

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class CardTable:
    """The cards of all nodes, node by node in the order of their names.

    Attributes:
        nodes: the names of the nodes; *node* of a card is an index into it.
        open: the card takes new slices if it has room.
        avoided: it takes them only where no other card fits.
        pods: how many pods hold something on the card.
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
        usable = [_is_usable(nodes[name].node) for name in self.nodes]
        cards = [info for _, (_, info) in infos]
        self.open: Flags = np.array(
            [usable[row] and _is_open(info) for row, (_, info) in infos], np.bool_
        )
        self.avoided: Flags = np.array([info.avoided for info in cards], np.bool_)
        self.capacity_mib = _column([info.card.capacity_mib for info in cards])
        self.free_mib = _column([info.free_mib for info in cards])
        self.free_cores = _column([FULL_CORES - info.held_cores for info in cards])
        self.free_slots = _column([info.free_slots for info in cards])
        self.pods = _column([len(info.pods) for info in cards])
        self.heat: NDArray[np.float64] = np.array([info.heat for info in cards], np.float64)
        numbers: dict[str, int] = {}
        self._model = _column([numbers.setdefault(info.card.model, len(numbers)) for info in cards])
        self._models = tuple(numbers)

    def suits(self, need: PodNeed, container: ContainerNeed) -> Flags:
        """Return which cards would do for a container if they were empty and open."""
        allowed = np.array(
            [model_allowed(model, globs=need.models) for model in self._models], np.bool_
        )
        suitable: Flags = self.capacity_mib >= container.mib
        if len(self._models):
            suitable = suitable & allowed[self._model]
        if container.share is not None:
            for capacity in np.unique(self.capacity_mib).tolist():
                if share_of(container.share, capacity_mib=capacity) != container.mib:
                    suitable = suitable & (self.capacity_mib != capacity)
        return suitable

    def flags(self, cards: Collection[CardUuid]) -> Flags:
        """Return which of the table's cards are among *cards*."""
        found = np.zeros(len(self.uuids), np.bool_)
        found[[self.index[uuid] for uuid in cards if uuid in self.index]] = True
        return found

    def has_room(self, container: ContainerNeed) -> Flags:
        """Return which cards are open and have room for a container now."""
        return (
            self.open
            & (self.free_mib >= container.mib)
            & (self.free_cores >= container.cores)
            & (self.free_slots >= 1)
        )


def _is_usable(node: NodeCards) -> bool:
    return node.shared and node.schedulable and not node.problem


def _is_open(info: CardInfo) -> bool:
    return info.card.health is Health.HEALTHY and not info.cordoned


def _column(values: list[int]) -> Numbers:
    return np.array(values, np.int64)
