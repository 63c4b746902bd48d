"""A plugin that records what a runtime asks, and answers what a test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

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

    def remove_container(self, pod: PodSandbox, container: Container) -> None:
        self.removed.append((pod, container))


@dataclass(slots=True, kw_only=True)
class RunningPlugin:
    """A plugin that runs, and all statuses that it reported."""

    plugin: NriPlugin
    statuses: list[Status]
    task: asyncio.Task[None]

    async def wait(self, connection: Connection, *, limit_s: float = 20.0) -> Status:
        """Return the first status with *connection* that is reported from now on, or the present."""
        before = len(self.statuses)
        if self.plugin.status.connection is connection:
            return self.plugin.status

        def reported() -> bool:
            return any(status.connection is connection for status in self.statuses[before:])

        await until_true(reported, what=f"the plugin is {connection.value}", limit_s=limit_s)
        return next(one for one in self.statuses[before:] if one.connection is connection)


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
async def connected(
    socket: Path, handler: Handler, *, name: str = "fracgpu"
) -> AsyncIterator[RunningPlugin]:
    """Run a plugin that the runtime asks from the beginning of the context on."""
    async with a_plugin(socket, handler, name=name) as running:
        await running.wait(Connection.CONNECTED)
        yield running
