"""A minimal device plugin: it lists the devices of the test and lets every container start."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from deviceplugin.proto import deviceplugin_pb2 as messages
from deviceplugin.proto import deviceplugin_pb2_grpc as services

RESOURCE = "example.com/thing"


class FakePlugin(services.DevicePluginServicer):
    """Serves devices on a socket beside kubelet's.

    Attributes:
        refusals: error texts of the next PreStartContainer calls, one each.
        started: the id sets of successful PreStartContainer calls.
        answering: while it is not set, Allocate and PreStartContainer do not answer.
        calls: how many of these calls there were.
    """

    def __init__(self, folder: Path, **devices: str) -> None:
        self._folder = folder
        self._devices = devices
        self._listing = True
        self._changed = asyncio.Event()
        self.refusals: list[str] = []
        self.allocate_refusal = ""
        self.allocated: list[frozenset[str]] = []
        self.started: list[frozenset[str]] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.calls = 0
        self.cdi_name: Callable[[frozenset[str]], str] = lambda ids: "-".join(sorted(ids))

    @asynccontextmanager
    async def serving(self, endpoint: str = "thing.sock") -> AsyncIterator[None]:
        server = grpc.aio.server()
        services.add_DevicePluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{self._folder / endpoint}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    async def register(
        self,
        *,
        endpoint: str = "thing.sock",
        version: str = "v1beta1",
        resource: str = RESOURCE,
        pre_start: bool = True,
    ) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        target = f"unix:{self._folder / 'kubelet.sock'}"
        request = messages.RegisterRequest(
            version=version,
            endpoint=endpoint,
            resource_name=resource,
            options=messages.DevicePluginOptions(pre_start_required=pre_start),
        )
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stub = services.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(request, wait_for_ready=True, timeout=10)

    def change(self, **devices: str) -> None:
        """List other devices from now on."""
        self._devices = devices
        self._notify()

    def end_listing(self) -> None:
        """End the ListAndWatch stream; other calls are still served."""
        self._listing = False
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def ListAndWatch(  # noqa: N802 - the protocol's names, here and below
        self,
        request: messages.Empty,
        context: grpc.aio.ServicerContext[messages.Empty, messages.ListAndWatchResponse],
    ) -> AsyncGenerator[messages.ListAndWatchResponse, None]:
        while self._listing:
            changed = self._changed
            devices = [
                messages.Device(ID=device, health=how) for device, how in self._devices.items()
            ]
            yield messages.ListAndWatchResponse(devices=devices)
            await changed.wait()

    async def Allocate(  # noqa: N802
        self,
        request: messages.AllocateRequest,
        context: grpc.aio.ServicerContext[messages.AllocateRequest, messages.AllocateResponse],
    ) -> messages.AllocateResponse:
        await self._answer()
        if self.allocate_refusal:
            await context.abort(grpc.StatusCode.INTERNAL, self.allocate_refusal)
        (asked,) = request.container_requests
        ids = frozenset(asked.devices_ids)
        self.allocated.append(ids)
        named = messages.CDIDevice(name=f"example.com/thing={self.cdi_name(ids)}")
        answer = messages.ContainerAllocateResponse(envs={"THING": "1"}, cdi_devices=[named])
        return messages.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(  # noqa: N802
        self,
        request: messages.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[
            messages.PreStartContainerRequest, messages.PreStartContainerResponse
        ],
    ) -> messages.PreStartContainerResponse:
        await self._answer()
        if self.refusals:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusals.pop(0))
        self.started.append(frozenset(request.devices_ids))
        return messages.PreStartContainerResponse()

    async def _answer(self) -> None:
        self.calls += 1
        await self.answering.wait()
