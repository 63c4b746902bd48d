"""The NRI of a simulated container runtime: plugins are asked before it creates a container."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from deviceplugin.nri.connection import (
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    UNIMPLEMENTED,
    UNKNOWN,
    failed,
)
from deviceplugin.nri.framing import (
    ConnectionId,
    FrameError,
    FrameReader,
    Message,
    MessageType,
    encode,
)
from deviceplugin.nri.interface import Container, ContainerState, PodSandbox
from deviceplugin.nri.messages import read_container, write_device, write_mount
from deviceplugin.proto import nri_pb2 as wire
from deviceplugin.proto import ttrpc_pb2 as ttrpc
from simulator.kubelet.container_runtime import RuntimeFailedError

_CHUNK: Final = 1 << 16
_INDEX: Final = re.compile("[0-9]{2}")
_CONTROLLERS: Final = ("cgroup", "cpu", "cpuset", "io", "memory", "pids")
_METHODS_OF_THEIR_OWN: Final = (0, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustedContainer:
    """A container with all that plugins gave it."""

    container: Container
    unified: Mapping[str, str] = field(default_factory=dict)
    hooks: wire.Hooks = field(default_factory=wire.Hooks)


class _CallFailedError(Exception):
    """A plugin answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Plugin:
    """A plugin's connection, from the runtime's side."""

    def __init__(self, writer: asyncio.StreamWriter, *, timeout_s: float) -> None:
        self._writer = writer
        self._timeout_s = timeout_s
        self._next_stream = 1
        self._waiting: dict[int, asyncio.Future[ttrpc.Response]] = {}
        self.registered = asyncio.Event()
        self.name = ""
        self.events = 0

    async def call(self, method: str, request: Protobuf) -> bytes | None:
        """Return the plugin's response; None if it is gone or too late, and then it is dropped.

        Raises:
            _CallFailedError: it answered with an error.
        """
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        answer = asyncio.get_running_loop().create_future()
        self._waiting[stream] = answer
        call = ttrpc.Request(
            service=PLUGIN_SERVICE,
            method=method,
            payload=request.SerializeToString(),
            timeout_nano=int(self._timeout_s * 1e9),
        )
        self.send(ConnectionId.TO_PLUGIN, stream, MessageType.REQUEST, call)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await answer
        except (TimeoutError, ConnectionError):
            self.close()
            return None
        if response.status.code:
            raise _CallFailedError(response.status.code, response.status.message)
        return bytes(response.payload)

    def send(
        self, connection: ConnectionId, stream: int, kind: MessageType, body: Protobuf
    ) -> None:
        """Write a message; a plugin that is gone does not mind."""
        self._writer.write(encode(Message(connection, stream, kind, body.SerializeToString())))

    def answered(self, message: Message) -> None:
        """Take a response of the plugin."""
        answer = self._waiting.pop(message.stream, None)
        if answer is not None and not answer.done():
            answer.set_result(ttrpc.Response.FromString(message.body))

    def close(self) -> None:
        """Drop the plugin."""
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the plugin is gone"))
        self._waiting.clear()


