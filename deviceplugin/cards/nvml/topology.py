"""The distances between the node's cards: NVLink is nearest, then PCIe, then another socket."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deviceplugin.cards.nvml.calls import NvmlCalls
from fracgpu.cards.card import CardUuid

# Distances are only compared: NVLink is 1 (nine links or more) to 9 (one), PCIe is NVML's own
# level from 10 (one switch between) over 20, 30 and 40 (one socket) to 50 (another socket).
_NO_LINK_YET: Final = 10
_NEAREST: Final = 1

_SWITCH: Final = "switch"

Distances = Mapping[CardUuid, Mapping[CardUuid, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLocation:
    """One card, as topology needs it."""

    handle: Any
    bus_id: str


@dataclass(slots=True)
class _Links:
    """Active NVLinks of one card: to another card by its bus, or to a switch."""

    direct: Counter[str] = field(default_factory=Counter)
    switched: int = 0


class NvmlTopology:
    """Measures distances once for each set of cards: it takes hundreds of calls."""

    def __init__(self, calls: NvmlCalls) -> None:
        self._calls = calls
        self._nvml = calls.library
        self._cards: frozenset[CardUuid] = frozenset()
        self._distances: Distances = {}

    def forget(self) -> None:
        """Measure again at the next call."""
        self._cards = frozenset()

    async def distances(self, locations: Mapping[CardUuid, CardLocation]) -> Distances:
        """Return each card's distance to each other one, where NVML knows it.

        Raises:
            NVMLError: a card was lost meanwhile; nothing is kept then.
        """
        cards = frozenset(locations)
        if cards != self._cards:
            self._distances = await self._measure(locations)
            self._cards = cards
        return self._distances

    async def _measure(self, locations: Mapping[CardUuid, CardLocation]) -> Distances:
        found: dict[CardUuid, dict[CardUuid, int]] = {uuid: {} for uuid in locations}
        several = len(locations) > 1
        links = {uuid: await self._links(uuid, locations[uuid]) for uuid in locations if several}
        for one in locations:
            for other in locations:
                if one < other:
                    distance = await self._distance(one, other, locations, links)
                    if distance is not None:
                        found[one][other] = found[other][one] = distance
        return found

    async def _distance(
        self,
        one: CardUuid,
        other: CardUuid,
        locations: Mapping[CardUuid, CardLocation],
        links: Mapping[CardUuid, _Links],
    ) -> int | None:
        direct = links[one].direct[locations[other].bus_id.upper()]
        count = direct or min(links[one].switched, links[other].switched)
        if count:
            return max(_NEAREST, _NO_LINK_YET - count)
        query = self._nvml.nvmlDeviceGetTopologyCommonAncestor
        level = await self._calls.figure(
            one, "topology", query, locations[one].handle, locations[other].handle
        )
        return None if level is None else max(_NO_LINK_YET, int(level))

    async def _links(self, uuid: CardUuid, location: CardLocation) -> _Links:
        links = _Links()
        for number in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            far_end = await self._far_end(uuid, location.handle, number)
            if far_end is None:
                break
            if far_end == _SWITCH:
                links.switched += 1
            elif far_end:
                links.direct[far_end] += 1
        return links

    async def _far_end(self, uuid: CardUuid, handle: Any, number: int) -> str | None:
        """Return where a link leads: a bus id, a switch, empty for nowhere, None after the last."""
        nvml, figure = self._nvml, self._calls.figure
        try:
            query = nvml.nvmlDeviceGetNvLinkState
            active = await self._calls.core(uuid, "nvlink", query, handle, number)
        except nvml.NVMLError as error:
            # The card has no more links than that.
            if error.value != nvml.NVML_ERROR_INVALID_ARGUMENT:
                self._calls.missed(uuid, "nvlink", error)
            return None
        if not active:
            return None if active is None else ""
        query = nvml.nvmlDeviceGetNvLinkRemoteDeviceType
        kind = await figure(uuid, "nvlink_type", query, handle, number)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return _SWITCH
        pci = await figure(
            uuid, "nvlink_pci", nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number
        )
        return "" if pci is None else _text(pci.busId).upper()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
