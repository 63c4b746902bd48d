"""The processes on one real card: who holds memory, and who used its time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from deviceplugin.cards.interface import CardProcess
from deviceplugin.cards.nvml.calls import NvmlCalls
from fracgpu.units import Mib
from process.clock import Clock

_BYTES_PER_MIB: Final = 1024 * 1024
_FULL_PERCENT: Final = 100
_US_PER_S: Final = 1_000_000
# How far a stamp of the driver may be ahead of what our clock says, both reading the same clock.
_AHEAD_US: Final = _US_PER_S
# A process with MPS stands in a list of its own; one that also draws in another.
_LISTS: Final = ("Compute", "Graphics", "MPSCompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The newest sample's stamp, and when we read it by a clock that is never set back."""

    stamp_us: int
    at_s: float


class NvmlProcesses:
    """Reads processes, remembering for each card up to when it has read their use.

    Args:
        calls: the way into the library.
        clock: the driver stamps samples by the machine's clock, which may be set back.
    """

    def __init__(self, calls: NvmlCalls, clock: Clock) -> None:
        self._calls = calls
        self._nvml = calls.library
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    async def read(
        self, card: str, handle: Any, *, total_bytes: int | None
    ) -> tuple[CardProcess, ...] | None:
        """List processes by pid: None where the driver will not, which is not an idle card.

        One that several lists name has the largest memory of them. A figure beyond *total_bytes*
        is one that counted below zero: unknown.
        """
        bytes_by_pid = await self.held(card, handle, total_bytes=total_bytes)
        if bytes_by_pid is None:
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

    async def held(
        self, card: str, handle: Any, *, total_bytes: int | None
    ) -> Mapping[int, int | None] | None:
        """Give the bytes that each process holds, by pid, as :meth:`read` lists them."""
        bytes_by_pid: dict[int, int | None] = {}
        listed = False
        for name in _LISTS:
            what = f"{name}_processes"
            read = getattr(self._nvml, f"nvmlDeviceGet{name}RunningProcesses_v3")
            found = await self._calls.listing(card, what, read, handle)
            if found is None and not self._calls.lacks(card, what):
                return None  # better no list than half of one
            listed = listed or found is not None
            for process in found or ():
                used = process.usedGpuMemory
                if used is not None and total_bytes is not None and used > total_bytes:
                    used = None
                known = [it for it in (bytes_by_pid.get(process.pid), used) if it is not None]
                bytes_by_pid[process.pid] = max(known) if known else None
        return bytes_by_pid if listed else None

    async def _busy(self, card: str, handle: Any) -> Mapping[int, float]:
        """Read each process's share of SM time since the last reading; absent means idle."""
        newest: dict[int, Any] = {}
        latest_us = self._now_us() + _AHEAD_US
        for sample in await self._samples(card, handle):
            # More than all of a card is garbage, seen on real cards; what is stamped ahead of the
            # clock was taken before the clock was set back.
            if sample.smUtil > _FULL_PERCENT or not sample.pid or sample.timeStamp > latest_us:
                continue
            last = newest.get(sample.pid)
            if last is None or sample.timeStamp >= last.timeStamp:
                newest[sample.pid] = sample
        if newest:
            stamp_us = max(it.timeStamp for it in newest.values())
            self._seen[card] = _Seen(stamp_us=stamp_us, at_s=self._clock.monotonic())
        return {pid: float(sample.smUtil) for pid, sample in newest.items()}

    async def _samples(self, card: str, handle: Any) -> Any:
        nvml = self._nvml
        # NotFound: nobody was busy. SUCCESS: pynvml's way to say "no samples". A list that is too
        # small again and again is not lost: the next reading gets it.
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
        """Say from when on samples are new, by the driver's stamps: the clock's microseconds.

        Where the clock was set back behind the newest stamp, the moment of that reading as the
        clock would now call it.
        """
        seen = self._seen.get(card)
        if seen is None:
            return 0
        now_us = self._now_us()
        if seen.stamp_us <= now_us + _AHEAD_US:
            return seen.stamp_us
        elapsed_us = int((self._clock.monotonic() - seen.at_s) * _US_PER_S)
        return max(0, now_us - elapsed_us)

    def _now_us(self) -> int:
        return int(self._clock.now().timestamp() * _US_PER_S)
