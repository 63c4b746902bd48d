"""The device plugin gRPC service: converts messages; every decision is made elsewhere."""

# ruff: noqa: ARG002, N802 - names and arguments of the methods are the protocol's

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final, NoReturn, Protocol

import grpc
import structlog

from deviceplugin.container.cdi import qualified_name
from deviceplugin.kubelet.pre_start import PreStartError
from deviceplugin.node.inventory import InventoryTracker, Slot
from deviceplugin.proto import deviceplugin_pb2 as messages
from deviceplugin.proto import deviceplugin_pb2_grpc as services
from deviceplugin.sockets import SocketServer

log = structlog.get_logger()

API_VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

# 64 cards with 1,024 slots each are 2 MiB; kubelet itself takes 4 MiB.
_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
# An error text is sent in HTTP/2 headers, of which gRPC takes 8 KiB; events keep 1,024 characters.
_MAX_TEXT_CHARS: Final = 900


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
        self._sockets = SocketServer(
            socket,
            register=lambda server: services.add_DevicePluginServicer_to_server(plugin, server),  # type: ignore[no-untyped-call]
            options=[
                ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            ],
        )

    @property
    def socket(self) -> Path:
        return self._socket

    @property
    def intact(self) -> bool:
        """Whether we serve, and our socket file is still the one that we created."""
        return self._sockets.intact

    async def raise_mistake(self) -> NoReturn:
        """Raise the first error that no call should have, once one has."""
        await self._sockets.raise_mistake()

    async def start(self) -> None:
        """Serve, unless the server is running and intact.

        Raises:
            SocketError: the path is too long, or the socket cannot be created.
        """
        if await self._sockets.start():
            log.info("plugin_served", socket=str(self._socket))

    async def stop(self, limit_s: float) -> None:
        """Accept no more calls, and wait up to *limit_s* seconds for those in flight."""
        await self._sockets.close()
        self._plugin.end_streams()
        await self._sockets.stop(limit_s)
