"""Processes on simulated cards, one small file each, as the simulated kubelet records them."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec


class _WireProcess(msgspec.Struct, rename="camel"):
    pid: int
    cards: list[str]
    used_mib: int = 0
    busy_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProcess:
    """What one container does on its cards.

    Attributes:
        cards: UUIDs of the cards it can see.
        used_mib: memory it holds on *each* of them.
        busy_ratio: share of the time of *each* of them that it would use if it were alone.
    """

    pid: int
    cards: tuple[str, ...]
    used_mib: int
    busy_ratio: float


class ProcessFolder:
    """The processes on the simulated cards, one small file each, as the kubelet records them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, process: SimulatedProcess) -> None:
        """Start *process*, in one step: a reader sees all of it or nothing."""
        self._folder.mkdir(parents=True, exist_ok=True)
        body = {
            "pid": process.pid,
            "cards": list(process.cards),
            "usedMib": process.used_mib,
            "busyRatio": process.busy_ratio,
        }
        temporary = self._folder / f"{process.pid}.new"
        temporary.write_text(json.dumps(body))
        temporary.replace(self._file(process.pid))

    def remove(self, pid: int) -> None:
        """End a process, if it is there."""
        self._file(pid).unlink(missing_ok=True)

    def clear(self) -> None:
        """End all processes."""
        for file in self._folder.glob("*.json"):
            file.unlink(missing_ok=True)

    def read(self) -> tuple[SimulatedProcess, ...]:
        """Read all processes, by pid; what ends meanwhile or is no process is passed over."""
        found = []
        for file in self._folder.glob("*.json"):
            # A file that cannot be read is one that was just removed, or not the kubelet's.
            with suppress(OSError, ValueError):
                wire = msgspec.json.decode(file.read_bytes(), type=_WireProcess)
                found.append(
                    SimulatedProcess(
                        pid=wire.pid,
                        cards=tuple(wire.cards),
                        used_mib=max(0, wire.used_mib),
                        busy_ratio=max(0.0, wire.busy_ratio),
                    )
                )
        return tuple(sorted(found, key=lambda process: process.pid))

    def _file(self, pid: int) -> Path:
        return self._folder / f"{pid}.json"
