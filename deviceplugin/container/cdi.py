"""CDI specs: what the container runtime adds to a container that has the CDI device."""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from deviceplugin.cards.interface import DeviceNode
from fracgpu import names
from fracgpu.cards.card import Card
from fracgpu.state.allocation import Slice

# 0.5.0 is the first version in which a device name may begin with a digit, as ours may.
# Source: the CDI specification's version table.
CDI_VERSION: Final = "0.5.0"

_NAME_CHARS: Final = 16
_FILE_PREFIX: Final = names.CDI_KIND.replace("/", "-") + "_"
_FILE_SUFFIX: Final = ".json"
_MARK: Final = "[0-9a-f]" * _NAME_CHARS
# The device that all slots share where the runtime says by NRI whose container it is.
SHARED: Final = "shared"
# What a spec mounts that gives no cards: a file that never exists, so that no container is made of
# it until the agent's answer by NRI has replaced the mount. Its name is in the pod's Events.
ABSENT: Final = "/run/fracgpu/the-node-agent-has-not-answered"
# Beside it, with the reason as the file's name: where the cards cannot be given at present.
_REFUSED: Final = "/run/fracgpu/refused"
_NOT_IN_FILES: Final = re.compile("[^A-Za-z0-9.]+")
_MOST_WHY: Final = 200  # a file's name has at most 255 bytes
# Beside kubelet's own /dev/termination-log: the runtime makes this folder anew for each container,
# so there is always a place for it.
MARK_PATH: Final = "/dev/fracgpu-spec"