class NriServer:
    """What containerd and CRI-O do for plugins, over the same wire on a real socket.

    A plugin that is gone or late is left out, and the container created without it, as there.

    Args:
        socket: path to serve on.
        name: the runtime's own name.
        version: the runtime's own version.
        nri: the version of NRI; 0.12 has a method for each event.
        timeout_s: how long a plugin may take.
    """

    def __init__(
        self,
        socket: Path,
        *,
        name: str = "containerd",
        version: str = "v2.1.9",
        nri: tuple[int, int] = (0, 12),
        timeout_s: float = 2.0,
    ) -> None:
        self._socket = socket
        self._name = name
        self._version = version
        self._nri = nri
        self._timeout_s = timeout_s
        self._plugins: list[_Plugin] = []
        self._lock = asyncio.Lock()
        self.pods: dict[str, PodSandbox] = {}
        self.containers: dict[str, Container] = {}
        self.unified: dict[str, dict[str, str]] = {}
        """What updates set, by container."""

    @property
    def plugins(self) -> Sequence[str]:
        """The plugins that are asked, in order."""
        return [plugin.name for plugin in self._plugins]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen inside the context; what follows it is a runtime that is away."""
        server = await asyncio.start_unix_server(self._accept, self._socket)
        try:
            yield
        finally:
            server.close()
            for plugin in self._plugins:
                plugin.close()
            self._plugins = []

    async def run(self) -> None:
        """Serve until cancelled."""
        async with self.serving():
            await asyncio.Event().wait()

    async def create_container(self, pod: PodSandbox, container: Container) -> AdjustedContainer:
        """Return *container* as its plugins want it.

        Raises:
            RuntimeFailedError: a plugin refuses, or two want the same.
        """
        owners: dict[tuple[str, str], str] = {}
        created = AdjustedContainer(container=container)
        async with self._lock:
            for plugin in self._asked(wire.CREATE_CONTAINER):
                request = _container_request(pod, created.container)
                payload = await self._call(plugin, "CreateContainer", request)
                if payload is not None:
                    adjust = wire.CreateContainerResponse.FromString(payload).adjust
                    _claim(owners, adjust, plugin.name)
                    created = _adjusted(created, adjust)
            state = replace(created.container, state=ContainerState.CREATED)
            self.containers[container.id] = state
        return created

    async def start_container(self, pod: PodSandbox, container: Container) -> None:
        """Ask before the first process runs.

        Raises:
            RuntimeFailedError: a plugin refuses.
        """
        await self._tell(wire.START_CONTAINER, "StartContainer", pod, container)
        state = replace(self.containers[container.id], state=ContainerState.RUNNING)
        self.containers[container.id] = state

    async def stop_container(self, pod: PodSandbox, container: Container) -> None:
        """Report that a container's last process has ended."""
        await self._tell(wire.STOP_CONTAINER, "StopContainer", pod, container)
        state = replace(self.containers[container.id], state=ContainerState.STOPPED)
        self.containers[container.id] = state

    async def remove_container(self, pod: PodSandbox, container: Container) -> None:
        """Report that a container is gone."""
        await self._tell(wire.REMOVE_CONTAINER, "RemoveContainer", pod, container)
        self.containers.pop(container.id, None)

    async def _tell(
        self, event: wire.Event, method: str, pod: PodSandbox, container: Container
    ) -> None:
        request = _container_request(pod, container)
        changed = wire.StateChangeEvent(event=event, pod=request.pod, container=request.container)
        async with self._lock:
            for plugin in self._asked(event):
                if self._nri < _METHODS_OF_THEIR_OWN:
                    await self._call(plugin, "StateChange", changed)
                else:
                    await self._call(plugin, method, request)

    async def _call(self, plugin: _Plugin, method: str, request: Protobuf) -> bytes | None:
        try:
            return await plugin.call(method, request)
        except _CallFailedError as error:
            raise RuntimeFailedError(f"rpc error: code = {error.code} desc = {error}") from error

    def _asked(self, event: int) -> Sequence[_Plugin]:
        return [plugin for plugin in self._plugins if plugin.events & 1 << (event - 1)]

    # ---- a plugin's connection

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plugin = _Plugin(writer, timeout_s=self._timeout_s)
        async with asyncio.TaskGroup() as group:
            welcome = group.create_task(self._welcome(plugin), name="welcome")
            with suppress(FrameError, DecodeError, ConnectionError):
                await self._read(plugin, reader)
            welcome.cancel()
        plugin.close()
        if plugin in self._plugins:
            self._plugins.remove(plugin)

    async def _read(self, plugin: _Plugin, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        while data := await reader.read(_CHUNK):
            for message in frames.feed(data):
                if message.type == MessageType.RESPONSE:
                    plugin.answered(message)
                elif message.connection == ConnectionId.TO_RUNTIME:
                    request = ttrpc.Request.FromString(message.body)
                    response = self._answer(plugin, request)
                    plugin.send(
                        ConnectionId.TO_RUNTIME, message.stream, MessageType.RESPONSE, response
                    )

    def _answer(self, plugin: _Plugin, request: ttrpc.Request) -> ttrpc.Response:
        if request.service == RUNTIME_SERVICE and request.method == "RegisterPlugin":
            registration = wire.RegisterPluginRequest.FromString(request.payload)
            index = registration.plugin_idx
            if not (_INDEX.fullmatch(index) and registration.plugin_name):
                return failed(UNKNOWN, f"invalid plugin index {index!r}, must be 2 digits")
            plugin.name = f"{index}-{registration.plugin_name}"
            plugin.registered.set()
            return ttrpc.Response()
        if request.service == RUNTIME_SERVICE and request.method == "UpdateContainers":
            updates = wire.UpdateContainersRequest.FromString(request.payload).update
            if self._update(updates):
                return ttrpc.Response()
            # ttrpc drops the response, in which the containers are named.
            return failed(UNKNOWN, "NRI update of some containers failed")
        return failed(UNIMPLEMENTED, f"no method {request.method}")

    def _update(self, updates: Iterable[wire.ContainerUpdate]) -> bool:
        """Apply updates; containers that are unknown are skipped without a word, as there."""
        failed = False
        for update in updates:
            keys = update.linux.resources.unified
            if update.container_id not in self.containers:
                continue
            if all(key.partition(".")[0] in _CONTROLLERS for key in keys):
                self.unified.setdefault(update.container_id, {}).update(keys)
            else:
                failed = True
        return not failed

    async def _welcome(self, plugin: _Plugin) -> None:
        await plugin.registered.wait()
        configure = wire.ConfigureRequest(runtime_name=self._name, runtime_version=self._version)
        try:
            payload = await plugin.call("Configure", configure)
            plugin.events = wire.ConfigureResponse.FromString(payload or b"").events
            async with self._lock:
                synchronized = await self._synchronize(plugin)
                if synchronized:
                    self._plugins.append(plugin)
                    self._plugins.sort(key=lambda one: one.name[:2])
        except _CallFailedError:
            synchronized = False
        if not synchronized:
            plugin.close()

    async def _synchronize(self, plugin: _Plugin) -> bool:
        request = wire.SynchronizeRequest(
            pods=[_write_pod(pod) for pod in self.pods.values()],
            containers=[_write_container(container) for container in self.containers.values()],
        )
        payload = await plugin.call("Synchronize", request)
        if payload is None:
            return False
        self._update(wire.SynchronizeResponse.FromString(payload).update)
        return True


# ---- adjustments


def _claim(
    owners: dict[tuple[str, str], str], adjust: wire.ContainerAdjustment, plugin: str
) -> None:
    claims = [
        *(("mount", mount.destination) for mount in adjust.mounts),
        *(("device", device.path) for device in adjust.linux.devices),
        *(("env", variable.key) for variable in adjust.env),
        *(("unified", key) for key in adjust.linux.resources.unified),
    ]
    for claim in claims:
        other = owners.setdefault(claim, plugin)
        if other is not plugin:
            kind, key = claim
            raise RuntimeFailedError(
                f"plugins {plugin!r} and {other!r} both tried to set {kind} {key!r}"
            )


def _adjusted(created: AdjustedContainer, adjust: wire.ContainerAdjustment) -> AdjustedContainer:
    before = created.container
    given = read_container(
        wire.Container(
            env=[f"{variable.key}={variable.value}" for variable in adjust.env],
            mounts=adjust.mounts,
            linux=wire.LinuxContainer(devices=adjust.linux.devices),
        )
    )
    env = dict(line.partition("=")[::2] for line in (*before.env, *given.env))
    mounts = {mount.destination: mount for mount in (*before.mounts, *given.mounts)}
    devices = {device.path: device for device in (*before.devices, *given.devices)}
    hooks = wire.Hooks()
    for each in (created.hooks, adjust.hooks):
        hooks.MergeFrom(each)
    return AdjustedContainer(
        container=replace(
            before,
            env=[f"{name}={value}" for name, value in env.items()],
            mounts=list(mounts.values()),
            devices=list(devices.values()),
        ),
        unified={**created.unified, **adjust.linux.resources.unified},
        hooks=hooks,
    )


# ---- what the runtime knows, for the wire


def _container_request(pod: PodSandbox, container: Container) -> wire.ContainerRequest:
    return wire.ContainerRequest(pod=_write_pod(pod), container=_write_container(container))


def _write_pod(pod: PodSandbox) -> wire.PodSandbox:
    return wire.PodSandbox(
        id=pod.id,
        name=pod.name,
        uid=pod.uid,
        namespace=pod.namespace,
        labels=pod.labels,
        annotations=pod.annotations,
        linux=wire.LinuxPodSandbox(cgroup_parent=pod.cgroup_parent),
    )


def _write_container(container: Container) -> wire.Container:
    return wire.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox_id,
        name=container.name,
        state=wire.ContainerState.Name(container.state.value),
        labels=container.labels,
        annotations=container.annotations,
        env=container.env,
        mounts=[write_mount(mount) for mount in container.mounts],
        linux=wire.LinuxContainer(
            devices=[write_device(device) for device in container.devices],
            cgroups_path=container.cgroups_path,
        ),
        pid=container.pid,
        cdi_devices=[wire.CDIDevice(name=name) for name in container.cdi_devices],
    )
