"""The real cards: NVIDIA's management library behind the interface of ``deviceplugin.cards``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import pynvml
import structlog

from deviceplugin.cards import (
    CardFacts,
    Cards,
    CardsUnavailableError,
    DeviceNode,
    LeftOut,
    Reading,
    ReadingRound,
    Survey,
)
from deviceplugin.nvml_calls import NvmlCalls, driver_is_lost
from deviceplugin.nvml_events import XidWatch
from deviceplugin.nvml_figures import NvmlFigures
from deviceplugin.nvml_gpm import NvmlGpm
from deviceplugin.nvml_processes import NvmlProcesses
from deviceplugin.nvml_topology import NvmlTopology, Place
from fracgpu.card import Card, CardUuid, Health
from fracgpu.units import Mib
from process.clock import Clock, SystemClock

log = structlog.get_logger()

_BYTES_PER_MIB: Final = 1024 * 1024
_COMMON_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    facts: CardFacts
    handle: Any


class NvmlReader(Cards):
    """Cards through NVML.

    Args:
        timeout_s: limit of one call.
        library: ``pynvml``, or something with its functions.
        dev_root: where the device files are.
        clock: tells how far apart two samples of a card's profile are.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        library: Any = pynvml,
        dev_root: Path = Path("/dev"),
        clock: Clock | None = None,
    ) -> None:
        self._nvml = library
        self._dev_root = dev_root
        self._calls = NvmlCalls(library, timeout_s=timeout_s)
        self._profiling = NvmlGpm(self._calls, clock or SystemClock())
        self._figures = NvmlFigures(self._calls, self._profiling)
        self._processes = NvmlProcesses(self._calls)
        self._topology = NvmlTopology(self._calls)
        self._xids = XidWatch(library)
        self._families = _words(library, "NVML_DEVICE_ARCH_")
        self._brands = _words(library, "NVML_BRAND_")
        self._ready = False
        self._facts: dict[int, CardFacts] = {}

    async def survey(self) -> Survey:
        await self._open()
        driver = await self._driver(self._nvml.nvmlSystemGetDriverVersion)
        count = await self._driver(self._nvml.nvmlDeviceGetCount)
        cards: dict[int, CardFacts] = {}
        left_out: list[LeftOut] = []
        reached: dict[CardUuid, _Found] = {}
        for index in range(count):
            found = await self._card(index)
            if isinstance(found, LeftOut):
                left_out.append(found)
            elif isinstance(found, CardFacts):
                cards[index] = found
            elif found is not None:
                cards[index] = found.facts
                reached[found.facts.card.uuid] = found
        cards |= await self._linked(cards, reached)
        await self._calls.call(
            self._xids.keep, {str(uuid): it.handle for uuid, it in reached.items()}
        )
        self._facts.update(cards)
        families = {it.family for it in cards.values()}
        return Survey(
            cards=tuple(cards.values()),
            common_nodes=self._common_nodes(),
            driver=driver,
            family=families.pop() if len(families) == 1 else "",
            left_out=tuple(left_out),
        )

    async def read(self) -> ReadingRound:
        await self._open()
        readings, troubles = {}, {}
        for facts in tuple(self._facts.values()):
            uuid = facts.card.uuid
            try:
                handle = await self._calls.call(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
                readings[uuid] = await self._reading(uuid, handle)
            except self._nvml.NVMLError as error:
                await self._end_if_lost(error)
                troubles[uuid] = str(error)
        if troubles and not readings:
            # A driver that is gone often says so of each card and never of itself.
            await self._lost(f"no card can be read: {'; '.join(sorted(set(troubles.values())))}")
        return ReadingRound(readings=readings, troubles=troubles)

    async def close(self) -> None:
        if self._ready:
            self._ready = False
            await self._shut_down()

    # -- one card ------------------------------------------------------------------------------

    async def _card(self, index: int) -> _Found | CardFacts | LeftOut | None:
        """Look at one card: found, known but out of reach, left out, or never seen."""
        try:
            return await self._card_facts(index)
        except self._nvml.NVMLError as error:
            await self._end_if_lost(error)
            known = self._facts.get(index)
            if known is None:
                log.warning("card_not_readable", index=index, reason=str(error))
                return None
            return _sick(known, reason=str(error))

    async def _card_facts(self, index: int) -> _Found | LeftOut:
        nvml, call = self._nvml, self._calls.call
        handle = await call(nvml.nvmlDeviceGetHandleByIndex, index)
        uuid = CardUuid(_text(await call(nvml.nvmlDeviceGetUUID, handle)))

        async def figure(name: str, function: Callable[..., Any]) -> Any:
            return await self._calls.figure(uuid, name, function, handle)

        mig = await figure("mig", nvml.nvmlDeviceGetMigMode)
        if mig and mig[0]:
            return LeftOut(uuid=uuid, reason="MIG is on: its instances are not shared by us")
        memory = await self._figures.memory(uuid, handle)
        if memory is None or not memory.total:
            return LeftOut(uuid=uuid, reason="it reports no memory of its own")
        rows = await self._figures.remapped_rows(uuid, handle)
        failed = bool(rows and rows[3])
        numa_node = await figure("numa", nvml.nvmlDeviceGetNumaNodeId)
        pci = await figure("pci", nvml.nvmlDeviceGetPciInfo)
        minor = await call(nvml.nvmlDeviceGetMinorNumber, handle)
        card = Card(
            uuid=uuid,
            index=index,
            model=_text(await call(nvml.nvmlDeviceGetName, handle)),
            total_mib=Mib(memory.total // _BYTES_PER_MIB),
            reserved_mib=Mib(-(-getattr(memory, "reserved", 0) // _BYTES_PER_MIB)),
            health=Health.UNHEALTHY if failed else Health.HEALTHY,
            health_reason="remapping a memory row failed" if failed else "",
            numa_node=numa_node if isinstance(numa_node, int) and numa_node >= 0 else None,
        )
        architecture = await figure("architecture", nvml.nvmlDeviceGetArchitecture)
        brand = await figure("brand", nvml.nvmlDeviceGetBrand)
        facts = CardFacts(
            card=card,
            pci_bus_id=_text(pci.busId) if pci is not None else "",
            device_nodes=(DeviceNode(path=f"/dev/nvidia{minor}"),),
            family=self._families.get(architecture, ""),
            brand=self._brands.get(brand, ""),
        )
        return _Found(facts=facts, handle=handle)

    async def _linked(
        self, cards: Mapping[int, CardFacts], reached: Mapping[CardUuid, _Found]
    ) -> Mapping[int, CardFacts]:
        """Add the distances to the cards that can be asked; the others keep what they had."""
        places = {
            uuid: Place(handle=it.handle, bus_id=it.facts.pci_bus_id)
            for uuid, it in reached.items()
        }
        try:
            distances = await self._topology.distances(places)
        except self._nvml.NVMLError as error:
            await self._end_if_lost(error)
            log.warning("links_not_readable", reason=str(error))
            return {}
        return {
            index: replace(it, card=replace(it.card, links=distances[it.card.uuid]))
            for index, it in cards.items()
            if it.card.uuid in distances
        }

    async def _reading(self, uuid: CardUuid, handle: Any) -> Reading:
        memory = await self._figures.memory(uuid, handle)
        figures = await self._figures.read(uuid, handle, memory=memory)
        total_bytes = memory.total if memory is not None else None
        processes = await self._processes.read(uuid, handle, total_bytes=total_bytes)
        return Reading(
            figures=replace(figures, xid=self._xids.last(uuid)),
            processes=processes or (),
            processes_known=processes is not None,
            xids=self._xids.counts(uuid),
        )

    def _common_nodes(self) -> tuple[DeviceNode, ...]:
        return tuple(
            DeviceNode(path=f"/dev/{name}")
            for name in _COMMON_NODES
            if (self._dev_root / name).exists()
        )

    # -- the driver ----------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._ready:
            return
        await self._driver(self._nvml.nvmlInit)
        self._ready = True
        self._calls.forget()
        self._topology.forget()
        log.info("nvml_opened")

    async def _driver(self, function: Callable[..., Any]) -> Any:
        """Call what concerns no single card: any error means the driver is not there."""
        try:
            return await self._calls.call(function)
        except self._nvml.NVMLError as error:
            await self._lost(str(error))

    async def _end_if_lost(self, error: Exception) -> None:
        if driver_is_lost(error):
            await self._lost(str(error))

    async def _lost(self, reason: str) -> NoReturn:
        """Begin again at the next call: a driver that was reloaded needs a new initialisation."""
        if self._ready:
            self._ready = False
            log.warning("nvml_lost", reason=reason)
            await self._shut_down()
        raise CardsUnavailableError(f"NVML: {reason}")

    async def _shut_down(self) -> None:
        """Let go of everything; what a lost driver says to that is only noted."""
        for step in (self._profiling.close, self._stop_watch, self._shut_library):
            try:
                await step()
            except (self._nvml.NVMLError, CardsUnavailableError) as error:
                log.info("nvml_not_shut_down", reason=str(error))

    async def _stop_watch(self) -> None:
        await self._calls.call(self._xids.stop)

    async def _shut_library(self) -> None:
        await self._calls.call(self._nvml.nvmlShutdown)


def _sick(facts: CardFacts, *, reason: str) -> CardFacts:
    card = replace(facts.card, health=Health.UNHEALTHY, health_reason=reason)
    return replace(facts, card=card)


def _words(library: Any, prefix: str) -> Mapping[int | None, str]:
    """Give the library's own constants as words: 9 is ``hopper``; what it does not know is not."""
    names = (name for name in dir(library) if name.startswith(prefix))
    words = {getattr(library, it): it.removeprefix(prefix) for it in names}
    return {
        number: word.lower().replace("_", "-")
        for number, word in words.items()
        if word != "UNKNOWN"
    }


def _text(value: str | bytes) -> str:
    """Read a text; older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
