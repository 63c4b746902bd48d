"""The processes on one real card: who holds memory, and who used its time."""

from collections.abc import Mapping
from typing import Any, Final

from deviceplugin.cards import CardProcess
from deviceplugin.nvml_calls import NvmlCalls
from fracgpu.units import Mib

_BYTES_PER_MIB: Final = 1024 * 1024
_FULL_PERCENT: Final = 100
# A process with MPS stands in a list of its own; one that also draws in another.
_LISTS: Final = ("Compute", "Graphics", "MPSCompute")


class NvmlProcesses:
    """Reads processes, remembering for each card up to when it has read their use."""

    def __init__(self, calls: NvmlCalls) -> None:
        self._calls = calls
        self._nvml = calls.library
        self._last_seen_us: dict[str, int] = {}

    async def read(
        self, card: str, handle: Any, *, total_bytes: int | None
    ) -> tuple[CardProcess, ...] | None:
        """List processes by pid: None where the driver will not, which is not an idle card.

        One that several lists name has the largest memory of them. A figure beyond *total_bytes*
        is one that counted below zero: unknown.
        """
        bytes_by_pid: dict[int, int | None] = {}
        listed = False
        for name in _LISTS:
            read = getattr(self._nvml, f"nvmlDeviceGet{name}RunningProcesses_v3")
            try:
                found = await self._calls.listing(card, f"{name}_processes", read, handle)
            except self._nvml.NVMLError as error:
                if error.value != self._nvml.NVML_ERROR_INSUFFICIENT_SIZE:
                    raise
                return None  # it grew faster than we read: better no list than half of one
            if found is None:
                continue
            listed = True
            for process in found:
                used = process.usedGpuMemory
                if used is not None and total_bytes is not None and used > total_bytes:
                    used = None
                known = [it for it in (bytes_by_pid.get(process.pid), used) if it is not None]
                bytes_by_pid[process.pid] = max(known) if known else None
        if not listed:
            return None
        busy = await self._busy(card, handle) if bytes_by_pid else {}
        return tuple(
            CardProcess(
                pid=pid,
                used_mib=None if used is None else Mib(used // _BYTES_PER_MIB),
                sm_percent=busy.get(pid, 0.0),
            )
            for pid, used in sorted(bytes_by_pid.items())
        )

    async def _busy(self, card: str, handle: Any) -> Mapping[int, float]:
        """Read each process's share of SM time since the last reading; absent means idle."""
        newest: dict[int, Any] = {}
        for sample in await self._samples(card, handle):
            if sample.smUtil <= _FULL_PERCENT and sample.pid:  # more is garbage, seen on real cards
                last = newest.get(sample.pid)
                if last is None or sample.timeStamp >= last.timeStamp:
                    newest[sample.pid] = sample
        if newest:
            self._last_seen_us[card] = max(it.timeStamp for it in newest.values())
        return {pid: float(sample.smUtil) for pid, sample in newest.items()}

    async def _samples(self, card: str, handle: Any) -> Any:
        nvml = self._nvml
        read = nvml.nvmlDeviceGetProcessUtilization
        since_us = self._last_seen_us.get(card, 0)
        try:
            return await self._calls.listing(card, "process_util", read, handle, since_us) or ()
        except nvml.NVMLError as error:
            # NotFound: nobody was busy. SUCCESS: pynvml's way to say "no samples". Too small three
            # times over: the samples are not lost, the next reading gets them.
            if error.value in (
                nvml.NVML_ERROR_NOT_FOUND,
                nvml.NVML_SUCCESS,
                nvml.NVML_ERROR_INSUFFICIENT_SIZE,
            ):
                return ()
            raise
