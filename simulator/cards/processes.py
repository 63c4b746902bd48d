"""Processes on simulated cards, in one small file each, written by the simulated kubelet."""

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
    cgroup: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProcess:
    """What one container does on its cards.

    Attributes:
        cards: UUIDs of the cards that it sees.
        used_mib: memory it wants on *each* of them.
        busy_ratio: share of the time (0..1) of *each* of them that it would use if it were alone.
        cgroup: the folder of its cgroup, where its limits are; empty if it has none.
    """

    pid: int
    cards: tuple[str, ...]
    used_mib: int
    busy_ratio: float
    cgroup: str = ""


class ProcessFolder:
    """The folder of process files, one process in each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, process: SimulatedProcess) -> None:
        """Record *process* atomically: a reader sees all of it or nothing."""
        self._folder.mkdir(parents=True, exist_ok=True)
        body = {
            "pid": process.pid,
            "cards": list(process.cards),
            "usedMib": process.used_mib,
            "busyRatio": process.busy_ratio,
            "cgroup": process.cgroup,
        }
        temporary = self._folder / f"{process.pid}.new"
        temporary.write_text(json.dumps(body))
        temporary.replace(self._file(process.pid))

    def remove(self, pid: int) -> None:
        """Remove a process, if it exists."""
        self._file(pid).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all processes."""
        for file in self._folder.glob("*.json"):
            file.unlink(missing_ok=True)

    def read(self) -> tuple[SimulatedProcess, ...]:
        """Return all processes by pid, skipping files that vanish meanwhile or are no process."""
        found = []
        for file in self._folder.glob("*.json"):
            # An unreadable file was just removed, or is not the kubelet's.
            with suppress(OSError, ValueError):
                wire = msgspec.json.decode(file.read_bytes(), type=_WireProcess)
                found.append(
                    SimulatedProcess(
                        pid=wire.pid,
                        cards=tuple(wire.cards),
                        used_mib=max(0, wire.used_mib),
                        busy_ratio=max(0.0, wire.busy_ratio),
                        cgroup=wire.cgroup,
                    )
                )
        return tuple(sorted(found, key=lambda process: process.pid))

    def _file(self, pid: int) -> Path:
        return self._folder / f"{pid}.json"
