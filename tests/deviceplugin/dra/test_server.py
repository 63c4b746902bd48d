"""Kubelet finds the plugin, asks about claims, and notices its end: over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.dra.server import ClaimName, Claims, DraServer, PreparedDevice, PrepareError
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.proto import dra_pb2 as messages
from deviceplugin.proto import dra_pb2_grpc as services
from deviceplugin.proto import pluginregistration_pb2 as registration
from deviceplugin.proto import pluginregistration_pb2_grpc as registration_services
from deviceplugin.sockets import SocketError
from simulator.background import background
from tests.fakes.clock import VirtualClock
from tests.support.node import short_folder
from tests.support.waiting import until, until_true


class FakeClaims(Claims):
    """Prepares each claim with one card, but for those of the name *refused*."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.unprepared: list[str] = []
        self.decided = asyncio.Event()
        self.decided.set()

    async def prepare(self, claim: ClaimName) -> Sequence[PreparedDevice]:
        self.asked.append(claim.uid)
        await self.decided.wait()
        if claim.name == "refused":
            raise PrepareError("no card " + "for you " * 200)
        cdi = (f"fracgpu.io/slot={claim.uid}_c",)
        return [PreparedDevice(request="c", pool="gpu-1", device="gpu-a", cdi=cdi)]

    async def unprepare(self, claim: ClaimName) -> None:
        if claim.name == "refused":
            raise PrepareError("it stays")
        self.unprepared.append(claim.uid)


@dataclass(slots=True, kw_only=True)
class Rig:
    root: Path
    server: DraServer
    claims: FakeClaims
    clock: VirtualClock
    changes: list[str | None] = field(default_factory=list)

    def registered(self) -> list[Path]:
        return sorted((self.root / "registry").glob("*.sock"))


def a_rig(root: Path) -> Rig:
    claims, clock = FakeClaims(), VirtualClock()
    changes: list[str | None] = []
    server = DraServer(
        claims=claims,
        plugins_dir=root / "plugins",
        registry_dir=root / "registry",
        clock=clock,
        poll_s=1.0,
        metrics=DevicePluginMetrics(CollectorRegistry()),
        on_change=lambda: changes.append(server.problem),
    )
    return Rig(root=root, server=server, claims=claims, clock=clock, changes=changes)


@asynccontextmanager
async def serving() -> AsyncIterator[Rig]:
    with short_folder() as root:
        rig = a_rig(root)
        await rig.server.start()
        try:
            yield rig
        finally:
            await rig.server.stop(0)


async def info_at(socket: Path) -> registration.PluginInfo:
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = registration_services.RegistrationStub(channel)  # type: ignore[no-untyped-call]
        found: registration.PluginInfo = await stub.GetInfo(registration.InfoRequest())
        return found


async def notify(socket: Path, *, registered: bool, error: str = "") -> None:
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = registration_services.RegistrationStub(channel)  # type: ignore[no-untyped-call]
        status = registration.RegistrationStatus(plugin_registered=registered, error=error)
        await stub.NotifyRegistrationStatus(status)


def claim(name: str) -> messages.Claim:
    return messages.Claim(namespace="ml", name=name, uid=f"uid-{name}")


async def test_kubelet_learns_the_driver_and_the_socket_on_which_it_answers() -> None:
    async with serving() as rig:
        (socket,) = rig.registered()

        found = await info_at(socket)

        assert (found.type, found.name) == ("DRAPlugin", "gpu.fracgpu.io")
        assert list(found.supported_versions) == ["v1.DRAPlugin"]
        assert found.endpoint in map(str, rig.server.folder.glob("*.sock"))
        assert Path(found.endpoint).parent == rig.server.folder


async def test_the_node_is_not_registered_until_kubelet_says_so() -> None:
    async with serving() as rig:
        (socket,) = rig.registered()
        before = rig.server.problem

        await notify(socket, registered=False, error="no such version")
        await notify(socket, registered=True)
        await notify(socket, registered=True)

        assert before == "not registered with kubelet yet"
        assert rig.changes == ["no such version", None]


async def test_each_claim_gets_an_answer_of_its_own() -> None:
    async with serving() as rig:
        (socket,) = rig.registered()
        endpoint = (await info_at(socket)).endpoint
        async with grpc.aio.insecure_channel(f"unix:{endpoint}") as channel:
            stub = services.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            both = [claim("good"), claim("refused")]
            prepared = await stub.NodePrepareResources(
                messages.NodePrepareResourcesRequest(claims=both)
            )
            returned = await stub.NodeUnprepareResources(
                messages.NodeUnprepareResourcesRequest(claims=both)
            )

    good, refused = prepared.claims["uid-good"], prepared.claims["uid-refused"]
    assert good.error == ""
    (device,) = good.devices
    assert list(device.request_names) == ["c"]
    assert (device.pool_name, device.device_name) == ("gpu-1", "gpu-a")
    assert list(device.cdi_device_ids) == ["fracgpu.io/slot=uid-good_c"]
    assert refused.error.startswith("no card for you")
    assert len(refused.error) == 900
    assert not refused.devices
    assert (returned.claims["uid-good"].error, rig.claims.unprepared) == ("", ["uid-good"])
    assert returned.claims["uid-refused"].error == "it stays"


async def test_a_socket_that_somebody_removed_is_made_again() -> None:
    async with serving() as rig:
        (socket,) = rig.registered()
        socket.unlink()

        await rig.server.start()

        assert (await info_at(socket)).name == "gpu.fracgpu.io"


async def test_the_next_agent_serves_beside_this_one_and_removes_what_dead_ones_left() -> None:
    async with serving() as rig:
        following = a_rig(rig.root)
        await following.server.start()
        assert len(rig.registered()) == 2

        await rig.server.stop(0)
        (socket,) = rig.registered()
        assert (await info_at(socket)).name == "gpu.fracgpu.io"

        dead = rig.root / "registry" / "gpu.fracgpu.io-00000000-reg.sock"
        other = rig.root / "registry" / "csi.example.com-reg.sock"
        for path in (dead, other):
            path.touch()
        following.server.remove_others()
        assert rig.registered() == sorted([other, socket])
        await following.server.stop(0)
        assert rig.registered() == [other]


async def test_an_agent_that_ends_answers_first_what_kubelet_waits_for() -> None:
    async with serving() as rig, asyncio.TaskGroup() as group:
        (socket,) = rig.registered()
        endpoint = (await info_at(socket)).endpoint
        async with grpc.aio.insecure_channel(f"unix:{endpoint}") as channel:
            stub = services.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            rig.claims.decided.clear()
            request = messages.NodePrepareResourcesRequest(claims=[claim("good")])
            call = stub.NodePrepareResources(request)
            await until_true(lambda: bool(rig.claims.asked), what="the call has arrived")

            ending = group.create_task(rig.server.stop(60), name="stop")
            await rig.clock.wait_for_sleepers(1)
            assert socket.exists()
            rig.claims.decided.set()
            answer = await call

            async def ended() -> bool:
                await rig.clock.advance(1)
                return ending.done()

            await until(ended, what="the server has ended")

        assert answer.claims["uid-good"].devices
        assert rig.registered() == []


async def test_a_path_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    rig = a_rig(tmp_path / ("long" * 30))

    with pytest.raises(SocketError, match="want at most 107"):
        await rig.server.start()


async def test_a_socket_is_looked_after_until_the_end() -> None:
    async with serving() as rig, background(rig.server.run()):
        (socket,) = rig.registered()
        await rig.clock.wait_for_sleepers(1)
        socket.unlink()
        await rig.clock.advance(1)
        await until_true(socket.exists, what="the socket is there again")
