"""Passes the node from one agent to the next, so that an upgrade fails no pod."""

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import structlog

from deviceplugin.dra.server import DraServer
from deviceplugin.kubelet.device_plugin import PluginServer
from deviceplugin.kubelet.registration import Registration, remove_other_sockets
from deviceplugin.node.node_status import NodeStatusUpdater
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock
from process.lifecycle import Server

log = structlog.get_logger()

_POLL_S: Final = 0.05
_LEAVING: Final = "the node agent is stopping; the node takes new pods once the next one serves it"


class NodeLock:
    """Keeps to one acting agent at a time on the node; a ``process.lifecycle.Server``.

    The kernel gives the lock to the next one, also where this one is killed.

    Args:
        server: serves kubelet.
        folder: kubelet's of device plugins, of all agents of the node the same.
        old_folder: the one that agents of claims locked before; nobody did where it is missing.
        clock: paces the waits.
        on_wait: called while another agent acts.
    """

    def __init__(
        self,
        server: Server,
        folder: Path,
        *,
        old_folder: Path,
        clock: Clock,
        on_wait: Callable[[], None],
    ) -> None:
        self._server = server
        self._folder = folder
        self._old_folder = old_folder
        self._clock = clock
        self._on_wait = on_wait
        self._acts = asyncio.Event()
        self._locks: list[int] = []

    @property
    def acts(self) -> bool:
        """Whether this agent is the one that acts on the node."""
        return self._acts.is_set()

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, limit_s: float) -> None:
        await self._server.stop(limit_s)

    async def take(self) -> None:
        """Wait for the other agent's end."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._take(self._folder)
        if self._old_folder.is_dir():
            await self._take(self._old_folder)

    async def _take(self, folder: Path) -> None:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._locks.append(lock)
        if not _locked(lock):
            log.info("another_agent_acts", folder=str(folder))
        while not _locked(lock):
            self._on_wait()
            await self._clock.sleep(_POLL_S)

    def act(self) -> None:
        """Begin to act."""
        self._acts.set()
        log.info("node_taken_over")

    def when_acting(
        self, *parts: Callable[[], Awaitable[None]]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return what runs *parts*, one after the other, once this agent acts on the node."""

        async def run() -> None:
            await self._acts.wait()
            for part in parts:
                await part()

        return run

    def release(self) -> None:
        """Release the locks, so that the next agent acts; nothing of this one may still run."""
        locks, self._locks = self._locks, []
        for lock in locks:
            os.close(lock)


class ClaimsHandover(NodeLock):
    """Keeps to one agent at a time on a node with claims; a ``process.lifecycle.Server``.

    The next agent serves kubelet before this one ends, and writes the node afterwards. So nobody
    has to be warned: kubelet asks the one that registered last.

    Args:
        server: serves the plugin.
        folder: kubelet's of device plugins, which each agent of the node locks.
        clock: paces the waits.
        on_wait: called while another agent acts.
    """

    def __init__(
        self, server: DraServer, folder: Path, *, clock: Clock, on_wait: Callable[[], None]
    ) -> None:
        super().__init__(server, folder, old_folder=server.folder, clock=clock, on_wait=on_wait)
        self._plugin = server

    async def run(self) -> None:
        """Wait for the other agent's end, then keep the plugin served until cancelled."""
        await self.take()
        self._plugin.remove_others()
        self.act()
        await self._plugin.run()


class Handover(NodeLock):
    """Keeps to one agent at a time on the node; a ``process.lifecycle.Server``.

    During an upgrade the next agent is Ready before this one is stopped. It lists cards and pods,
    and waits. This one tells the scheduler that the node takes no new pods, serves on until kubelet
    has admitted those that are bound, and leaves. The kernel gives the lock to the next one, also
    where this one is killed.

    Args:
        server: serves the plugin.
        registration: registers it with kubelet.
        updater: writes on the node whether kubelet knows the agent.
        pods: this node's pods as last seen.
        unasked: whether the runtime has still to ask for a container that kubelet may start.
        old_folder: the one that agents of claims locked before.
        clock: paces the waits.
        settle_s: how long the scheduler has to notice.
        on_wait: called while another agent acts.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        server: PluginServer,
        registration: Registration,
        updater: NodeStatusUpdater,
        pods: Callable[[], Iterable[PodInfo]],
        unasked: Callable[[], bool],
        old_folder: Path,
        clock: Clock,
        settle_s: float,
        on_wait: Callable[[], None],
    ) -> None:
        super().__init__(
            server, server.socket.parent, old_folder=old_folder, clock=clock, on_wait=on_wait
        )
        self._socket = server.socket
        self._registration = registration
        self._updater = updater
        self._pods = pods
        self._unasked = unasked
        self._settle_s = settle_s

    async def run(self) -> None:
        """Wait for the other agent's end, then keep the plugin registered until cancelled."""
        await self.take()
        remove_other_sockets(self._socket)
        self.act()
        await self._registration.run()

    async def stop(self, limit_s: float) -> None:
        """Warn the scheduler, wait for pods on their way, then stop; *limit_s* is for all of it."""
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + limit_s
        try:
            async with asyncio.timeout_at(end_s):
                await self._leave()
        except TimeoutError:
            pods = sorted(pod.record.key for pod in self._not_admitted())
            log.warning("left_before_pods_were_admitted", pods=pods)
        finally:
            await self._server.stop(max(0.0, end_s - now_s()))
            while self.acts and self._unasked() and now_s() < end_s:
                await self._clock.sleep(_POLL_S)

    async def _leave(self) -> None:
        if not self.acts:
            return
        self._registration.end(_LEAVING)
        while not await self._updater.sync():
            await self._clock.sleep(_POLL_S)
        await self._clock.sleep(self._settle_s)
        while self._not_admitted():
            await self._clock.sleep(_POLL_S)

    def _not_admitted(self) -> list[PodInfo]:
        """Return the pods that are bound here, and that kubelet has not acknowledged yet."""
        return [
            pod
            for pod in self._pods()
            if pod.record.live and pod.record.assignment and pod.started_at is None
        ]


def _locked(lock: int) -> bool:
    try:
        # On the folder itself, so that nothing is left behind.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
