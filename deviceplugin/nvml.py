"""The real cards: the only calls of NVIDIA's management library, each with a time limit."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import pynvml
import structlog

from deviceplugin.blocking import CallThread, StuckError
from deviceplugin.cards import (
    CardFacts,
    CardProcess,
    Cards,
    CardsUnavailableError,
    DeviceNode,
    Figures,
    LeftOut,
    Reading,
    ReadingRound,
    Survey,
)
from fracgpu.card import Card, CardUuid, Health
from fracgpu.units import Mib

log = structlog.get_logger()

_BYTES_PER_MIB: Final = 1024 * 1024
_COMMON_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_FULL_PERCENT: Final = 100
# pynvml asks twice, for the size and for the samples; between the two a process may have come.
_SIZE_RACES: Final = 3

# The card has no such figure, or the driver is too old to tell it: not an error, and not 0.
_ABSENT: Final = ("NotSupported", "FunctionNotFound", "NoPermission", "NoData", "Deprecated")
# The library has lost the driver as a whole: shut down and begin again.
_LOST: Final = (
    "Uninitialized",
    "DriverNotLoaded",
    "LibraryNotFound",
    "LibRmVersionMismatch",
    "Unknown",
)


class NvmlReader(Cards):
    """Cards through NVML.

    Args:
        timeout_s: limit of one call.
        library: ``pynvml``, or something with its functions.
        dev_root: where the device files are.
    """

    def __init__(
        self, *, timeout_s: float = 5.0, library: Any = pynvml, dev_root: Path = Path("/dev")
    ) -> None:
        self._timeout_s = timeout_s
        self._nvml = library
        self._dev_root = dev_root
        self._thread = CallThread("nvml")
        self._ready = False
        self._facts: dict[int, CardFacts] = {}
        self._absent: set[tuple[str, str]] = set()
        self._last_seen_us: dict[str, int] = {}

    async def survey(self) -> Survey:
        await self._open()
        nvml = self._nvml
        driver = await self._driver(nvml.nvmlSystemGetDriverVersion)
        count = await self._driver(nvml.nvmlDeviceGetCount)
        cards, left_out = [], []
        for index in range(count):
            found = await self._card(index)
            if isinstance(found, LeftOut):
                left_out.append(found)
            elif found is not None:
                cards.append(found)
                self._facts[index] = found
        return Survey(
            cards=tuple(cards),
            common_nodes=self._common_nodes(),
            driver=driver,
            left_out=tuple(left_out),
        )

    async def read(self) -> ReadingRound:
        await self._open()
        readings, troubles = {}, {}
        for facts in tuple(self._facts.values()):
            uuid = facts.card.uuid
            try:
                handle = await self._call(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
                readings[uuid] = await self._reading(uuid, handle)
            except pynvml.NVMLError as error:
                self._end_if_lost(error)
                troubles[uuid] = str(error)
        return ReadingRound(readings=readings, troubles=troubles)

    async def close(self) -> None:
        if self._ready:
            self._ready = False
            try:
                await self._call(self._nvml.nvmlShutdown)
            except (pynvml.NVMLError, CardsUnavailableError) as error:
                log.warning("nvml_not_shut_down", reason=str(error))

    # -- one card ------------------------------------------------------------------------------

    async def _card(self, index: int) -> CardFacts | LeftOut | None:
        try:
            return await self._card_facts(index)
        except pynvml.NVMLError as error:
            self._end_if_lost(error)
            known = self._facts.get(index)
            if known is None:
                log.warning("card_not_readable", index=index, reason=str(error))
                return None
            return _sick(known, reason=str(error))

    async def _card_facts(self, index: int) -> CardFacts | LeftOut:
        nvml = self._nvml
        handle = await self._call(nvml.nvmlDeviceGetHandleByIndex, index)
        uuid = CardUuid(_text(await self._call(nvml.nvmlDeviceGetUUID, handle)))
        mig = await self._figure(uuid, "mig", nvml.nvmlDeviceGetMigMode, handle)
        if mig and mig[0]:
            return LeftOut(uuid=uuid, reason="MIG is on: its instances are not shared by us")
        memory = await self._memory(uuid, handle)
        if memory is None or not memory.total:
            return LeftOut(uuid=uuid, reason="it reports no memory of its own")
        remapped = await self._figure(uuid, "remap", nvml.nvmlDeviceGetRemappedRows, handle)
        failed = bool(remapped and remapped[3])
        numa_node = await self._figure(uuid, "numa", nvml.nvmlDeviceGetNumaNodeId, handle)
        pci = await self._figure(uuid, "pci", nvml.nvmlDeviceGetPciInfo, handle)
        minor = await self._call(nvml.nvmlDeviceGetMinorNumber, handle)
        card = Card(
            uuid=uuid,
            index=index,
            model=_text(await self._call(nvml.nvmlDeviceGetName, handle)),
            total_mib=Mib(memory.total // _BYTES_PER_MIB),
            reserved_mib=Mib(-(-getattr(memory, "reserved", 0) // _BYTES_PER_MIB)),
            health=Health.UNHEALTHY if failed else Health.HEALTHY,
            health_reason="remapping a memory row failed" if failed else "",
            numa_node=numa_node if isinstance(numa_node, int) and numa_node >= 0 else None,
            links=await self._links(uuid, handle),
        )
        return CardFacts(
            card=card,
            pci_bus_id=_text(pci.busId) if pci is not None else "",
            device_nodes=(DeviceNode(path=f"/dev/nvidia{minor}"),),
        )

    async def _memory(self, uuid: str, handle: Any) -> Any:
        """Read memory by version 2, which tells the driver's own part from what is in use."""
        nvml = self._nvml
        version = nvml.nvmlMemory_v2
        read = functools.partial(nvml.nvmlDeviceGetMemoryInfo, version=version)
        memory = await self._figure(uuid, "memory_v2", read, handle)
        if memory is None:
            memory = await self._figure(uuid, "memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        return memory

    async def _links(self, uuid: str, handle: Any) -> Mapping[CardUuid, int]:
        links = {}
        for facts in self._facts.values():
            other = facts.card.uuid
            if other != uuid:
                peer = await self._call(self._nvml.nvmlDeviceGetHandleByUUID, other)
                read = self._nvml.nvmlDeviceGetTopologyCommonAncestor
                level = await self._figure(uuid, "topology", read, handle, peer)
                if level is not None:
                    links[other] = int(level)
        return links

    def _common_nodes(self) -> tuple[DeviceNode, ...]:
        return tuple(
            DeviceNode(path=f"/dev/{name}")
            for name in _COMMON_NODES
            if (self._dev_root / name).exists()
        )

    # -- one reading ---------------------------------------------------------------------------

    async def _reading(self, uuid: CardUuid, handle: Any) -> Reading:
        nvml = self._nvml

        async def figure(name: str, function: Callable[..., Any], *args: Any) -> Any:
            return await self._figure(uuid, name, function, handle, *args)

        rates = await figure("utilization", nvml.nvmlDeviceGetUtilizationRates)
        memory = await self._memory(uuid, handle)
        encoder = await figure("encoder", nvml.nvmlDeviceGetEncoderUtilization)
        decoder = await figure("decoder", nvml.nvmlDeviceGetDecoderUtilization)
        power_mw = await figure("power", nvml.nvmlDeviceGetPowerUsage)
        remapped = await figure("remap", nvml.nvmlDeviceGetRemappedRows)
        on_chip = nvml.NVML_TEMPERATURE_GPU
        figures = Figures(
            gpu_percent=rates.gpu if rates is not None else None,
            memory_copy_percent=rates.memory if rates is not None else None,
            encoder_percent=encoder[0] if encoder else None,
            decoder_percent=decoder[0] if decoder else None,
            used_mib=_mib(memory, "used"),
            free_mib=_mib(memory, "free"),
            reserved_mib=_mib(memory, "reserved"),
            temperature_c=await figure("temp", nvml.nvmlDeviceGetTemperature, on_chip),
            memory_temperature_c=await self._memory_temperature(uuid, handle),
            power_w=power_mw / 1000 if power_mw is not None else None,
            energy_mj=await figure("energy", nvml.nvmlDeviceGetTotalEnergyConsumption),
            sm_clock_mhz=await figure("sm", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=await figure("mem", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            pcie_replays=await figure("replays", nvml.nvmlDeviceGetPcieReplayCounter),
            remapped_rows_correctable=remapped[0] if remapped else None,
            remapped_rows_uncorrectable=remapped[1] if remapped else None,
            row_remap_failed=remapped[3] if remapped else None,
        )
        processes = await self._processes(uuid, handle)
        return Reading(
            figures=figures,
            processes=processes or (),
            processes_known=processes is not None,
        )

    async def _memory_temperature(self, uuid: str, handle: Any) -> float | None:
        nvml = self._nvml
        field = nvml.NVML_FI_DEV_MEMORY_TEMP
        values = await self._figure(
            uuid, "memory_temp", nvml.nvmlDeviceGetFieldValues, handle, [field]
        )
        if not values or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        return float(values[0].value.uiVal)

    async def _processes(self, uuid: str, handle: Any) -> tuple[CardProcess, ...] | None:
        """List processes; one that several lists name has the largest memory of them."""
        nvml = self._nvml
        memory_mib: dict[int, int | None] = {}
        listed = False
        for name in ("Compute", "Graphics", "MPSCompute"):
            read = getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses_v3")
            found = await self._figure(uuid, f"{name}_processes", read, handle)
            if found is None:
                continue
            listed = True
            for process in found:
                used = process.usedGpuMemory
                used_mib = None if used is None else used // _BYTES_PER_MIB
                before = memory_mib.get(process.pid)
                known = [it for it in (before, used_mib) if it is not None]
                memory_mib[process.pid] = max(known) if known else None
        if not listed:
            return None
        busy = await self._busy(uuid, handle)
        return tuple(
            CardProcess(
                pid=pid,
                used_mib=None if used_mib is None else Mib(used_mib),
                sm_percent=busy.get(pid, 0.0),
            )
            for pid, used_mib in sorted(memory_mib.items())
        )

    async def _busy(self, uuid: str, handle: Any) -> Mapping[int, float]:
        """Read each process's share of SM time since the last reading; absent means idle."""
        newest: dict[int, Any] = {}
        for sample in await self._samples(uuid, handle):
            if sample.smUtil <= _FULL_PERCENT and sample.pid:  # more is garbage, seen on real cards
                last = newest.get(sample.pid)
                if last is None or sample.timeStamp >= last.timeStamp:
                    newest[sample.pid] = sample
        if newest:
            self._last_seen_us[uuid] = max(it.timeStamp for it in newest.values())
        return {pid: float(sample.smUtil) for pid, sample in newest.items()}

    async def _samples(self, uuid: str, handle: Any) -> Sequence[Any]:
        read = self._nvml.nvmlDeviceGetProcessUtilization
        since_us = self._last_seen_us.get(uuid, 0)
        for _ in range(_SIZE_RACES):
            try:
                return await self._figure(uuid, "process_util", read, handle, since_us) or ()
            except pynvml.NVMLError as error:
                # NotFound: nobody was busy. SUCCESS: pynvml's way to say "no samples".
                if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS):
                    return ()
                if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                    raise
        return ()

    # -- calls ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._ready:
            return
        await self._driver(self._nvml.nvmlInit)
        self._ready = True
        self._absent.clear()
        log.info("nvml_opened")

    async def _driver(self, function: Callable[..., Any]) -> Any:
        """Call what concerns no single card: any error means the driver is not there."""
        try:
            return await self._call(function)
        except pynvml.NVMLError as error:
            self._lost(error)

    async def _figure(
        self, uuid: str, name: str, function: Callable[..., Any], *args: Any
    ) -> Any | None:
        """Call for a figure that a card may not have; after the first such answer ask no more."""
        if (uuid, name) in self._absent:
            return None
        try:
            return await self._call(function, *args)
        except pynvml.NVMLError as error:
            if _kind(error) not in _ABSENT:
                raise
            self._absent.add((uuid, name))
            log.info("figure_dropped", card=uuid, figure=name, reason=str(error))
            return None

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return await self._thread.call(function, *args, timeout_s=self._timeout_s)
        except StuckError as error:
            raise CardsUnavailableError(f"NVML hangs: {error}") from error

    def _end_if_lost(self, error: pynvml.NVMLError) -> None:
        if _kind(error) in _LOST:
            self._lost(error)

    def _lost(self, error: pynvml.NVMLError) -> NoReturn:
        """Begin again at the next call: a driver that was reloaded needs a new initialisation."""
        if self._ready:
            log.warning("nvml_lost", reason=str(error))
        self._ready = False
        raise CardsUnavailableError(f"NVML: {error}") from error


def _kind(error: pynvml.NVMLError) -> str:
    return type(error).__name__.removeprefix("NVMLError_")


def _sick(facts: CardFacts, *, reason: str) -> CardFacts:
    card = replace(facts.card, health=Health.UNHEALTHY, health_reason=reason)
    return replace(facts, card=card)


def _mib(memory: Any, part: str) -> float | None:
    amount = getattr(memory, part, None)
    return None if amount is None else amount // _BYTES_PER_MIB


def _text(value: str | bytes) -> str:
    """Read a text; older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
