"""The device plugin's gRPC service over a real unix socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from deviceplugin.container.cdi import device_name
from deviceplugin.kubelet.device_plugin import (
    DevicePlugin,
    PluginServer,
)
from deviceplugin.kubelet.pre_start import PreStartError
from deviceplugin.proto import deviceplugin_pb2 as messages
from deviceplugin.proto import deviceplugin_pb2_grpc as services
from deviceplugin.sockets import socket_identity
from simulator.background import background
from tests.deviceplugin.builders import FakeCards, a_card, a_card_list, a_tracker
from tests.fakes.clock import VirtualClock
from tests.support.node import short_folder
from tests.support.waiting import until_true


class FakeStarter:
    """Accepts every start but those of the ids in *refused*."""

    def __init__(self) -> None:
        self.refused: dict[frozenset[str], str] = {}
        self.asked: list[frozenset[str]] = []
        self.allocations: list[frozenset[str]] = []

    def allocate(self, slot_ids: frozenset[str]) -> str:
        self.allocations.append(slot_ids)
        return device_name(slot_ids)

    async def prepare(self, slot_ids: frozenset[str]) -> None:
        self.asked.append(slot_ids)
        if slot_ids in self.refused:
            raise PreStartError(self.refused[slot_ids])


@asynccontextmanager
async def dialled(socket: Path) -> AsyncIterator[services.DevicePluginStub]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield services.DevicePluginStub(channel)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def a_plugin(
    cards: FakeCards, starter: FakeStarter, clock: VirtualClock
) -> AsyncIterator[tuple[services.DevicePluginStub, DevicePlugin]]:
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    plugin = DevicePlugin(tracker, starter)
    with short_folder() as folder:
        server = PluginServer(plugin, folder / "p.sock")
        await server.start()
        async with asyncio.TaskGroup() as group:
            listing = group.create_task(tracker.run())
            try:
                async with dialled(folder / "p.sock") as stub:
                    yield stub, plugin
            finally:
                listing.cancel()
                await server.stop(0)


async def test_kubelet_is_asked_for_prestart_and_for_no_preference() -> None:
    async with a_plugin(FakeCards(a_card()), FakeStarter(), VirtualClock()) as (stub, _):
        options: messages.DevicePluginOptions = await stub.GetDevicePluginOptions(messages.Empty())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetPreferredAllocation(messages.PreferredAllocationRequest())

    assert options.pre_start_required
    assert not options.get_preferred_allocation_available
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_slots_are_listed_at_once_and_again_only_when_they_change() -> None:
    cards, clock = FakeCards(a_card()), VirtualClock()
    listings: list[list[tuple[str, str]]] = []
    async with a_plugin(cards, FakeStarter(), clock) as (stub, plugin):

        async def listen() -> None:
            async for listing in stub.ListAndWatch(messages.Empty()):
                listings.append([(device.ID, device.health) for device in listing.devices])  # noqa: PERF401 - seen while it grows

        async with background(listen()):
            await until_true(lambda: len(listings) == 1, what="the first listing")
            await clock.advance(100)
            cards.answer = a_card_list(a_card(unhealthy="hot"))
            await clock.advance(100)
            await until_true(lambda: len(listings) == 2, what="the listing of the unhealthy card")
            cards.answer = a_card_list(a_card())
            await clock.advance(100)
            await until_true(lambda: len(listings) == 3, what="the listing of the healthy card")
            watchers = plugin.watchers
        await until_true(lambda: plugin.watchers == 0, what="the stream's end is noticed")

    healthy = [("slot-0000", "Healthy"), ("slot-0001", "Healthy")]
    unhealthy = [("slot-0000", "Unhealthy"), ("slot-0001", "Unhealthy")]
    assert listings == [healthy, unhealthy, healthy]
    assert watchers == 1


async def test_allocate_answers_each_container_with_one_cdi_name_and_asks_nobody() -> None:
    starter = FakeStarter()
    request = messages.AllocateRequest(
        container_requests=[
            messages.ContainerAllocateRequest(devices_ids=["s2", "s1"]),
            messages.ContainerAllocateRequest(devices_ids=["s3"]),
        ]
    )
    async with a_plugin(FakeCards(a_card()), starter, VirtualClock()) as (stub, _):
        answer: messages.AllocateResponse = await stub.Allocate(request)

    named = [[device.name for device in part.cdi_devices] for part in answer.container_responses]
    assert named == [
        [f"fracgpu.io/slot={device_name(['s1', 's2'])}"],
        [f"fracgpu.io/slot={device_name(['s3'])}"],
    ]
    assert all(not part.envs for part in answer.container_responses)
    assert starter.asked == []
    assert starter.allocations == [frozenset({"s1", "s2"}), frozenset({"s3"})]


async def test_a_start_is_decided_by_the_ids_alone() -> None:
    starter = FakeStarter()
    async with a_plugin(FakeCards(a_card()), starter, VirtualClock()) as (stub, _):
        await stub.PreStartContainer(messages.PreStartContainerRequest(devices_ids=["b", "a"]))

    assert starter.asked == [frozenset({"a", "b"})]


async def test_a_refusal_reaches_kubelet_with_its_text() -> None:
    starter = FakeStarter()
    starter.refused[frozenset({"a"})] = "container train of ml/x has no cards"
    starter.refused[frozenset({"b"})] = "long " * 1000
    async with a_plugin(FakeCards(a_card()), starter, VirtualClock()) as (stub, _):
        caught = []
        for ids in ("a", "b"):
            request = messages.PreStartContainerRequest(devices_ids=[ids])
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stub.PreStartContainer(request)
            caught.append(refusal.value)

    assert caught[0].code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught[0].details() == "container train of ml/x has no cards"
    assert len(caught[1].details() or "") == 900


async def test_a_server_whose_socket_was_removed_serves_again_on_the_same_path() -> None:
    tracker = a_tracker(FakeCards(a_card()), VirtualClock())
    with short_folder() as folder:
        server = PluginServer(DevicePlugin(tracker, FakeStarter()), folder / "dp" / "p.sock")
        await server.start()
        intact = [server.intact]
        server.socket.unlink()
        intact.append(server.intact)
        await server.start()
        intact.append(server.intact)
        async with dialled(server.socket) as stub:
            await stub.GetDevicePluginOptions(messages.Empty(), timeout=60)
        await server.stop(0)
        left = socket_identity(server.socket)

    assert intact == [True, False, True]
    assert left is None


async def test_a_stopped_server_does_not_come_back() -> None:
    tracker = a_tracker(FakeCards(a_card()), VirtualClock())
    with short_folder() as folder:
        server = PluginServer(DevicePlugin(tracker, FakeStarter()), folder / "p.sock")
        await server.start()
        await server.stop(0)
        await server.start()

        assert not server.intact
        assert list(folder.iterdir()) == []


async def test_an_open_stream_does_not_hold_up_the_stop() -> None:
    tracker = a_tracker(FakeCards(a_card()), VirtualClock())
    plugin = DevicePlugin(tracker, FakeStarter())
    with short_folder() as folder:
        server = PluginServer(plugin, folder / "p.sock")
        await server.start()
        async with dialled(server.socket) as stub:
            stream = stub.ListAndWatch(messages.Empty())
            await stream.read()
            async with asyncio.timeout(60):
                await server.stop(600)
            ended = await stream.read()
            await until_true(lambda: plugin.watchers == 0, what="the stream's end is noticed")

    assert ended is grpc.aio.EOF
