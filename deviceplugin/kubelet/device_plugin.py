"""The device plugin gRPC service: converts messages; every decision is made elsewhere."""

# ruff: noqa: ARG002, N802 - names and arguments of the methods are the protocol's

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final, Protocol

import grpc
import structlog

from deviceplugin.container.cdi import qualified_name
from deviceplugin.kubelet.pre_start import PreStartError
from deviceplugin.node.inventory import InventoryTracker, Slot
from deviceplugin.proto import deviceplugin_pb2 as messages
from deviceplugin.proto import deviceplugin_pb2_grpc as services
from deviceplugin.sockets import socket_identity

log = structlog.get_logger()

API_VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

# sockaddr_un.sun_path holds 108 bytes with the terminating zero; see unix(7).
MAX_SOCKET_PATH_BYTES: Final = 107
# 64 cards with 1,024 slots each are 2 MiB; kubelet itself takes 4 MiB.
_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
# An error text is sent in HTTP/2 headers, of which gRPC takes 8 KiB; events keep 1,024 characters.
_MAX_TEXT_CHARS: Final = 900


class SocketError(Exception):
    """A unix socket cannot be served."""


class Starter(Protocol):
    """Decides whether a container may start."""

    def allocate(self, slot_ids: frozenset[str]) -> str:
        """Return the name of the CDI device for the container with *slot_ids*."""
        ...

    async def prepare(self, slot_ids: frozenset[str]) -> None:
        """Have the spec of the container with *slot_ids* ready.

        Raises:
            PreStartError: the container may not start.
        """
        ...


class DevicePlugin(services.DevicePluginServicer):
    """Answers kubelet.

    Args:
        tracker: the inventory, for the slots that kubelet counts.
        starter: decides whether containers may start.
    """

    def __init__(self, tracker: InventoryTracker, starter: Starter) -> None:
        self._tracker = tracker
        self._starter = starter
        self._watchers = 0
        self.watch_changed: Final = asyncio.Event()  # set when a stream begins or ends
        self._ending = False

    @property
    def watchers(self) -> int:
        """How many open streams have brought kubelet the slots; 0 means that it has none of us."""
        return self._watchers

    def end_streams(self) -> None:
        """End the streams, which would otherwise last as long as kubelet does."""
        self._ending = True
        self._tracker.wake_readers()

    async def GetDevicePluginOptions(
        self,
        request: messages.Empty,
        context: grpc.aio.ServicerContext[messages.Empty, messages.DevicePluginOptions],
    ) -> messages.DevicePluginOptions:
        return plugin_options()

    async def ListAndWatch(
        self,
        request: messages.Empty,
        context: grpc.aio.ServicerContext[messages.Empty, messages.ListAndWatchResponse],
    ) -> AsyncGenerator[messages.ListAndWatchResponse, None]:
        """Send the slots at once, and again whenever they have changed."""
        sent: tuple[Slot, ...] | None = None
        try:
            async with aclosing(self._tracker.changes()) as changes:
                async for _ in changes:
                    if self._ending:
                        return
                    slots = self._tracker.slots()
                    if slots != sent:
                        yield _listing(slots)
                        # gRPC asks for the next answer once it has sent this one.
                        if sent is None:
                            self._watchers += 1
                            self.watch_changed.set()
                        sent = slots
        finally:
            if sent is not None:
                self._watchers -= 1
                self.watch_changed.set()

    async def GetPreferredAllocation(
        self,
        request: messages.PreferredAllocationRequest,
        context: grpc.aio.ServicerContext[
            messages.PreferredAllocationRequest, messages.PreferredAllocationResponse
        ],
    ) -> messages.PreferredAllocationResponse:
        """Reject the call: slots are equivalent, and our options do not offer this method."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "slots are all alike")

    async def Allocate(
        self,
        request: messages.AllocateRequest,
        context: grpc.aio.ServicerContext[messages.AllocateRequest, messages.AllocateResponse],
    ) -> messages.AllocateResponse:
        """Return a CDI device for each set of ids; whose they are is not known yet."""
        answers = []
        for container in request.container_requests:
            slot_ids = frozenset(container.devices_ids)
            device = messages.CDIDevice(name=qualified_name(self._starter.allocate(slot_ids)))
            answers.append(messages.ContainerAllocateResponse(cdi_devices=[device]))
            log.debug("slots_allocated", slots=sorted(slot_ids), device=device.name)
        return messages.AllocateResponse(container_responses=answers)

    async def PreStartContainer(
        self,
        request: messages.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[
            messages.PreStartContainerRequest, messages.PreStartContainerResponse
        ],
    ) -> messages.PreStartContainerResponse:
        """Return once the container may start, or abort with a text that names the cause."""
        try:
            await self._starter.prepare(frozenset(request.devices_ids))
        except PreStartError as error:
            text = str(error)[:_MAX_TEXT_CHARS]
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        return messages.PreStartContainerResponse()


def plugin_options() -> messages.DevicePluginOptions:
    """Return the options: kubelet must call PreStartContainer, and no other optional method."""
    return messages.DevicePluginOptions(pre_start_required=True)


def _listing(slots: tuple[Slot, ...]) -> messages.ListAndWatchResponse:
    return messages.ListAndWatchResponse(
        devices=[
            messages.Device(ID=slot.id, health=HEALTHY if slot.healthy else UNHEALTHY)
            for slot in slots
        ]
    )


class PluginServer:
    """Serves a :class:`DevicePlugin` on a unix socket; a ``process.lifecycle.Server``.

    Kubelet deletes all sockets in the folder when it starts, so the same server must be able to
    create its socket again.
    """

    def __init__(self, plugin: DevicePlugin, socket: Path) -> None:
        self._plugin = plugin
        self._socket = socket
        self._server: grpc.aio.Server | None = None
        self._identity: tuple[int, int] | None = None
        self._closed = False
        self._lock = asyncio.Lock()

    @property
    def socket(self) -> Path:
        return self._socket

    @property
    def intact(self) -> bool:
        """Whether we serve, and our socket file is still the one that we created."""
        return self._server is not None and socket_identity(self._socket) == self._identity

    async def start(self) -> None:
        """Serve, unless the server is running and intact.

        Raises:
            SocketError: the path is too long, or the socket cannot be created.
        """
        async with self._lock:
            if not self._closed and not self.intact:
                await self._serve()

    async def stop(self, limit_s: float) -> None:
        """Accept no more calls, and wait up to *limit_s* seconds for those in flight."""
        async with self._lock:
            self._closed = True
            self._plugin.end_streams()
            await self._end(limit_s)

    async def _serve(self) -> None:
        # The old server removes the path when it stops, so it must stop before the new one starts.
        await self._end(0)
        check_socket_path(self._socket)
        options = [
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ]
        server = grpc.aio.server(options=options)
        services.add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]
        try:
            self._socket.parent.mkdir(parents=True, exist_ok=True)
            self._socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{self._socket}")
            await server.start()
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise SocketError(f"cannot serve {self._socket}: {error}") from error
        self._server = server
        self._identity = socket_identity(self._socket)
        log.info("plugin_served", socket=str(self._socket))

    async def _end(self, limit_s: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(limit_s or None)


def check_socket_path(path: Path) -> None:
    """Raise if *path* is too long for a unix socket.

    Raises:
        SocketError: it is longer than 107 bytes.
    """
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise SocketError(
            f"socket path {path} has {length} bytes; "
            f"want at most {MAX_SOCKET_PATH_BYTES}: use a folder with a shorter path"
        )
