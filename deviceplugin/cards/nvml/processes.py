"""The processes on one real card: the memory they hold, and their share of its time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from deviceplugin.cards.interface import CardProcess
from deviceplugin.cards.nvml.calls import NvmlCalls
from fracgpu.units import BYTES_PER_MIB, Mib
from process.clock import Clock

_FULL_PERCENT: Final = 100
_US_PER_S: Final = 1_000_000
# How far the driver's timestamps may be ahead of our clock, though both read the same clock.
_AHEAD_US: Final = _US_PER_S
# A client of MPS is in the last of them as well; so is a process that draws in the second.
_MPS_LIST: Final = "MPSCompute"
_LISTS: Final = ("Compute", "Graphics", _MPS_LIST)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastSample:
    """The newest sample's timestamp, and when we read it by the monotonic clock."""

    timestamp_us: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """The processes on a card: the bytes each holds, and which of them are clients of MPS."""

    bytes_by_pid: Mapping[int, int | None]
    mps_clients: frozenset[int]


class NvmlProcesses:
    """Reads processes, and keeps for each card until when it has read their use.

    Args:
        calls: the way into the library.
        clock: the driver's timestamps are of the machine's clock, which may be set back.
    """

    def __init__(self, calls: NvmlCalls, clock: Clock) -> None:
        self._calls = calls
        self._nvml = calls.library
        self._clock = clock
        self._last_samples: dict[str, _LastSample] = {}

    async def read(
        self, card: str, handle: Any, *, total_bytes: int | None
    ) -> tuple[CardProcess, ...] | None:
        """Return the processes by pid; None where the driver lists none, also on a busy card.

        A process in several lists has the largest memory of them. A number beyond *total_bytes*
        is a negative one in unsigned form, and counts as unknown.

        What clients of MPS use may be counted for the MPS server, and nothing for any of them (so
        on an H100 with driver 580). Then the part of each is unknown while anything is busy.
        """
        found = await self._listed(card, handle, total_bytes=total_bytes)
        if found is None:
            return None
        busy = await self._busy(card, handle) if found.bytes_by_pid else {}
        clients_counted = not busy or not found.mps_clients.isdisjoint(busy)
        unknown = frozenset() if clients_counted else found.mps_clients
        return tuple(
            CardProcess(
                pid=pid,
                used_mib=None if used is None else Mib(used // BYTES_PER_MIB),
                sm_percent=None if pid in unknown else busy.get(pid, 0.0),
            )
            for pid, used in sorted(found.bytes_by_pid.items())
        )

    async def held(
        self, card: str, handle: Any, *, total_bytes: int | None
    ) -> Mapping[int, int | None] | None:
        """Return the bytes that each process holds, by pid, with the rules of :meth:`read`."""
        found = await self._listed(card, handle, total_bytes=total_bytes)
        return None if found is None else found.bytes_by_pid

    async def _listed(self, card: str, handle: Any, *, total_bytes: int | None) -> _Listed | None:
        bytes_by_pid: dict[int, int | None] = {}
        mps_clients: set[int] = set()
        listed = False
        for name in _LISTS:
            what = f"{name}_processes"
            read = getattr(self._nvml, f"nvmlDeviceGet{name}RunningProcesses_v3")
            found = await self._calls.listing(card, what, read, handle)
            if found is None and not self._calls.lacks(card, what):
                return None  # a partial list would understate what is in use
            listed = listed or found is not None
            for process in found or ():
                used = process.usedGpuMemory
                if used is not None and total_bytes is not None and used > total_bytes:
                    used = None
                known = [
                    figure for figure in (bytes_by_pid.get(process.pid), used) if figure is not None
                ]
                bytes_by_pid[process.pid] = max(known) if known else None
                if name == _MPS_LIST:
                    mps_clients.add(process.pid)
        if not listed:
            return None
        return _Listed(bytes_by_pid=bytes_by_pid, mps_clients=frozenset(mps_clients))

    async def _busy(self, card: str, handle: Any) -> Mapping[int, float]:
        """Return each process's percentage of SM time since the last reading; absent if idle."""
        newest: dict[int, Any] = {}
        latest_us = self._now_us() + _AHEAD_US
        for sample in await self._samples(card, handle):
            # More than 100 % is garbage, seen on real cards; a timestamp ahead of the clock is from
            # before the clock was set back.
            if sample.smUtil > _FULL_PERCENT or not sample.pid or sample.timeStamp > latest_us:
                continue
            last = newest.get(sample.pid)
            if last is None or sample.timeStamp >= last.timeStamp:
                newest[sample.pid] = sample
        if newest:
            timestamp_us = max(sample.timeStamp for sample in newest.values())
            self._last_samples[card] = _LastSample(
                timestamp_us=timestamp_us, at_s=self._clock.monotonic()
            )
        return {pid: float(sample.smUtil) for pid, sample in newest.items()}

    async def _samples(self, card: str, handle: Any) -> Any:
        nvml = self._nvml
        # NotFound: no process was busy. SUCCESS: pynvml's error for "no samples". If the list keeps
        # growing while it is read, the next reading gets the samples.
        return (
            await self._calls.listing(
                card,
                "process_util",
                nvml.nvmlDeviceGetProcessUtilization,
                handle,
                self._since_us(card),
                empty=(nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS),
            )
            or ()
        )

    def _since_us(self, card: str) -> int:
        """Return from when on samples are new, in microseconds of the machine's clock.

        If the clock was set back before the newest timestamp, that is the time of the last reading
        by the clock as it is now.
        """
        last = self._last_samples.get(card)
        if last is None:
            return 0
        now_us = self._now_us()
        if last.timestamp_us <= now_us + _AHEAD_US:
            return last.timestamp_us
        elapsed_us = int((self._clock.monotonic() - last.at_s) * _US_PER_S)
        return max(0, now_us - elapsed_us)

    def _now_us(self) -> int:
        return int(self._clock.now().timestamp() * _US_PER_S)
