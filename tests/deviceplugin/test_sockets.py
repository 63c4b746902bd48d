"""Sockets that are told apart, and calls of which a mistake of ours is answered and then raised."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.dra.server import DraServer
from deviceplugin.kubelet.device_plugin import DevicePlugin, PluginServer
from deviceplugin.kubelet.pre_start import PreStartError
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.proto import deviceplugin_pb2 as slots
from deviceplugin.proto import dra_pb2 as claims
from deviceplugin.proto import pluginregistration_pb2 as registration
from deviceplugin.sockets import SocketError, SocketServer, check_socket_path, socket_identity
from process.clock import SystemClock
from tests.deviceplugin.builders import FakeCards, a_card, a_tracker
from tests.support.node import short_folder

MISTAKE = KeyError("GPU-a")
Call = Callable[[bytes], Awaitable[Any]]


def test_a_file_made_anew_is_another_one_and_none_is_none(tmp_path: Path) -> None:
    file = tmp_path / "x.sock"
    assert socket_identity(file) is None

    file.touch()
    first = socket_identity(file)
    assert first == socket_identity(file)

    (tmp_path / "kept").hardlink_to(file)  # so that its inode is not given to the next one
    file.unlink()
    file.touch()
    assert socket_identity(file) not in (None, first)


def test_a_path_too_long_for_a_socket_is_refused_with_its_length() -> None:
    check_socket_path(Path("/" + "a" * 106))

    with pytest.raises(SocketError, match="has 108 bytes; want at most 107"):
        check_socket_path(Path("/" + "a" * 107))


class Raises:
    """Decides nothing: whatever it is asked, it raises *error*."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def allocate(self, _: frozenset[str]) -> str:
        raise self._error

    async def prepare(self, _: Any) -> Any:
        raise self._error

    async def unprepare(self, _: Any) -> None:
        raise self._error

    def changed(self) -> None:
        raise self._error


@asynccontextmanager
async def served(error: Exception, path: str) -> AsyncIterator[tuple[SocketServer, Call]]:
    """Serve the call *path* of kubelet, which decides nothing but raises *error*."""
    clock, raises = SystemClock(), Raises(error)
    tracker = a_tracker(FakeCards(a_card()), clock)
    tracker.slots = raises.changed  # type: ignore[assignment]
    with short_folder() as root:
        server: PluginServer | DraServer = PluginServer(
            DevicePlugin(tracker, raises), root / "plugin-reg.sock"
        )
        if not path.startswith("/v1beta1."):
            server = DraServer(
                claims=raises,
                plugins_dir=root,
                registry_dir=root,
                clock=clock,
                poll_s=60.0,
                metrics=DevicePluginMetrics(CollectorRegistry()),
                on_change=raises.changed,
            )
        await server.start()
        (socket,) = root.glob("*-reg.sock")
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            try:
                call: Any = channel.unary_unary(path)
                yield server._sockets, call
            finally:
                await server.stop(0)


def of_one_claim(kind: Any) -> bytes:
    body: bytes = kind(claims=[claims.Claim(namespace="n", name="c", uid="u")]).SerializeToString()
    return body


ALLOCATE = slots.AllocateRequest(container_requests=[slots.ContainerAllocateRequest()])
CALLS = {
    "/v1beta1.DevicePlugin/ListAndWatch": b"",
    "/v1beta1.DevicePlugin/Allocate": ALLOCATE.SerializeToString(),
    "/v1beta1.DevicePlugin/PreStartContainer": b"",
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources": of_one_claim(
        claims.NodePrepareResourcesRequest
    ),
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources": of_one_claim(
        claims.NodeUnprepareResourcesRequest
    ),
    "/pluginregistration.Registration/NotifyRegistrationStatus": registration.RegistrationStatus(
        plugin_registered=True
    ).SerializeToString(),
}


@pytest.mark.parametrize("path", CALLS)
async def test_a_mistake_in_a_call_is_answered_and_then_ends_the_process(path: str) -> None:
    async with served(MISTAKE, path) as (sockets, call), asyncio.timeout(60):
        with pytest.raises(grpc.aio.AioRpcError) as answered:
            await call(CALLS[path])
        assert answered.value.code() is grpc.StatusCode.UNKNOWN

        with pytest.RaisesGroup(KeyError, allow_unwrapped=True, flatten_subgroups=True):
            await sockets.raise_mistake()


@pytest.mark.parametrize(
    ("error", "path", "body"),
    [
        (PreStartError("no card"), "/v1beta1.DevicePlugin/PreStartContainer", b""),
        (MISTAKE, "/v1beta1.DevicePlugin/PreStartContainer", b"no message"),
        (MISTAKE, "/v1beta1.DevicePlugin/Another", b""),
    ],
    ids=["a refusal", "no message", "no method"],
)
async def test_a_refusal_and_a_callers_fault_end_nothing(
    error: Exception, path: str, body: bytes
) -> None:
    async with served(error, path) as (sockets, call), asyncio.timeout(60):
        with pytest.raises(grpc.aio.AioRpcError):
            await call(body)

        assert sockets._mistakes.made.empty()
