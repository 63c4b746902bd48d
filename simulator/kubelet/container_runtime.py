"""A simulated container runtime: CDI names, plugins, hooks, and records of processes."""

import asyncio
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from deviceplugin.enforcement.gate import PROOF_PATH
from deviceplugin.nri.interface import Container, Device, Mount, PodSandbox
from simulator.cards.processes import ProcessFolder, SimulatedProcess
from simulator.kubelet.device_manager import ContainerKey

_FIRST_PID: Final = 10_000
_BEFORE_STARTTIME: Final = 18  # fields of /proc/<pid>/stat between the state and the start time


class RuntimeFailedError(Exception):
    """A container cannot be created; the text is the runtime's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedContainer:
    """What a container really got."""

    id: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[str, ...] = ()
    cgroup: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLoad:
    """The load of a running container on each of its cards."""

    cards: tuple[str, ...]
    used_mib: int
    busy_ratio: float


class Adjusted(Protocol):
    """A container as its plugins want it."""

    @property
    def container(self) -> Container: ...


class Plugins(Protocol):
    """The plugins that the runtime asks by NRI."""

    pods: dict[str, PodSandbox]

    async def create_container(self, pod: PodSandbox, container: Container) -> Adjusted:
        """Ask them.

        Raises:
            RuntimeFailedError: one refuses.
        """
        ...

    async def start_container(self, pod: PodSandbox, container: Container) -> None:
        """Ask them before its first process runs.

        Raises:
            RuntimeFailedError: one refuses.
        """
        ...


class ContainerRuntime:
    """Resolves CDI devices as containerd does, asks plugins, and records running containers.

    Args:
        cdi_dir: folder of CDI specs.
        plugins: whom to ask before a container is created; None without NRI.
        proc_root: stands in for the host's ``/proc``.
        processes: the processes on the simulated cards.
        cgroup_root: where each container gets a cgroup; None where the node has none.
    """

    def __init__(
        self,
        *,
        cdi_dir: Path,
        proc_root: Path,
        processes: ProcessFolder,
        plugins: Plugins | None = None,
        cgroup_root: Path | None = None,
    ) -> None:
        self._cdi_dir = cdi_dir
        self._plugins = plugins
        self._ids = itertools.count(1)
        self._proc_root = proc_root
        self._processes = processes
        self._pids = itertools.count(_FIRST_PID)
        self._running: dict[ContainerKey, int] = {}
        self._cgroup_root = cgroup_root
        self._cgroups: dict[ContainerKey, Path] = {}

    async def create(
        self, sandbox: PodSandbox, name: str, cdi_devices: Sequence[str], *, env: Mapping[str, str]
    ) -> CreatedContainer:
        """Return a container with the edits of its CDI devices and of plugins.

        Raises:
            RuntimeFailedError: a device is in no spec, or in two; a plugin or a hook refuses; or a
                file to mount does not exist.
        """
        devices = self._devices()
        unknown = [device for device in cdi_devices if device not in devices]
        if unknown:
            names = ", ".join(unknown)
            raise RuntimeFailedError(
                f"failed to inject CDI devices: unresolvable CDI devices {names}"
            )
        edits = [devices[device] for device in cdi_devices]
        container = _edited(f"{next(self._ids):064x}", sandbox, name, edits, env=env)
        if self._plugins is not None:
            self._plugins.pods[sandbox.id] = sandbox
            container = (await self._plugins.create_container(sandbox, container)).container
        await asyncio.to_thread(_check_mounts, container)
        for edit in edits:
            for hook in edit.get("hooks", ()):
                await asyncio.to_thread(_run_hook, hook, sandbox, name)
        cgroup = ""
        if self._cgroup_root is not None and self._plugins is not None:
            folder = self._cgroup_root / container.cgroups_path.lstrip("/")
            await asyncio.to_thread(folder.mkdir, parents=True)
            cgroup = str(folder)
            await self._plugins.start_container(sandbox, container)
            _check_gate(container)
        return CreatedContainer(
            id=container.id,
            cgroup=cgroup,
            env=dict(line.partition("=")[::2] for line in container.env),
            device_nodes=tuple(device.path for device in container.devices),
        )

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

    def start(
        self,
        key: ContainerKey,
        load: ContainerLoad | None,
        *,
        container_id: str = "",
        cgroup: str = "",
    ) -> int:
        """Start a created container, with a process on its cards if it has a *load*."""
        pid = next(self._pids)
        self._running[key] = pid
        if cgroup:
            self._cgroups[key] = Path(cgroup)
        folder = self._proc_root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        path = _cgroups_path(key.pod_uid, container_id or f"{pid:064x}")
        (folder / "cgroup").write_text(f"0::{path}\n")
        zeros = " 0" * _BEFORE_STARTTIME
        (folder / "stat").write_text(f"{pid} (main) S{zeros} {pid * 100}\n")
        if load is not None:
            self._processes.write(
                SimulatedProcess(
                    pid=pid,
                    cards=load.cards,
                    used_mib=load.used_mib,
                    busy_ratio=load.busy_ratio,
                    cgroup=cgroup,
                )
            )
        return pid

    def stop(self, key: ContainerKey) -> None:
        """Stop a container's process, if it runs."""
        pid = self._running.pop(key, None)
        if pid is None:
            return
        self._processes.remove(pid)
        if (cgroup := self._cgroups.pop(key, None)) is not None:
            shutil.rmtree(cgroup, ignore_errors=True)
        folder = self._proc_root / str(pid)
        for file in ("cgroup", "stat"):
            (folder / file).unlink(missing_ok=True)
        folder.rmdir()

    def stop_all(self, keys: Iterable[ContainerKey] = ()) -> None:
        """Stop the containers in *keys*, or all."""
        for key in list(keys) or list(self._running):
            self.stop(key)


