"""One real card, called in a thread of its own: its hardware, metrics and processes."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deviceplugin.cards.interface import (
    CardHardware,
    CardSample,
    DeviceNode,
    SkippedCard,
    kernel_address,
)
from deviceplugin.cards.nvml.calls import NvmlCalls
from deviceplugin.cards.nvml.figures import NvmlMetrics
from deviceplugin.cards.nvml.gpm import NvmlGpm
from deviceplugin.cards.nvml.processes import NvmlProcesses
from deviceplugin.cards.reserve import LearntReserve, Memory
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.units import BYTES_PER_MIB, Mib
from process.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCard:
    """A card that answers, and the library's handle of it."""

    hardware: CardHardware
    handle: Any


class NvmlCard:
    """The card at one index.

    It counts as answering by few calls, those without which it cannot be shared: its handle and
    its UUID (it is there, and it is this one) and its memory (what we share). NVML documents for
    each of them that a card that fell off the bus returns ``NVML_ERROR_GPU_IS_LOST``. Its name
    never changes and is read until it is known. An error of any other function leaves out what that
    function would return, and nothing else; a device file stays what it was.

    Args:
        library: ``pynvml``, or something with its functions.
        index: its index in NVML.
        timeout_s: limit of one call.
        sys_root: the host's ``/sys``.
        clock: for durations, and to recognise samples that were read before.
        reserves: what the driver keeps of each card, which may be at another index later.
    """

    def __init__(
        self,
        library: Any,
        *,
        index: int,
        timeout_s: float,
        sys_root: Path,
        clock: Clock,
        reserves: dict[CardUuid, LearntReserve],
    ) -> None:
        self._nvml = library
        self._index = index
        self._sys_root = sys_root
        self._calls = NvmlCalls(library, timeout_s=timeout_s, clock=clock, name=f"nvml-{index}")
        self._profiling = NvmlGpm(self._calls, clock)
        self._figures = NvmlMetrics(self._calls, self._profiling)
        self._processes = NvmlProcesses(self._calls, clock)
        self._reserves = reserves
        self._families = _constants(library, "NVML_DEVICE_ARCH_")
        self._brands = _constants(library, "NVML_BRAND_")
        self._actions = _constants(library, "NVML_GPU_RECOVERY_ACTION_")
        # By what was asked: what the driver says against a card; empty if nothing.
        self._faults: dict[CardUuid, dict[str, str]] = {}

    def forget(self) -> None:
        """Ask for everything again: the driver may be another one now."""
        self._calls.forget()

    async def inspect(self, known: CardHardware | None) -> FoundCard | SkippedCard:
        """Return what the card is; what cannot be read this time is taken from *known*.

        Raises:
            StuckError: the card does not answer in time.
            NVMLError: the card does not answer, or the driver as a whole is lost.
        """
        nvml, call = self._nvml, self._calls.call
        handle = await call(nvml.nvmlDeviceGetHandleByIndex, self._index)
        uuid = CardUuid(_text(await call(nvml.nvmlDeviceGetUUID, handle)))
        known = known if known is not None and known.card.uuid == uuid else None
        if reason := await self._not_shareable(uuid, handle, known=known is not None):
            return SkippedCard(uuid=uuid, reason=reason)
        memory = await self._memory(uuid, handle)
        if memory is None and known is not None:
            # Pods may be on it; it is asked again when the cards are listed next.
            reason = "the driver does not report its memory"
            unhealthy = replace(known.card, health=Health.UNHEALTHY, health_reason=reason)
            return FoundCard(hardware=replace(known, card=unhealthy), handle=handle)
        if memory is None or not memory.total:
            return SkippedCard(uuid=uuid, reason="it reports no memory that it could have")
        hardware = await self._measured(known or await self._identify(uuid, handle), handle, memory)
        if not hardware.device_nodes:
            return SkippedCard(uuid=uuid, reason="it does not report its device file")
        return FoundCard(hardware=hardware, handle=handle)

    async def read(self, uuid: CardUuid) -> CardSample:
        """Return a sample of the card with *uuid*.

        Raises:
            StuckError, NVMLError: as :meth:`inspect`.
        """
        handle = await self._calls.call(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
        memory = await self._memory(uuid, handle)
        total_bytes = memory.total if memory is not None else None
        figures = await self._figures.read(uuid, handle, memory=memory)
        processes = await self._processes.read(uuid, handle, total_bytes=total_bytes)
        return CardSample(
            figures=figures, processes=processes or (), processes_known=processes is not None
        )

    async def close(self) -> None:
        """Free what the library keeps for us."""
        await self._profiling.close()

    async def _memory(self, uuid: CardUuid, handle: Any) -> Memory | None:
        """Read the card's memory, with the driver's part learnt where it is not reported."""
        memory = await self._figures.memory(uuid, handle)
        if memory is None:
            return None
        reserve = self._reserves.setdefault(uuid, LearntReserve())
        if memory.reserved is not None:
            reserve.set_reported(memory.reserved)
            return memory
        found = await self._processes.held(uuid, handle, total_bytes=memory.total)
        held = None if found is None else tuple(found.values())
        if not held or reserve.settled:
            reserve.learn(memory, held)
        else:
            # Memory in use and held by processes is of one moment if nothing changed meanwhile.
            again = await self._figures.memory(uuid, handle)
            if again == memory:
                reserve.learn(memory, held)
        return reserve.apart(memory)

    async def _figure(
        self, uuid: CardUuid, name: str, function: Callable[..., Any], *args: Any
    ) -> Any:
        return await self._calls.figure(uuid, name, function, *args)

    async def _not_shareable(self, uuid: CardUuid, handle: Any, *, known: bool) -> str:
        """Return why the card cannot be shared by memory; empty if it can."""
        mig = await self._figure(uuid, "mig", self._nvml.nvmlDeviceGetMigMode, handle)
        if mig is None and not known and not self._calls.lacks(uuid, "mig"):
            return "it does not report whether MIG is on"
        return "MIG is on, and FracGPU does not share MIG instances" if mig and mig[0] else ""

    async def _identify(self, uuid: CardUuid, handle: Any) -> CardHardware:
        name = _text(await self._calls.call(self._nvml.nvmlDeviceGetName, handle))
        return CardHardware(card=Card(uuid=uuid, index=self._index, model=name, total_mib=Mib(0)))

    async def _fault(self, uuid: CardUuid, handle: Any) -> str:
        """Return what the driver says against a card; what cannot be asked stays what it was.

        It says so until the card was reset, also to who did not see the error. Source for what a
        program cannot cause: NVIDIA, "GPU Memory Error Management", error response flags.
        """
        found = self._faults.setdefault(uuid, {})
        rows = await self._figures.remapped_rows(uuid, handle)
        if rows is not None:
            found["rows"] = "remapping a memory row failed" if rows[3] else ""
        action = await self._figures.recovery_action(uuid, handle)
        if action is not None:
            wants = self._actions.get(action, f"recovery action {action}")
            none = action == self._nvml.NVML_GPU_RECOVERY_ACTION_NONE
            found["action"] = "" if none else f"after an error the driver wants {wants}"
        return "; ".join(filter(None, found.values()))

    async def _measured(self, hardware: CardHardware, handle: Any, memory: Memory) -> CardHardware:
        nvml, uuid = self._nvml, hardware.card.uuid
        fault = await self._fault(uuid, handle)
        # A card that was bound to its driver anew may have the device file that was another's.
        minor = await self._figure(uuid, "minor", nvml.nvmlDeviceGetMinorNumber, handle)
        own_nodes = (DeviceNode(path=f"/dev/nvidia{minor}"),)
        pci = await self._figure(uuid, "pci", nvml.nvmlDeviceGetPciInfo, handle)
        bus_id = _text(pci.busId) if pci is not None else hardware.pci_bus_id
        architecture = await self._figure(
            uuid, "architecture", nvml.nvmlDeviceGetArchitecture, handle
        )
        brand = await self._figure(uuid, "brand", nvml.nvmlDeviceGetBrand, handle)
        # Where the driver's part is not known this time, it stays what it was.
        reserved_mib = hardware.card.reserved_mib
        if memory.reserved is not None:
            reserved_mib = Mib(-(-memory.reserved // BYTES_PER_MIB))
        card = replace(
            hardware.card,
            index=self._index,
            total_mib=Mib(memory.total // BYTES_PER_MIB),
            reserved_mib=reserved_mib,
            health=Health.UNHEALTHY if fault else Health.HEALTHY,
            health_reason=fault,
            numa_node=await asyncio.to_thread(numa_node, self._sys_root, bus_id),
        )
        return replace(
            hardware,
            card=card,
            device_nodes=hardware.device_nodes if minor is None else own_nodes,
            pci_bus_id=bus_id,
            family=hardware.family
            if architecture is None
            else self._families.get(architecture, ""),
            brand=hardware.brand if brand is None else self._brands.get(brand, ""),
        )


def numa_node(sys_root: Path, bus_id: str) -> int | None:
    """Return the NUMA node that a PCI device is attached to; None where the kernel has none.

    NVML's ``nvmlDeviceGetNumaNodeId`` is something else: it "only applies to platforms where the
    GPUs are NUMA nodes" themselves (NVML's reference). The kernel writes -1 on a machine that has
    no NUMA nodes (Documentation/ABI/testing/sysfs-bus-pci).

    Args:
        sys_root: the host's ``/sys``.
        bus_id: as NVML writes it, ``00000000:17:00.0``.
    """
    try:
        device = sys_root / "bus/pci/devices" / kernel_address(bus_id)
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _constants(library: Any, prefix: str) -> Mapping[int | None, str]:
    """Return the names of the library's constants by value, such as 9: ``hopper``."""
    names = (name for name in dir(library) if name.startswith(prefix))
    words = {getattr(library, name): name.removeprefix(prefix) for name in names}
    return {
        number: word.lower().replace("_", "-")
        for number, word in words.items()
        if word != "UNKNOWN"
    }


def _text(value: str | bytes) -> str:
    """Return a text; older bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
