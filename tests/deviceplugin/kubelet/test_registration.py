"""The agent registers again whatever happens to kubelet's socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.kubelet.device_plugin import DevicePlugin, PluginServer
from deviceplugin.kubelet.registration import (
    KUBELET_SOCKET,
    Registration,
    new_socket,
    remove_other_sockets,
)
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.proto import deviceplugin_pb2 as messages
from deviceplugin.proto import deviceplugin_pb2_grpc as services
from simulator.background import background
from tests.deviceplugin.builders import FakeCards, a_card, a_tracker
from tests.deviceplugin.kubelet.test_device_plugin import FakeStarter
from tests.fakes.clock import VirtualClock
from tests.support.node import short_folder
from tests.support.waiting import until_true


class FakeKubelet(services.RegistrationServicer):
    """Accepts registrations, or rejects them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: grpc.aio.Server | None = None
        self.requests: list[messages.RegisterRequest] = []
        self.refusing = False

    async def Register(  # noqa: N802 - the protocol's name
        self,
        request: messages.RegisterRequest,
        context: grpc.aio.ServicerContext[messages.RegisterRequest, messages.Empty],
    ) -> messages.Empty:
        self.requests.append(request)
        if self.refusing:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not today")
        return messages.Empty()

    async def start(self) -> None:
        """Start as kubelet does: empty the folder first."""
        for file in self._folder.iterdir():
            file.unlink()
        self._server = grpc.aio.server()
        services.add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self._folder / KUBELET_SOCKET}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None


@dataclass(slots=True)
class Rig:
    registration: Registration
    kubelet: FakeKubelet
    server: PluginServer
    plugin: DevicePlugin
    clock: VirtualClock
    registry: CollectorRegistry
    blocked: list[str]

    @property
    def count(self) -> int:
        return len(self.kubelet.requests)


@asynccontextmanager
async def a_rig() -> AsyncIterator[Rig]:
    clock, registry = VirtualClock(), CollectorRegistry()
    tracker = a_tracker(FakeCards(a_card()), clock)
    await tracker.refresh()
    plugin = DevicePlugin(tracker, FakeStarter())
    blocked: list[str] = []
    with short_folder() as folder:
        server = PluginServer(plugin, new_socket(folder))
        registration = Registration(
            folder=folder,
            server=server,
            plugin=plugin,
            blocked=lambda: blocked[0] if blocked else None,
            clock=clock,
            poll_s=1.0,
            metrics=DevicePluginMetrics(registry),
        )
        kubelet = FakeKubelet(folder)
        try:
            yield Rig(registration, kubelet, server, plugin, clock, registry, blocked)
        finally:
            await server.stop(0)
            await kubelet.stop()


@asynccontextmanager
async def a_stream(rig: Rig) -> AsyncIterator[None]:
    """Watch the slots as kubelet does, and wait until the plugin knows it."""
    async with grpc.aio.insecure_channel(f"unix:{rig.server.socket}") as channel:
        stub = services.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        stream = stub.ListAndWatch(messages.Empty())
        await stream.read()
        await until_true(lambda: rig.plugin.watchers == 1, what="kubelet watches")
        yield
        stream.cancel()
    await until_true(lambda: rig.plugin.watchers == 0, what="the stream's end is noticed")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with a_rig() as rig:
        yield rig


async def test_registering_names_the_resource_the_socket_and_prestart(rig: Rig) -> None:
    await rig.kubelet.start()

    await rig.registration.ensure_registered()

    (request,) = rig.kubelet.requests
    assert (request.version, request.endpoint) == ("v1beta1", rig.server.socket.name)
    assert request.resource_name == "fracgpu.io/gpu-slot"
    assert request.options.pre_start_required
    problems = [rig.registration.problem]
    async with a_stream(rig):
        problems.append(rig.registration.problem)
    assert problems == ["kubelet does not watch the slots yet", None]
    assert rig.server.intact


