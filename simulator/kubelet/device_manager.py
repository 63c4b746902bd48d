"""The device manager of a simulated kubelet: registers plugins, allocates and records device ids.

It uses the real protocol over real unix sockets and behaves as kubelet does: the folder is emptied
at start, the plugin is dialled back, ids are picked in random order, and an init container's
devices are reused for the containers after it.
"""

# ruff: noqa: N802 - the names of the methods are the protocol's

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

import grpc
import structlog

from deviceplugin.kubelet.device_plugin import API_VERSION, HEALTHY
from deviceplugin.kubelet.registration import KUBELET_SOCKET
from deviceplugin.proto import deviceplugin_pb2 as messages
from deviceplugin.proto import deviceplugin_pb2_grpc as services
from deviceplugin.sockets import SocketServer

log = structlog.get_logger()

_Answer = TypeVar("_Answer")

PRE_START_LIMIT_S: Final = 30.0
_ALLOCATE_LIMIT_S: Final = 10.0
# Kubelet takes messages of 4 MiB; a device for each MiB of a large node is more than that.
_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # A plugin that registers again on its old path needs a new connection.
    ("grpc.use_local_subchannel_pool", 1),
)


class DeviceError(Exception):
    """A container cannot have its devices; the text is kubelet's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAllocation:
    """One container's devices of one resource."""

    resource: str
    ids: frozenset[str]
    cdi_devices: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerKey:
    """Identifies a container of one pod, by the pod's UID."""

    pod_uid: str
    namespace: str
    pod: str
    container: str


@dataclass(slots=True, kw_only=True)
class _Endpoint:
    """One registered plugin."""

    stub: services.DevicePluginStub
    pre_start: bool
    devices: dict[str, bool] = field(default_factory=dict)
    alive: bool = True