class CdiError(Exception):
    """The CDI folder cannot be written or read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the host that a container sees as *path*."""

    host_path: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSpec:
    """What a container with the CDI device *name* gets.

    Attributes:
        version: of the CDI specification.
        foreign_env: variables of the driver's own spec, ``NAME=value``; ours win over them.
        foreign_nodes: device files of the driver's own spec, as they are there.
        foreign_mounts: libraries and programs of the driver's own spec.
        hooks: hooks of the driver's own spec.
    """

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    version: str = CDI_VERSION
    foreign_env: tuple[str, ...] = ()
    foreign_nodes: tuple[Mapping[str, Any], ...] = ()
    foreign_mounts: tuple[Mapping[str, Any], ...] = ()
    hooks: tuple[Mapping[str, Any], ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the CDI specification."""
        foreign = dict(variable.partition("=")[::2] for variable in self.foreign_env)
        env = {**foreign, **self.env}
        own = {node.path for node in self.device_nodes}
        nodes = [_node(node) for node in self.device_nodes]
        nodes += [dict(node) for node in self.foreign_nodes if node.get("path") not in own]
        mounts = [_mount(mount) for mount in self.mounts] + [
            dict(mount) for mount in self.foreign_mounts
        ]
        edits: dict[str, Any] = {"env": [f"{key}={env[key]}" for key in sorted(env)]}
        for key, parts in (("deviceNodes", nodes), ("mounts", mounts), ("hooks", self.hooks)):
            if parts:
                edits[key] = list(parts)
        return {
            "cdiVersion": self.version,
            "kind": names.CDI_KIND,
            "devices": [{"name": self.name, "containerEdits": edits}],
        }


def newest(*versions: str) -> str:
    """Return the highest version, such as ``0.5.0``; an invalid one counts as the lowest."""
    return max(versions, key=_version_key)


def _version_key(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def device_name(slot_ids: Iterable[str]) -> str:
    """Return the name of the CDI device of a set of slot ids: always the same for the same ids."""
    text = ",".join(sorted(slot_ids))
    return hashlib.sha256(text.encode()).hexdigest()[:_NAME_CHARS]


def qualified_name(name: str) -> str:
    """Return the qualified device name, such as ``fracgpu.io/slot=0123456789abcdef``."""
    return f"{names.CDI_KIND}={name}"


def spec_for(
    name: str,
    slices: Sequence[Slice],
    cards: Sequence[Card],
    device_nodes: Sequence[DeviceNode],
) -> CdiSpec:
    """Return the spec of a container with *slices* on *cards*, in the order of its assignment.

    No runtime of a vendor adds anything, until something else is said.
    """
    return CdiSpec(
        name=name,
        env={
            names.ENV_VISIBLE_DEVICES: names.NO_VISIBLE_DEVICES,
            names.ENV_CARDS: ",".join(card.uuid for card in cards),
            names.ENV_MEM_MIB: ",".join(str(part.mib) for part in slices),
            names.ENV_CARD_MIB: ",".join(str(card.total_mib) for card in cards),
        },
        device_nodes=tuple(dict.fromkeys(device_nodes)),
    )


def closed_spec(name: str) -> CdiSpec:
    """Return the spec of a device of which no container can be made but by an answer by NRI."""
    return CdiSpec(name=name, mounts=(Mount(host_path=ABSENT, path=MARK_PATH, read_only=True),))


def refusing_spec(name: str, why: str) -> CdiSpec:
    """Return the spec of a device of which no container can be made; Events then say *why*."""
    file = f"{_REFUSED}/{_NOT_IN_FILES.sub('-', why)[:_MOST_WHY].strip('-')}"
    return CdiSpec(name=name, mounts=(Mount(host_path=file, path=MARK_PATH, read_only=True),))


class CdiFolder:
    """The specs of our own kind in the runtime's CDI folder; other kinds are never touched.

    Runtimes keep the specs in memory, and read them again a while after the folder has changed, or
    never where the change was missed (``pkg/cdi/cache.go`` of container-device-interface). So a
    spec that was replaced may still be used: each that gives cards has a hook which verifies whose
    container it is, or mounts a file beside it, its mark, which is removed when the spec is
    replaced: then no container is made of what the runtime remembers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Pods that start at once share a spec, and each has a thread to write it.
        self._one_at_a_time = threading.Lock()

    def marked(self, spec: CdiSpec) -> CdiSpec:
        """Return *spec* with a mount of its mark, which another content would not have."""
        content = hashlib.sha256(json.dumps(spec.document()).encode()).hexdigest()[:_NAME_CHARS]
        mark = self._folder / f"{_FILE_PREFIX}{spec.name}.{content}"
        return replace(
            spec,
            mounts=(*spec.mounts, Mount(host_path=str(mark), path=MARK_PATH, read_only=True)),
        )

    def _marks(self, spec: CdiSpec) -> Sequence[Path]:
        mounted = (Path(mount.host_path) for mount in spec.mounts if mount.path == MARK_PATH)
        return [path for path in mounted if path.parent == self._folder]

    def write(self, spec: CdiSpec) -> bool:
        """Write *spec* atomically, replacing an older one; return False if it is there already.

        Raises:
            CdiError: the folder cannot be written.
        """
        with self._one_at_a_time:
            return not self.has(spec) and self._write(spec)

    def has(self, spec: CdiSpec) -> bool:
        """Report whether *spec* is there.

        Raises:
            CdiError: the folder cannot be read.
        """
        file = self._file(spec.name)
        try:
            same = file.read_text(errors="replace") == json.dumps(spec.document())
            return same and all(mark.exists() for mark in self._marks(spec))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise CdiError(f"cannot read {file}: {error.strerror or error}") from error

    def _write(self, spec: CdiSpec) -> bool:
        target = self._file(spec.name)
        # The runtime reads every *.json and *.yaml here, so an unfinished file has neither suffix.
        temporary, marks = target.with_suffix(".new"), self._marks(spec)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for mark in marks:
                mark.touch()
            with temporary.open("w", encoding="utf-8") as file:
                file.write(json.dumps(spec.document()))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            for old in self._folder.glob(f"{_FILE_PREFIX}{spec.name}.{_MARK}"):
                if old not in marks:
                    old.unlink(missing_ok=True)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise CdiError(f"cannot write {target}: {error.strerror or error}") from error
        return True

    def names(self) -> frozenset[str]:
        """Return the names of the devices that have a spec of ours, or what is left of one.

        Raises:
            CdiError: the folder cannot be read.
        """
        try:
            found = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
        except OSError as error:
            raise CdiError(f"cannot read {self._folder}: {error.strerror or error}") from error
        return frozenset(
            name.removeprefix(_FILE_PREFIX).partition(".")[0]
            for name in found
            if name.startswith(_FILE_PREFIX)
        )

    def written_s(self, name: str) -> float:
        """Return when a device's spec was written, in seconds since 1970; inf if not known."""
        files = self._folder.glob(f"{_FILE_PREFIX}{name}.*")
        try:
            return max((file.stat().st_mtime for file in files), default=math.inf)
        except OSError:
            return math.inf

    def remove(self, name: str) -> None:
        """Remove the spec of one device and all that belongs to it, if it is there.

        Raises:
            CdiError: the folder cannot be written.
        """
        try:
            for file in self._folder.glob(f"{_FILE_PREFIX}{name}.*"):
                file.unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise CdiError(f"cannot remove {self._file(name)}: {reason}") from error

    def _file(self, name: str) -> Path:
        return self._folder / f"{_FILE_PREFIX}{name}{_FILE_SUFFIX}"


def remove_device_files(root: Path) -> None:
    """Remove the folders of device files that agents before NRI gave containers without CDI.

    Nobody verifies whose container gets them, and kubelet keeps naming the folder as long as the
    pod lives: without it the container does not start. One that runs keeps its files.
    """
    for folder in root.glob("*/dev"):
        shutil.rmtree(folder, ignore_errors=True)


def _node(node: DeviceNode) -> dict[str, str]:
    written = {"path": node.path}
    if node.host_path and node.host_path != node.path:
        written["hostPath"] = node.host_path
    return written


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.path,
        "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind"],
    }