async def test_without_kubelets_socket_nothing_is_served_and_the_reason_is_told(rig: Rig) -> None:
    await rig.registration.ensure_registered()

    assert rig.registration.problem is not None
    assert "kubelet.sock does not exist" in rig.registration.problem
    assert not rig.server.intact


async def test_a_node_without_cards_does_not_register(rig: Rig) -> None:
    await rig.kubelet.start()
    rig.blocked.append("no driver")

    await rig.registration.ensure_registered()
    blocked = (rig.count, rig.registration.problem)
    rig.blocked.clear()
    await rig.registration.ensure_registered()

    assert blocked == (0, "no driver")
    assert rig.count == 1


async def test_a_restarted_kubelet_gets_a_fresh_socket_and_a_new_registration(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.registration.ensure_registered()
    await rig.kubelet.stop()
    await rig.registration.ensure_registered()
    while_down = rig.registration.problem
    await rig.kubelet.start()  # which removes our socket as well

    await rig.registration.ensure_registered()

    assert while_down is not None
    assert rig.count == 2
    assert rig.server.intact


async def test_a_socket_that_somebody_removed_is_put_back(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.registration.ensure_registered()
    rig.server.socket.unlink()

    await rig.registration.ensure_registered()

    assert rig.count == 2
    assert rig.server.intact


async def test_a_kubelet_that_no_longer_listens_is_told_again(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.registration.ensure_registered()
    await rig.clock.advance(10.0)
    await rig.registration.ensure_registered()
    early = rig.count
    await rig.clock.advance(0.1)

    await rig.registration.ensure_registered()

    assert (early, rig.count) == (1, 2)


async def test_a_kubelet_that_listens_is_left_alone(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.registration.ensure_registered()
    async with a_stream(rig):
        for _ in range(3):
            await rig.clock.advance(30)
            await rig.registration.ensure_registered()

        assert rig.count == 1


async def test_a_kubelet_that_ends_its_stream_is_told_again_without_a_wait(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.registration.ensure_registered()
    async with a_stream(rig):
        await rig.registration.ensure_registered()

    await rig.registration.ensure_registered()

    assert rig.count == 2


async def test_an_agent_that_leaves_registers_no_more_and_says_why(rig: Rig) -> None:
    await rig.kubelet.start()
    rig.registration.end("it is stopping")

    await rig.registration.ensure_registered()

    assert (rig.count, rig.registration.problem) == (0, "it is stopping")


def test_each_life_has_a_socket_of_its_own_and_removes_those_of_the_dead(tmp_path: Path) -> None:
    first, second = new_socket(tmp_path), new_socket(tmp_path)
    others = [tmp_path / "kubelet.sock", tmp_path / "fracgpu.json"]
    for path in (first, second, *others):
        path.touch()

    remove_other_sockets(second)

    assert first != second
    assert set(tmp_path.iterdir()) == {second, *others}


async def test_a_refusal_is_told_counted_and_tried_again(rig: Rig) -> None:
    await rig.kubelet.start()
    rig.kubelet.refusing = True
    await rig.registration.ensure_registered()
    refused = rig.registration.problem
    rig.kubelet.refusing = False

    await rig.registration.ensure_registered()

    assert refused == "kubelet answered INVALID_ARGUMENT: not today"
    assert rig.registration.problem == "kubelet does not watch the slots yet"
    counted = [
        rig.registry.get_sample_value(
            "fracgpu_deviceplugin_registrations_total", {"outcome": outcome}
        )
        for outcome in ("failed", "registered")
    ]
    assert counted == [1, 1]


async def test_the_loop_looks_at_its_own_pace() -> None:
    async with a_rig() as rig, background(rig.registration.run()):
        await rig.clock.wait_for_sleepers(1)
        early = rig.registration.problem
        await rig.kubelet.start()
        for _ in range(3):
            await rig.clock.advance(1.0)
            await rig.clock.wait_for_sleepers(1)

        assert early is not None
        assert rig.count == 1