def _edited(
    container_id: str,
    sandbox: PodSandbox,
    name: str,
    edits: Sequence[Mapping[str, Any]],
    *,
    env: Mapping[str, str],
) -> Container:
    """Return a container with the edits of CDI specs."""
    lines = [f"{key}={value}" for key, value in env.items()]
    return Container(
        id=container_id,
        sandbox_id=sandbox.id,
        name=name,
        env=[*lines, *(line for edit in edits for line in edit.get("env", ()))],
        mounts=[
            Mount(destination=mount["containerPath"], source=mount["hostPath"])
            for edit in edits
            for mount in edit.get("mounts", ())
        ],
        devices=[
            Device(path=node["path"], major=0, minor=0)
            for edit in edits
            for node in edit.get("deviceNodes", ())
        ],
        cgroups_path=_cgroups_path(sandbox.uid, container_id),
    )


def _cgroups_path(pod_uid: str, container_id: str) -> str:
    return f"/kubepods/burstable/pod{pod_uid}/{container_id}"


def _check_mounts(container: Container) -> None:
    for mount in container.mounts:
        if not Path(mount.source).exists():
            raise RuntimeFailedError(
                f'error mounting "{mount.source}" to rootfs at "{mount.destination}": '
                "no such file or directory"
            )


def _check_gate(container: Container) -> None:
    """Do what the agent's hook does right before the first process."""
    for mount in container.mounts:
        if mount.destination == PROOF_PATH and not Path(mount.source).read_text():
            raise RuntimeFailedError("error running startContainer hook: no limits stand")


def _run_hook(hook: Mapping[str, Any], sandbox: PodSandbox, name: str) -> None:
    """Run a hook as runc does, with the annotations that containerd sets."""
    state = {
        "annotations": {
            "io.kubernetes.cri.sandbox-uid": sandbox.uid,
            "io.kubernetes.cri.container-name": name,
        }
    }
    ran = subprocess.run(  # noqa: S603 - named by the node agent's spec
        hook["args"],
        executable=hook["path"],
        input=json.dumps(state),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise RuntimeFailedError(f"error running createRuntime hook: {ran.stderr.strip()}")
