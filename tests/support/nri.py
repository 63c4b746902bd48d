"""A plugin that records what a runtime asks, and answers what a test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from deviceplugin.nri.interface import (
    Adjustment,
    Connection,
    Container,
    Handler,
    PodSandbox,
    Status,
    Unified,
)
from deviceplugin.nri.plugin import NriPlugin
from process.clock import Clock, SystemClock
from tests.support.waiting import until_true


class StartFailed(Exception):  # noqa: N818 - what a test waits for
    """The runtime does not create or start a container; the text is what kubelet would show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePod:
    """A sandbox in a runtime."""

    id: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a container got."""

    env: Mapping[str, str]
    mounts: Mapping[str, str]
    """Sources by destination."""
    devices: frozenset[str]
    unified: Mapping[str, str]
    hooks: tuple[str, ...]
    """The programs of the hooks at createRuntime."""


class AnyRuntime(Protocol):
    """A runtime with NRI as its contract's tests use it, real or simulated."""

    socket: Path
    root: Path
    """A folder for files that containers mount."""

    def write_cdi_spec(self, device: str, *, mounts: Mapping[str, Path]) -> None:
        """Let the CDI device ``fracgpu.io/slot=<device>`` mount files, which need not exist."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Kill the runtime; its containers live on."""
        ...

    async def run_pod(self, name: str, *, uid: str, annotations: Mapping[str, str]) -> MadePod: ...

    async def create(
        self,
        pod: MadePod,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
        cdi_devices: Sequence[str] = (),
    ) -> str:
        """Return the container's id.

        Raises:
            StartFailed: it was not created.
        """
        ...

    async def start_container(self, container: str) -> None:
        """Start a created container.

        Raises:
            StartFailed: it does not run.
        """
        ...

    async def remove(self, container: str) -> None: ...

    def sight(self, container: str) -> Sight: ...

    def running(self, container: str) -> bool: ...


Answer = Callable[[PodSandbox, Container], Adjustment]


def nothing(_pod: PodSandbox, _container: Container) -> Adjustment:
    """Leave a container as it is."""
    return Adjustment()


@dataclass(slots=True)
class Recorder(Handler):
    """Records all calls; *on_create* and *on_start* answer and may raise."""

    on_create: Answer = nothing
    on_start: Answer = nothing
    update: Unified = field(default_factory=dict)
    """What to set when the runtime lists its containers."""
    listed: list[tuple[Sequence[PodSandbox], Sequence[Container]]] = field(default_factory=list)
    created: list[tuple[PodSandbox, Container]] = field(default_factory=list)
    started: list[tuple[PodSandbox, Container]] = field(default_factory=list)
    stopped: list[tuple[PodSandbox, Container]] = field(default_factory=list)
    removed: list[tuple[PodSandbox, Container]] = field(default_factory=list)

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> Unified:
        self.listed.append((pods, containers))
        return self.update

    def create_container(self, pod: PodSandbox, container: Container) -> Adjustment:
        self.created.append((pod, container))
        return self.on_create(pod, container)

    def start_container(self, pod: PodSandbox, container: Container) -> None:
        self.started.append((pod, container))
        self.on_start(pod, container)

    def stop_container(self, pod: PodSandbox, container: Container) -> None:
        self.stopped.append((pod, container))

    def remove_container(self, pod: PodSandbox, container: Container) -> None:
        self.removed.append((pod, container))


@dataclass(slots=True, kw_only=True)
class RunningPlugin:
    """A plugin that runs, and all statuses that it reported."""

    plugin: NriPlugin
    statuses: list[Status]
    task: asyncio.Task[None]

    async def wait(self, connection: Connection) -> Status:
        """Return the present status, or the first from now on, that is *connection*."""
        return await self.wait_for(lambda status: status.connection is connection)

    async def wait_for(self, wanted: Callable[[Status], bool]) -> Status:
        """Return the present status, or the first from now on, that is *wanted*."""
        before, present = len(self.statuses), self.plugin.status

        def found() -> list[Status]:
            return [one for one in (present, *self.statuses[before:]) if wanted(one)]

        await until_true(lambda: bool(found()), what=f"the plugin's status, now {present}")
        return found()[0]

    async def wait_gone(self) -> None:
        """Wait until the runtime does not ask the plugin any more."""
        await until_true(
            lambda: self.plugin.status.connection is not Connection.CONNECTED,
            what="the plugin notices that it is not asked any more",
        )


@asynccontextmanager
async def a_plugin(
    socket: Path,
    handler: Handler,
    *,
    name: str = "fracgpu",
    index: str = "10",
    stall_s: float = 15.0,
    clock: Clock | None = None,
) -> AsyncIterator[RunningPlugin]:
    """Run a plugin inside the context; a mistake of *handler* ends it with an exception group."""
    statuses: list[Status] = []
    plugin = NriPlugin(
        socket,
        handler,
        clock or SystemClock(),
        name=name,
        index=index,
        stall_s=stall_s,
        on_status=statuses.append,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(plugin.run(), name="nri")
        yield RunningPlugin(plugin=plugin, statuses=statuses, task=task)
        task.cancel()


@asynccontextmanager
async def connected(socket: Path, handler: Handler, **options: Any) -> AsyncIterator[RunningPlugin]:
    """Run a plugin that the runtime asks from the beginning of the context on."""
    async with a_plugin(socket, handler, **options) as running:
        await running.wait(Connection.CONNECTED)
        yield running
