"""A simulated container runtime: it resolves CDI names and records containers' processes."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.cards.processes import ProcessFolder, SimulatedProcess
from simulator.kubelet.device_manager import ContainerKey

_FIRST_PID: Final = 10_000
_BEFORE_STARTTIME: Final = 18  # fields of /proc/<pid>/stat between the state and the start time


class RuntimeFailedError(Exception):
    """A container cannot be created; the text is the runtime's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedContainer:
    """What a container really got."""

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLoad:
    """The load of a running container on each of its cards."""

    cards: tuple[str, ...]
    used_mib: int
    busy_ratio: float


class ContainerRuntime:
    """Resolves CDI devices as containerd does, and records running containers.

    Args:
        cdi_dir: folder of CDI specs.
        proc_root: stands in for the host's ``/proc``.
        processes: the processes on the simulated cards.
    """

    def __init__(self, *, cdi_dir: Path, proc_root: Path, processes: ProcessFolder) -> None:
        self._cdi_dir = cdi_dir
        self._proc_root = proc_root
        self._processes = processes
        self._pids = itertools.count(_FIRST_PID)
        self._running: dict[ContainerKey, int] = {}

    @property
    def running(self) -> frozenset[ContainerKey]:
        """The containers that run now."""
        return frozenset(self._running)

    def create(self, cdi_devices: Sequence[str], *, env: Mapping[str, str]) -> CreatedContainer:
        """Return a container with the edits of its CDI devices, reading the folder each time.

        Raises:
            RuntimeFailedError: a device is in no spec, or in two.
        """
        devices = self._devices()
        unknown = [name for name in cdi_devices if name not in devices]
        if unknown:
            names = ", ".join(unknown)
            raise RuntimeFailedError(
                f"failed to inject CDI devices: unresolvable CDI devices {names}"
            )
        got, nodes = dict(env), []
        for name in cdi_devices:
            edits = devices[name]
            got |= dict(variable.split("=", 1) for variable in edits.get("env", ()))
            nodes += [node["path"] for node in edits.get("deviceNodes", ())]
        return CreatedContainer(env=got, device_nodes=tuple(nodes))

    def _devices(self) -> Mapping[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for file in sorted(self._cdi_dir.glob("*.json")):
            try:
                spec = json.loads(file.read_text())
            except (OSError, ValueError):  # containerd skips what it cannot read
                continue
            for device in spec["devices"]:
                name = f"{spec['kind']}={device['name']}"
                if name in found:
                    raise RuntimeFailedError(f"conflicting CDI specs for {name}")
                found[name] = device["containerEdits"]
        return found

    def start(self, key: ContainerKey, load: ContainerLoad | None) -> int:
        """Start a created container, with a process on its cards if it has a *load*."""
        pid = next(self._pids)
        self._running[key] = pid
        folder = self._proc_root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{key.pod_uid}/{pid:064x}\n")
        zeros = " 0" * _BEFORE_STARTTIME
        (folder / "stat").write_text(f"{pid} (main) S{zeros} {pid * 100}\n")
        if load is not None:
            self._processes.write(
                SimulatedProcess(
                    pid=pid,
                    cards=load.cards,
                    used_mib=load.used_mib,
                    busy_ratio=load.busy_ratio,
                )
            )
        return pid

    def stop(self, key: ContainerKey) -> None:
        """Stop a container's process, if it runs."""
        pid = self._running.pop(key, None)
        if pid is None:
            return
        self._processes.remove(pid)
        folder = self._proc_root / str(pid)
        for file in ("cgroup", "stat"):
            (folder / file).unlink(missing_ok=True)
        folder.rmdir()

    def stop_all(self, keys: Iterable[ContainerKey] = ()) -> None:
        """Stop the containers in *keys*, or all."""
        for key in list(keys) or list(self._running):
            self.stop(key)
