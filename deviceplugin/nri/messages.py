"""Pods, containers and adjustments to and from the messages on the wire."""

from collections.abc import Iterable
from typing import Final

from deviceplugin.nri.interface import (
    Adjustment,
    Container,
    ContainerState,
    Device,
    Hook,
    HookKind,
    Mount,
    PodSandbox,
    Unified,
)
from deviceplugin.proto import nri_pb2 as wire

_STATES: Final = {state.value: state for state in ContainerState}
_HOOK_FIELDS: Final = {
    HookKind.PRESTART: "prestart",
    HookKind.CREATE_RUNTIME: "create_runtime",
    HookKind.CREATE_CONTAINER: "create_container",
    HookKind.START_CONTAINER: "start_container",
    HookKind.POSTSTART: "poststart",
    HookKind.POSTSTOP: "poststop",
}


def read_pod(pod: wire.PodSandbox) -> PodSandbox:
    """Return *pod* as we know it."""
    return PodSandbox(
        id=pod.id,
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        annotations=dict(pod.annotations),
        labels=dict(pod.labels),
        cgroup_parent=pod.linux.cgroup_parent,
    )


def read_container(container: wire.Container) -> Container:
    """Return *container* as we know it."""
    return Container(
        id=container.id,
        sandbox_id=container.pod_sandbox_id,
        name=container.name,
        state=_STATES.get(container.state, ContainerState.UNKNOWN),
        annotations=dict(container.annotations),
        labels=dict(container.labels),
        env=tuple(container.env),
        mounts=tuple(_read_mount(mount) for mount in container.mounts),
        devices=tuple(_read_device(device) for device in container.linux.devices),
        cdi_devices=tuple(device.name for device in container.cdi_devices),
        cgroups_path=container.linux.cgroups_path,
        pid=container.pid,
    )


def _read_mount(mount: wire.Mount) -> Mount:
    return Mount(
        destination=mount.destination,
        source=mount.source,
        type=mount.type,
        options=tuple(mount.options),
    )


def _read_device(device: wire.LinuxDevice) -> Device:
    return Device(
        path=device.path,
        type=device.type,
        major=device.major,
        minor=device.minor,
        mode=device.file_mode.value if device.HasField("file_mode") else None,
        uid=device.uid.value if device.HasField("uid") else None,
        gid=device.gid.value if device.HasField("gid") else None,
    )


def write_adjustment(adjustment: Adjustment) -> wire.ContainerAdjustment:
    """Return *adjustment* for the wire.

    A runtime drops what has the key of an addition, and with that the mounts that are replaced:
    so no key is marked for removal, which NRI 0.6 would lose.
    """
    return wire.ContainerAdjustment(
        mounts=[write_mount(mount) for mount in adjustment.mounts],
        env=[wire.KeyValue(key=name, value=value) for name, value in adjustment.env.items()],
        hooks=wire.Hooks(
            **{
                _HOOK_FIELDS[kind]: [_write_hook(hook) for hook in hooks]
                for kind, hooks in adjustment.hooks.items()
            }
        ),
        linux=wire.LinuxContainerAdjustment(
            devices=[write_device(device) for device in adjustment.devices],
            resources=wire.LinuxResources(unified=adjustment.unified),
        ),
    )


def _write_hook(hook: Hook) -> wire.Hook:
    timeout = None if hook.timeout_s is None else wire.OptionalInt(value=hook.timeout_s)
    return wire.Hook(path=hook.path, args=hook.args, env=hook.env, timeout=timeout)


def write_mount(mount: Mount) -> wire.Mount:
    """Return *mount* for the wire."""
    return wire.Mount(
        destination=mount.destination,
        type=mount.type,
        source=mount.source,
        options=mount.options,
    )


def write_device(device: Device) -> wire.LinuxDevice:
    """Return *device* for the wire."""

    def optional(value: int | None) -> wire.OptionalUInt32 | None:
        return None if value is None else wire.OptionalUInt32(value=value)

    return wire.LinuxDevice(
        path=device.path,
        type=device.type,
        major=device.major,
        minor=device.minor,
        file_mode=optional(device.mode),
        uid=optional(device.uid),
        gid=optional(device.gid),
    )


def write_updates(unified: Unified) -> Iterable[wire.ContainerUpdate]:
    """Return *unified* for the wire."""
    return [
        wire.ContainerUpdate(
            container_id=container,
            linux=wire.LinuxContainerUpdate(resources=wire.LinuxResources(unified=keys)),
        )
        for container, keys in unified.items()
    ]
