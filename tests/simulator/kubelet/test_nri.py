"""The simulated NRI beyond what real runtimes are held to: what they do to odd plugins."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deviceplugin.nri.framing import ConnectionId, FrameReader, Message, MessageType, encode
from deviceplugin.nri.interface import Container, PodSandbox
from deviceplugin.proto import nri_pb2 as wire
from deviceplugin.proto import ttrpc_pb2 as ttrpc
from simulator.kubelet.nri import NriServer
from tests.support.node import short_folder
from tests.support.nri import Recorder, connected
from tests.support.waiting import until_true

POD = PodSandbox(id="sandbox", uid="uid-1", name="train", namespace="team")


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    with short_folder() as made:
        yield made


def a_container(name: str) -> Container:
    return Container(id=f"id-{name}", sandbox_id=POD.id, name=name)


async def test_many_containers_are_listed_in_parts_and_arrive_whole(folder: Path) -> None:
    server = NriServer(folder / "nri.sock", objects_per_message=2)
    server.pods[POD.id] = POD
    server.containers = {name: a_container(name) for name in "abcde"}
    recorder = Recorder(update={"a": {"memory.high": "1"}})

    async with server.serving(), connected(folder / "nri.sock", recorder):
        ((pods, containers),) = recorder.listed
        # The plugin has answered; the runtime may have to read it yet.
        await until_true(lambda: bool(server.unified), what="the runtime applies the update")

    assert [pod.uid for pod in pods] == ["uid-1"]
    assert [container.name for container in containers] == list("abcde")
    assert server.unified == {"a": {"memory.high": "1"}}


async def test_an_event_that_nobody_asked_for_is_no_trouble(folder: Path) -> None:
    server = NriServer(folder / "nri.sock")
    async with server.serving(), connected(folder / "nri.sock", Recorder()) as running:
        await server.send_event(99, POD)
        await server.create_container(POD, a_container("main"))
        assert [status.problem for status in running.statuses][-1] is None
        assert server.plugins == ["10-fracgpu"]


class OddPlugin:
    """A plugin that says what a test wants, to a simulated runtime."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._arrived: list[Message] = []

    async def register(self) -> None:
        request = ttrpc.Request(
            service="nri.pkg.api.v1alpha1.Runtime",
            method="RegisterPlugin",
            payload=wire.RegisterPluginRequest(
                plugin_name="odd", plugin_idx="00"
            ).SerializeToString(),
        )
        body = request.SerializeToString()
        self._writer.write(encode(Message(ConnectionId.TO_RUNTIME, 1, MessageType.REQUEST, body)))
        assert await self.read()  # the response

    async def read(self) -> Message | None:
        """Return the runtime's next message; None once it has closed the connection."""
        while not self._arrived:
            data = await self._reader.read(1 << 16)
            if not data:
                return None
            self._arrived += self._frames.feed(data)
        return self._arrived.pop(0)

    async def answer(self, payload: bytes) -> None:
        """Answer the runtime's next call."""
        request = await self.read()
        assert request is not None
        body = ttrpc.Response(payload=payload).SerializeToString()
        response = Message(ConnectionId.TO_PLUGIN, request.stream, MessageType.RESPONSE, body)
        self._writer.write(encode(response))

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def an_odd_plugin(folder: Path) -> AsyncIterator[OddPlugin]:
    plugin = OddPlugin(*await asyncio.open_unix_connection(folder / "nri.sock"))
    try:
        await plugin.register()
        yield plugin
    finally:
        plugin.close()


async def test_a_plugin_that_wants_events_which_do_not_exist_is_dropped(folder: Path) -> None:
    server = NriServer(folder / "nri.sock")
    async with server.serving(), an_odd_plugin(folder) as plugin:
        await plugin.answer(wire.ConfigureResponse(events=1 << 20).SerializeToString())

        assert await plugin.read() is None
        assert server.plugins == []


async def test_a_plugin_that_does_not_know_lists_in_parts_is_dropped(folder: Path) -> None:
    server = NriServer(folder / "nri.sock", objects_per_message=1)
    server.containers = {name: a_container(name) for name in "ab"}
    async with server.serving(), an_odd_plugin(folder) as plugin:
        await plugin.answer(wire.ConfigureResponse(events=1 << 3).SerializeToString())
        await plugin.answer(b"")

        assert await plugin.read() is None
        assert server.plugins == []


async def test_a_plugin_that_dies_in_a_call_is_left_out(folder: Path) -> None:
    server = NriServer(folder / "nri.sock")
    async with server.serving(), an_odd_plugin(folder) as plugin:
        await plugin.answer(wire.ConfigureResponse(events=1 << 3).SerializeToString())
        await plugin.answer(b"")
        await until_true(lambda: server.plugins == ["00-odd"], what="the plugin is asked")

        async with asyncio.TaskGroup() as group:
            creation = group.create_task(server.create_container(POD, a_container("main")))
            assert await plugin.read()
            plugin.close()

        assert creation.result().container == a_container("main")
        await until_true(lambda: server.plugins == [], what="the plugin is dropped")
