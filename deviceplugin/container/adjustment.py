"""Converts what a CDI spec would give a container to an answer by NRI."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin.cards.interface import DeviceNode
from deviceplugin.container.cdi import MARK_PATH, CdiSpec
from deviceplugin.container.spec_builder import SpecBuildError
from deviceplugin.nri.interface import Adjustment, Device, Hook, HookKind, Mount

_DEV_ROOT: Final = Path("/dev")
_MODE: Final = 0o666
# In place of the file that does not exist: one that always does.
_MARK: Final = Mount(
    destination=MARK_PATH, source="/dev/null", options=("bind", "ro", "nosuid", "noexec")
)


def adjustment_of(spec: CdiSpec, *, dev_root: Path = _DEV_ROOT) -> Adjustment:
    """Return the adjustment that gives what *spec* does, and removes what keeps it from starting.

    Args:
        spec: what the container gets.
        dev_root: where the host's ``/dev`` is.

    Raises:
        SpecBuildError: the node lacks a device file, or the driver's own spec has an unknown hook.
    """
    (device,) = spec.document()["devices"]
    edits = device["containerEdits"]
    try:
        return Adjustment(
            mounts=(_MARK, *(_mount(mount) for mount in edits.get("mounts", ()))),
            devices=tuple(_device(node, dev_root) for node in edits.get("deviceNodes", ())),
            env=dict(variable.partition("=")[::2] for variable in edits["env"]),
            hooks=_hooks(edits.get("hooks", ())),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise SpecBuildError(f"the driver's CDI spec cannot be used: {error!r}") from error


def _mount(mount: Mapping[str, Any]) -> Mount:
    options = mount.get("options") or ("ro", "nosuid", "nodev", "bind")
    return Mount(
        destination=mount["containerPath"],
        source=mount["hostPath"],
        type=mount.get("type") or "bind",
        options=tuple(options),
    )


def _device(node: Mapping[str, Any], dev_root: Path) -> Device:
    """Return a device with the numbers that the node's own file has now."""
    source = host_file(
        DeviceNode(path=node["path"], host_path=node.get("hostPath", "")), dev_root=dev_root
    )
    try:
        found = source.stat()
    except OSError as error:
        raise SpecBuildError(f"cannot read {source}: {error.strerror or error}") from error
    if not stat.S_ISCHR(found.st_mode):
        raise SpecBuildError(f"{source} is not a character device")
    return Device(
        path=node["path"],
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        mode=node.get("fileMode") or _MODE,
        uid=node.get("uid"),
        gid=node.get("gid"),
    )


def _hooks(hooks: Sequence[Mapping[str, Any]]) -> Mapping[HookKind, Sequence[Hook]]:
    found: dict[HookKind, list[Hook]] = {}
    for hook in hooks:
        found.setdefault(HookKind(hook["hookName"]), []).append(
            Hook(
                path=hook["path"],
                args=tuple(hook.get("args") or ()),
                env=tuple(hook.get("env") or ()),
                timeout_s=hook.get("timeout"),
            )
        )
    return found


def host_file(node: DeviceNode, *, dev_root: Path = _DEV_ROOT) -> Path:
    """Return our path of the host's device file; *dev_root* is our path of the host's ``/dev``."""
    source = Path(node.host_path or node.path)
    if source.is_relative_to(_DEV_ROOT):
        return dev_root / source.relative_to(_DEV_ROOT)
    return source
