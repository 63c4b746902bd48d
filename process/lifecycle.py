"""How every process starts and, above all, how it stops.

Stop order: readiness false, short wait, stop accepting, finish what is in flight (bounded),
cancel the loops, close the clients.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import structlog

from process.clock import Clock
from process.telemetry import ReadyGate

log = structlog.get_logger()

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_TELEMETRY_STOP_S: Final = 1.0
_T = TypeVar("_T")


class Server(Protocol):
    """Something that accepts requests: HTTP, gRPC, telemetry."""

    async def start(self) -> None:
        """Accept requests once this returns."""
        ...

    async def stop(self, limit_s: float) -> None:
        """Stop accepting, let requests in flight finish within *limit_s* seconds, then close."""
        ...


class EndProcess(Exception):  # noqa: N818 - a verdict, not a mistake
    """A known reason to exit with code 1 and one log line, such as a lost lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The parts of a service while its clients are open."""

    tasks: Mapping[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    """Loops by name; each runs until it is cancelled, and to return early is a failure."""
    servers: Sequence[Server] = ()
    """Started in order after the loops (so a start may wait for an informer), stopped together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A role's parts, not yet started."""

    name: str
    open: Callable[[], AbstractAsyncContextManager[Running]]
    """Opens the clients, yields the parts, and closes the clients when all parts have ended."""
    gate: ReadyGate = field(default_factory=ReadyGate)
    telemetry: Server | None = None
    """Up before everything else and down after it, so that probes are answered all along."""
    drain_wait_s: float = 3.0
    drain_timeout_s: float = 10.0
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop


async def run_until_stopped(
    service: Service,
    clock: Clock,
    *,
    stop: asyncio.Event | None = None,
    known: tuple[type[Exception], ...] = (),
) -> int:
    """Run *service* until SIGTERM, SIGINT or *stop*; return the exit code, 0 or 1.

    Any error ends the service with 1. ``EndProcess`` and the *known* ones, whose text is enough,
    are logged in a line; unexpected ones with a traceback.
    """
    stopping = stop or asyncio.Event()
    failure: Exception | None = None
    try:
        with _signals_set(stopping):
            await _run(service, clock, stopping)
    except Exception as error:  # noqa: BLE001 - crash policy: log it, end, let Kubernetes restart us
        failure = error
    if failure is None:
        log.info("service_stopped", service=service.name)
        return 0
    ends, others = _split(failure, (EndProcess, *known))
    for end in ends:
        log.error("process_ended", service=service.name, reason=str(end))
    if others is not None:
        log.error("process_failed", service=service.name, exc_info=others)
    return 1


async def _run(service: Service, clock: Clock, stopping: asyncio.Event) -> None:
    if service.telemetry is not None:
        await service.telemetry.start()
    try:
        async with AsyncExitStack() as opened:
            opening = opened.enter_async_context(service.open())
            running = await _unless(stopping, opening, name="open")
            if running is None:
                return
            async with asyncio.TaskGroup() as group:
                loops = [
                    group.create_task(_forever(name, loop), name=name)
                    for name, loop in running.tasks.items()
                ]
                await _serve(service, running.servers, clock, stopping)
                for loop in loops:
                    loop.cancel()
    finally:
        service.gate.close()
        if service.telemetry is not None:
            await service.telemetry.stop(_TELEMETRY_STOP_S)


async def _unless(
    stopping: asyncio.Event, work: Coroutine[Any, Any, _T], *, name: str
) -> _T | None:
    """Return the result of *work*, which may wait for others; None if stopped meanwhile."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work, name=name)
        stop = group.create_task(stopping.wait(), name="wait_for_stop")
        await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        stop.cancel()
    return None if working.cancelled() else working.result()


async def _serve(
    service: Service, servers: Sequence[Server], clock: Clock, stopping: asyncio.Event
) -> None:
    try:
        if await _unless(stopping, _start(servers), name="start_servers"):
            service.gate.open()
            log.info("service_started", service=service.name)
            await stopping.wait()
            service.gate.close()
            log.info("service_stopping", service=service.name, drain_wait_s=service.drain_wait_s)
            await clock.sleep(service.drain_wait_s)
    finally:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.stop(service.drain_timeout_s), name="stop_server")


async def _start(servers: Sequence[Server]) -> bool:
    for server in servers:
        await server.start()
    return True


async def _forever(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    await loop()
    raise RuntimeError(f"task {name!r} returned; a service's task runs until it is cancelled")


@contextmanager
def _signals_set(stopping: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _split(
    error: Exception, known: tuple[type[Exception], ...]
) -> tuple[list[Exception], Exception | None]:
    if isinstance(error, known):
        return [error], None
    if not isinstance(error, ExceptionGroup):
        return [], error
    ends, others = error.split(known)
    return (list(_leaves(ends)) if ends is not None else []), others


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