class DeviceManager(services.RegistrationServicer):
    """Registers plugins on ``kubelet.sock`` and allocates their devices.

    Args:
        folder: the device-plugins folder.
        on_change: called when a resource's devices have changed.
        seed: of the order in which ids are picked.
    """

    def __init__(self, folder: Path, *, on_change: Callable[[], None], seed: str) -> None:
        self._folder = folder
        self._on_change = on_change
        self._rng = random.Random(seed)  # noqa: S311 - any order will do
        self._endpoints: dict[str, _Endpoint] = {}
        self._grants: dict[ContainerKey, list[DeviceAllocation]] = {}
        self._ended: set[str] = set()
        self._forgotten: set[str] = set()
        self._newcomers: asyncio.Queue[messages.RegisterRequest] = asyncio.Queue()

    # -- serving -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the registration socket until cancelled.

        Raises:
            deviceplugin.sockets.SocketError: the folder's path is too long for a socket.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.iterdir():
            if leftover.is_socket():
                leftover.unlink(missing_ok=True)
        sockets = SocketServer(
            self._folder / KUBELET_SOCKET,
            register=lambda server: services.add_RegistrationServicer_to_server(self, server),  # type: ignore[no-untyped-call]
        )
        await sockets.start()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    request = await self._newcomers.get()
                    group.create_task(self._follow(request), name=f"plugin_{request.endpoint}")
        finally:
            await sockets.stop(0)

    async def Register(
        self,
        request: messages.RegisterRequest,
        context: grpc.aio.ServicerContext[messages.RegisterRequest, messages.Empty],
    ) -> messages.Empty:
        """Accept a plugin; like kubelet, dial it back after the response."""
        if request.version != API_VERSION:
            text = f"requested version {request.version!r}; supported is {API_VERSION}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        if "/" not in request.resource_name:
            text = f"the ResourceName {request.resource_name!r} is invalid"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        self._newcomers.put_nowait(request)
        return messages.Empty()

    async def _follow(self, request: messages.RegisterRequest) -> None:
        """Follow the ListAndWatch stream; when it ends, all devices of the plugin are unhealthy."""
        resource = request.resource_name
        target = f"unix:{self._folder / request.endpoint}"
        async with grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS) as channel:
            stub = services.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
            endpoint = _Endpoint(stub=stub, pre_start=request.options.pre_start_required)
            before = self._endpoints.get(resource)
            if before is not None:
                before.alive = False
                endpoint.devices = dict(before.devices)
            self._endpoints[resource] = endpoint
            log.info("plugin_connected", resource=resource, endpoint=request.endpoint)
            try:
                async for listing in stub.ListAndWatch(messages.Empty()):
                    endpoint.devices = {
                        device.ID: device.health == HEALTHY for device in listing.devices
                    }
                    self._on_change()
            except grpc.aio.AioRpcError as error:
                log.info("plugin_stream_ended", resource=resource, code=error.code().name)
            finally:
                endpoint.alive = False
                endpoint.devices = dict.fromkeys(endpoint.devices, False)
                self._on_change()

    # -- devices -------------------------------------------------------------------------------

    def amounts(self) -> Mapping[str, tuple[int, int]]:
        """Return capacity and allocatable of every registered resource."""
        return {
            resource: (len(endpoint.devices), sum(endpoint.devices.values()))
            for resource, endpoint in self._endpoints.items()
        }

    def manages(self, resource: str) -> bool:
        """Report whether a plugin has ever registered *resource*."""
        return resource in self._endpoints

    def allocations(self) -> Mapping[ContainerKey, Sequence[DeviceAllocation]]:
        """Return the devices that every container holds now."""
        return self._grants

    # -- allocation ----------------------------------------------------------------------------

    async def allocate(
        self, key: ContainerKey, *, resource: str, count: int, reusable: set[str]
    ) -> DeviceAllocation:
        """Allocate *count* devices to a container, those in *reusable* first, and call the plugin.

        Raises:
            DeviceError: too few are available, or the plugin refuses.
        """
        endpoint = self._endpoints[resource]
        ids = self._pick(endpoint, resource, count=count, reusable=reusable)
        # Taken before the plugin is called, so that no other container gets them meanwhile.
        taken = DeviceAllocation(resource=resource, ids=ids, cdi_devices=())
        self._grants.setdefault(key, []).append(taken)
        try:
            answer = await self._ask(endpoint, ids)
        except DeviceError:
            self._grants[key].remove(taken)
            raise
        grant = DeviceAllocation(
            resource=resource,
            ids=ids,
            cdi_devices=tuple(device.name for device in answer.cdi_devices),
            env=dict(answer.envs),
        )
        held = self._grants[key]
        held[held.index(taken)] = grant
        return grant

    def _pick(
        self, endpoint: _Endpoint, resource: str, *, count: int, reusable: set[str]
    ) -> frozenset[str]:
        healthy = {device for device, well in endpoint.devices.items() if well}
        held = {
            device
            for key, grants in self._grants.items()
            for grant in grants
            if grant.resource == resource and key.pod_uid not in self._ended | self._forgotten
            for device in grant.ids
        }
        again = sorted(reusable & healthy)[:count]
        free = sorted(healthy - held)
        if len(again) + len(free) < count:
            raise DeviceError(
                "Allocate failed due to requested number of devices unavailable for "
                f"{resource}. Requested: {count}, Available: {len(again) + len(free)}, "
                "which is unexpected"
            )
        return frozenset([*again, *self._rng.sample(free, count - len(again))])

    async def _ask(
        self, endpoint: _Endpoint, ids: frozenset[str]
    ) -> messages.ContainerAllocateResponse:
        request = messages.AllocateRequest(
            container_requests=[messages.ContainerAllocateRequest(devices_ids=sorted(ids))]
        )
        try:
            answer: messages.AllocateResponse = await _answer(
                endpoint.stub.Allocate(request, timeout=_ALLOCATE_LIMIT_S)
            )
        except _RpcError as error:
            raise DeviceError(f"Allocate failed due to {error}, which is unexpected") from error
        if len(answer.container_responses) != 1:
            count = len(answer.container_responses)
            raise DeviceError(f"Allocate failed: {count} answers for 1 container")
        return answer.container_responses[0]

    async def pre_start(self, grant: DeviceAllocation) -> None:
        """Call PreStartContainer before a container starts, if the plugin requires it.

        Raises:
            DeviceError: the plugin refuses, is gone, or does not answer within 30 s.
        """
        endpoint = self._endpoints[grant.resource]
        if not endpoint.pre_start:
            return
        if not endpoint.alive:
            raise DeviceError(f"endpoint of {grant.resource} has been stopped")
        request = messages.PreStartContainerRequest(devices_ids=sorted(grant.ids))
        try:
            await _answer(endpoint.stub.PreStartContainer(request, timeout=PRE_START_LIMIT_S))
        except _RpcError as error:
            raise DeviceError(
                f"device plugin PreStartContainer rpc failed with err: {error}"
            ) from error

    def retire(self, pod_uid: str) -> None:
        """Free the devices of a pod that has ended; they stay listed until released."""
        self._ended.add(pod_uid)

    def rename(self, pod_uid: str, cdi_devices: tuple[str, ...]) -> None:
        """Keep other CDI devices for a pod: those with which an earlier plugin answered."""
        for key, grants in self._grants.items():
            if key.pod_uid == pod_uid:
                grants[:] = [replace(grant, cdi_devices=cdi_devices) for grant in grants]

    def forget(self, pod_uid: str) -> None:
        """Count the devices of a pod as free, though the pod keeps them.

        Kubelet does that until the next pod ends. It rebuilds the list of devices in use whenever a
        pod has ended and somebody calls PodResources, from the allocations that are complete: not
        from those for which it awaits a plugin's answer (kubernetes PR 137534).
        """
        self._forgotten.add(pod_uid)

    def release(self, pod_uid: str) -> None:
        """Release the devices of a pod's containers."""
        self._ended.discard(pod_uid)
        self._forgotten.clear()
        for key in [key for key in self._grants if key.pod_uid == pod_uid]:
            del self._grants[key]


class _RpcError(Exception):
    """A call to a plugin failed; the text is as kubelet has it."""


async def _answer(call: Awaitable[_Answer]) -> _Answer:
    """Return a plugin's answer.

    When a plugin's stream ends, its channel is closed and with it every call on it. gRPC raises
    that here as a cancellation, though nobody has cancelled this task: without an error the pod
    would end without a word.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        text = f"rpc error: code = {error.code().name} desc = {error.details()}"
        raise _RpcError(text) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        text = "rpc error: code = CANCELLED desc = grpc: the client connection is closing"
        raise _RpcError(text) from error
