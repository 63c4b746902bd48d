"""Measures one real card, in the units of :class:`~deviceplugin.cards.interface.CardMetrics`."""

from collections.abc import Mapping
from typing import Any, Final

from deviceplugin.cards.interface import CardMetrics
from deviceplugin.cards.nvml import gpm
from deviceplugin.cards.nvml.calls import NO_VALUES, NvmlCalls
from deviceplugin.cards.nvml.gpm import NvmlGpm
from deviceplugin.cards.reserve import Memory
from fracgpu.units import BYTES_PER_MIB

_BYTES_PER_KB: Final = 1000
_FULL_PERCENT: Final = 100

# CardMetrics's field, the function that returns it, and its argument besides the card.
_NUMBERS: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("temperature_c", "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    ("energy_mj", "nvmlDeviceGetTotalEnergyConsumption", None),
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    ("memory_clock_mhz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
    ("pcie_replays", "nvmlDeviceGetPcieReplayCounter", None),
)
_PROFILED: Final[tuple[tuple[str, int], ...]] = (
    ("gr_engine_ratio", gpm.GR_ENGINE),
    ("sm_active_ratio", gpm.SM_ACTIVE),
    ("sm_occupancy_ratio", gpm.SM_OCCUPANCY),
    ("tensor_ratio", gpm.TENSOR),
    ("dram_ratio", gpm.DRAM),
    ("fp64_ratio", gpm.FP64),
    ("fp32_ratio", gpm.FP32),
    ("fp16_ratio", gpm.FP16),
)
_PCIE: Final[tuple[tuple[str, int, str], ...]] = (
    ("pcie_tx_bytes_per_s", gpm.PCIE_TX, "NVML_PCIE_UTIL_TX_BYTES"),
    ("pcie_rx_bytes_per_s", gpm.PCIE_RX, "NVML_PCIE_UTIL_RX_BYTES"),
)


class NvmlMetrics:
    """Reads the metrics of one card at a time; one that a card lacks is None, never 0."""

    def __init__(self, calls: NvmlCalls, profiling: NvmlGpm) -> None:
        self._calls = calls
        self._nvml = calls.library
        self._profiling = profiling

    async def memory(self, card: str, handle: Any) -> Memory | None:
        """Read memory by version 2, which reports the driver's part apart from what is in use.

        None where the card has no memory of its own, or reports amounts that no card can have; by
        version 1 where the driver lacks version 2.

        Raises:
            StuckError, NVMLError: the card does not answer; without its memory nothing is shared.
        """
        read = self._nvml.nvmlDeviceGetMemoryInfo
        version = self._nvml.nvmlMemory_v2
        memory = await self._calls.figure(card, "memory_v2", read, handle, version)
        memory = memory or await self._calls.core(card, "memory", read, handle)
        found = memory_from_nvml(memory) if memory is not None else None
        if found is None or found.is_possible:
            return found
        self._calls.missed(card, "memory", ValueError(f"no card can have {found}"))
        return None

    async def remapped_rows(self, card: str, handle: Any) -> Any | None:
        """Return (corrected, uncorrected, pending, failed), or None where the card has none."""
        return await self._calls.figure(
            card, "remapped_rows", self._nvml.nvmlDeviceGetRemappedRows, handle
        )

    async def recovery_action(self, card: str, handle: Any) -> int | None:
        """Return what has to be done with a card that failed (``NVML_GPU_RECOVERY_ACTION_*``).

        None where the driver does not say, as older ones.
        """
        field = self._nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        return await self._field(card, "recovery_action", handle, field)

    async def read(self, card: str, handle: Any, *, memory: Memory | None) -> CardMetrics:
        """Return the metrics of *card*; *memory* was read before.

        Raises:
            StuckError: the card does not answer in time.
            NVMLError: the driver as a whole is lost; any other error leaves out only its metric.
        """
        found: dict[str, float | None] = {
            f"{part}_mib": _mib(memory, part) for part in ("total", "used", "free", "reserved")
        }
        for name, function, argument in _NUMBERS:
            arguments = () if argument is None else (getattr(self._nvml, argument),)
            read = getattr(self._nvml, function)
            found[name] = await self._calls.figure(card, name, read, handle, *arguments)
        found |= await self._use(card, handle)
        found |= await self._errors(card, handle)
        found |= await self._profile(card, handle)
        return CardMetrics(**found)

    async def _use(self, card: str, handle: Any) -> Mapping[str, float | None]:
        nvml, figure = self._nvml, self._calls.figure
        rates = await figure(card, "utilization", nvml.nvmlDeviceGetUtilizationRates, handle)
        encoder = await figure(card, "encoder", nvml.nvmlDeviceGetEncoderUtilization, handle)
        decoder = await figure(card, "decoder", nvml.nvmlDeviceGetDecoderUtilization, handle)
        power_mw = await figure(card, "power", nvml.nvmlDeviceGetPowerUsage, handle)
        return {
            "gpu_percent": _percent(rates.gpu) if rates is not None else None,
            "memory_copy_percent": _percent(rates.memory) if rates is not None else None,
            "encoder_percent": _percent(encoder[0]) if encoder else None,
            "decoder_percent": _percent(decoder[0]) if decoder else None,
            "power_w": power_mw / 1000 if power_mw is not None else None,
            "memory_temperature_c": await self._memory_temperature(card, handle),
        }

    async def _errors(self, card: str, handle: Any) -> Mapping[str, float | None]:
        nvml, figure = self._nvml, self._calls.figure
        rows = await self.remapped_rows(card, handle) or (None,) * 4
        ecc, status = nvml.nvmlDeviceGetTotalEccErrors, nvml.nvmlDeviceGetViolationStatus
        volatile = nvml.NVML_VOLATILE_ECC
        uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        power = await figure(card, "power_violation", status, handle, nvml.NVML_PERF_POLICY_POWER)
        heat = await figure(
            card, "thermal_violation", status, handle, nvml.NVML_PERF_POLICY_THERMAL
        )
        mode = await figure(
            card, "virtualization", nvml.nvmlDeviceGetVirtualizationMode, handle
        )  # fmt: skip
        physical = (
            nvml.NVML_GPU_VIRTUALIZATION_MODE_NONE,
            nvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH,
        )
        return {
            "remapped_rows_correctable": rows[0],
            "remapped_rows_uncorrectable": rows[1],
            "row_remap_failed": rows[3],
            "ecc_uncorrected": await figure(card, "ecc", ecc, handle, uncorrected, volatile),
            "power_violation_ns": power.violationTime if power is not None else None,
            "thermal_violation_ns": heat.violationTime if heat is not None else None,
            "vgpu_license": 0 if mode in physical else None,
        }

    async def _memory_temperature(self, card: str, handle: Any) -> float | None:
        field = self._nvml.NVML_FI_DEV_MEMORY_TEMP
        celsius = await self._field(card, "memory_temperature", handle, field)
        return None if celsius is None else float(celsius)

    async def _field(self, card: str, name: str, handle: Any, field: int) -> int | None:
        read = self._nvml.nvmlDeviceGetFieldValues
        values = await self._calls.figure(card, name, read, handle, [field])
        if not values or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        value = int(values[0].value.uiVal)
        return None if value in NO_VALUES else value

    async def _profile(self, card: str, handle: Any) -> Mapping[str, float | None]:
        measured = await self._profiling.read(card, handle)
        found: dict[str, float | None] = {
            name: _ratio(measured.get(metric)) for name, metric in _PROFILED
        }
        for name, metric, argument in _PCIE:
            if self._profiling.supports(card):
                mib_per_s = measured.get(metric)
                found[name] = None if mib_per_s is None else mib_per_s * BYTES_PER_MIB
            else:  # the call measures for 20 ms and only then returns
                read = self._nvml.nvmlDeviceGetPcieThroughput
                which = getattr(self._nvml, argument)
                kb_per_s = await self._calls.figure(card, name, read, handle, which)
                found[name] = None if kb_per_s is None else kb_per_s * _BYTES_PER_KB
        return found


def memory_from_nvml(memory: Any) -> Memory:
    """Convert NVML's struct: version 2 if it has ``reserved``, else version 1.

    Version 1 of ``nvmlDeviceGetMemoryInfo`` gives as used the "sum of Reserved and Allocated device
    memory"; version 2 has the reserved part as well. A note in newer headers says that version 2's
    ``used`` "also includes" that part, but there are drivers where it does not (``nvml.h``,
    ``nvmlMemory_t`` and ``nvmlMemory_v2_t``).
    """
    reserved: int | None = getattr(memory, "reserved", None)
    used = int(memory.used)
    if reserved and used + memory.free + reserved - memory.total > reserved // 2:
        used -= reserved  # the three add up to more than there is: one stands in another
    return Memory(total=memory.total, used=used, free=memory.free, reserved=reserved)


def _percent(value: float) -> float | None:
    """Return a valid percentage, else None: drivers have been seen to return nonsense."""
    return value if 0 <= value <= _FULL_PERCENT else None


def _ratio(percent: float | None) -> float | None:
    valid = None if percent is None else _percent(percent)
    return None if valid is None else valid / _FULL_PERCENT


def _mib(memory: Any, part: str) -> float | None:
    amount = getattr(memory, part, None)
    return None if amount is None else amount // BYTES_PER_MIB
