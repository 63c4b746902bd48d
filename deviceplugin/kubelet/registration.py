"""Registers with kubelet, and again whenever kubelet has restarted or dropped us."""

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import structlog

from deviceplugin.kubelet.device_plugin import (
    API_VERSION,
    DevicePlugin,
    PluginServer,
    plugin_options,
)
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.proto import deviceplugin_pb2 as messages
from deviceplugin.proto import deviceplugin_pb2_grpc as services
from deviceplugin.sockets import SocketError, socket_identity
from fracgpu import names
from process.clock import Clock, wait_at_most

log = structlog.get_logger()

KUBELET_SOCKET: Final = "kubelet.sock"
_PREFIX: Final = "fracgpu-"

_REGISTER_TIMEOUT_S: Final = 5.0
# Kubelet connects within a second of a registration; without a stream for this long it has dropped
# us, even if its socket is the same.
_DROPPED_AFTER_S: Final = 10.0
# Before the next attempt when kubelet has ended its stream, so that the two do not race.
_PAUSE_S: Final = 0.05


def new_socket(folder: Path) -> Path:
    """Return the path of a socket that no other life of the agent uses.

    kubelet calls the plugin by this path, so the next agent can listen before this one has ended.
    """
    return folder / f"{_PREFIX}{secrets.token_hex(4)}.sock"


def remove_other_sockets(keep: Path) -> None:
    """Remove what agents that were killed have left beside the socket *keep*."""
    for path in keep.parent.glob(f"{_PREFIX}*.sock"):
        if path != keep:
            path.unlink(missing_ok=True)


class Registration:
    """Keeps us registered with kubelet.

    The sockets are polled, not watched: a folder that is mounted into a container can be replaced
    without any inotify event.

    Args:
        folder: kubelet's device-plugins folder.
        server: our server, with its socket in that folder.
        plugin: knows whether kubelet still watches.
        blocked: why there is nothing to register yet, or None.
        clock: paces the polling.
        poll_s: time between two checks.
        metrics: counts registrations.
        on_change: called when :attr:`problem` is another one.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        folder: Path,
        server: PluginServer,
        plugin: DevicePlugin,
        blocked: Callable[[], str | None],
        clock: Clock,
        poll_s: float,
        metrics: DevicePluginMetrics,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._kubelet_socket = folder / KUBELET_SOCKET
        self._server = server
        self._plugin = plugin
        self._blocked = blocked
        self._clock = clock
        self._poll_s = poll_s
        self._metrics = metrics
        self._on_change = on_change
        self._registered_with: tuple[int, int] | None = None
        self._watched = False
        self._watched_at_s = 0.0
        self._ending = ""
        self._problem: str | None = "not registered with kubelet yet"

    @property
    def problem(self) -> str | None:
        """Why kubelet does not have our slots, or None."""
        unwatched = None if self._plugin.watchers else "kubelet does not watch the slots yet"
        return self._ending or self._problem or unwatched

    async def run(self) -> None:
        """Check the sockets until cancelled, and at once when kubelet ends its stream."""
        changed, reported = self._plugin.watch_changed, self.problem
        while True:
            changed.clear()
            await self.ensure_registered()
            if self.problem != reported:
                reported = self.problem
                self._on_change()
            if await wait_at_most(self._clock, changed, limit_s=self._poll_s):
                await self._clock.sleep(_PAUSE_S)

    def end(self, reason: str) -> None:
        """Register no more, for *reason*; what is registered stays so."""
        self._ending = reason

    async def ensure_registered(self) -> None:
        """Register if kubelet does not know our current server."""
        if self._ending:
            return
        kubelet = socket_identity(self._kubelet_socket)
        missing = f"{self._kubelet_socket} does not exist" if kubelet is None else None
        reason = missing or self._blocked()
        if reason is not None:
            self._registered_with = None
            self._set_problem(reason)
        elif not self._known_to(kubelet):
            await self._register(kubelet)

    def _known_to(self, kubelet: tuple[int, int] | None) -> bool:
        now_s = self._clock.monotonic()
        if self._plugin.watchers:
            self._watched, self._watched_at_s = True, now_s
            dropped = False
        else:
            # kubelet 1.36 takes the end of another agent's stream for that of the newest one
            # (kubernetes PR 135437).
            dropped = self._watched or now_s - self._watched_at_s > _DROPPED_AFTER_S
        return kubelet == self._registered_with and self._server.intact and not dropped

    async def _register(self, kubelet: tuple[int, int] | None) -> None:
        try:
            await self._server.start()
            await self._call()
        except SocketError as error:
            self._failed(str(error))
        except grpc.aio.AioRpcError as error:
            self._failed(f"kubelet answered {error.code().name}: {error.details()}")
        except TimeoutError:
            self._failed(f"kubelet gave no answer in {_REGISTER_TIMEOUT_S:g} s")
        else:
            self._registered_with, self._watched = kubelet, False
            self._watched_at_s = self._clock.monotonic()
            self._problem = None
            self._metrics.registered("registered")
            log.info("plugin_registered", kubelet=str(self._kubelet_socket))

    async def _call(self) -> None:
        request = messages.RegisterRequest(
            version=API_VERSION,
            endpoint=self._server.socket.name,
            resource_name=names.GPU_SLOT,
            options=plugin_options(),
        )
        # Without it, gRPC keeps backing off from a socket that was absent, on new channels too.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with (
            asyncio.timeout(_REGISTER_TIMEOUT_S),
            grpc.aio.insecure_channel(f"unix:{self._kubelet_socket}", options=options) as channel,
        ):
            stub = services.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(request)

    def _failed(self, reason: str) -> None:
        self._registered_with = None
        self._metrics.registered("failed")
        self._set_problem(reason)

    def _set_problem(self, reason: str) -> None:
        if reason != self._problem:
            log.warning("plugin_not_registered", reason=reason)
        self._problem = reason
