import asyncio
import io
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from process import logs
from process.lifecycle import EndProcess, Running, Server, Service, run_until_stopped
from process.telemetry import ReadyGate
from tests.fakes.clock import VirtualClock

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    out = io.StringIO()
    logs.configure(json=True, stream=out)
    yield out
    structlog.reset_defaults()


class Diary(list[str]):
    """The events in order, each with the readiness at that moment."""

    def __init__(self, clock: VirtualClock, gate: ReadyGate) -> None:
        super().__init__()
        self._clock, self._gate = clock, gate

    def note(self, what: str) -> None:
        ready = "ready" if self._gate.readiness().ready else "not ready"
        self.append(f"{self._clock.monotonic():g} s, {ready}: {what}")


class NotedServer(Server):
    """Writes its start and stop into the diary."""

    def __init__(self, name: str, diary: Diary, *, starts: asyncio.Event | None = None) -> None:
        self._name, self._diary, self._starts = name, diary, starts

    async def start(self) -> None:
        if self._starts is not None:
            await self._starts.wait()
        self._diary.note(f"{self._name} accepts")

    async def stop(self, limit_s: float) -> None:
        self._diary.note(f"{self._name} stops within {limit_s:g} s")


class Harness:
    """A service whose parts write a diary, on a virtual clock."""

    def __init__(self, *, starts: asyncio.Event | None = None) -> None:
        self.clock, self.gate, self.stop = VirtualClock(), ReadyGate(), asyncio.Event()
        self.diary = Diary(self.clock, self.gate)
        self.failure: Exception | None = None
        self.fail = asyncio.Event()
        self.service = Service(
            name="noted",
            open=self._open,
            gate=self.gate,
            telemetry=NotedServer("telemetry", self.diary),
            drain_wait_s=3,
            drain_timeout_s=7,
        )
        self._server = NotedServer("server", self.diary, starts=starts)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Running]:
        self.diary.note("clients open")
        try:
            yield Running(tasks={"loop": self._loop}, servers=[self._server])
        finally:
            self.diary.note("clients close")

    async def _loop(self) -> None:
        self.diary.note("loop runs")
        try:
            await self.fail.wait()
            if self.failure is not None:
                raise self.failure
        finally:
            self.diary.note("loop ends")

    async def run(self) -> int:
        return await run_until_stopped(self.service, self.clock, stop=self.stop)


async def test_a_stop_follows_the_order_that_drops_nothing(lines: io.StringIO) -> None:
    harness = Harness()

    async with asyncio.TaskGroup() as group:
        run = group.create_task(harness.run())
        await harness.clock.advance(10)
        harness.stop.set()
        await harness.clock.advance(2.9)
        assert harness.diary[-1] == "0 s, not ready: server accepts"
        await harness.clock.advance(1)

    assert run.result() == 0
    assert harness.diary == [
        "0 s, not ready: telemetry accepts",
        "0 s, not ready: clients open",
        "0 s, not ready: loop runs",
        "0 s, not ready: server accepts",
        "13 s, not ready: server stops within 7 s",
        "13 s, not ready: loop ends",
        "13 s, not ready: clients close",
        "13 s, not ready: telemetry stops within 1 s",
    ]


async def test_a_service_is_ready_from_its_last_start_to_the_stop_signal(
    lines: io.StringIO,
) -> None:
    harness = Harness()

    async with asyncio.TaskGroup() as group:
        group.create_task(harness.run())
        await harness.clock.advance(1)
        assert harness.gate.readiness().ready
        harness.stop.set()
        await harness.clock.advance(0)
        assert harness.gate.readiness().checks == {"process": "stopping"}
        await harness.clock.advance(3)


async def test_a_service_told_to_stop_while_it_starts_never_becomes_ready(
    lines: io.StringIO,
) -> None:
    harness = Harness(starts=asyncio.Event())

    async with asyncio.TaskGroup() as group:
        run = group.create_task(harness.run())
        await harness.clock.advance(1)
        harness.stop.set()

    assert run.result() == 0
    assert not any("ready: server accepts" in line for line in harness.diary)
    assert harness.diary[-2:] == [
        "1 s, not ready: clients close",
        "1 s, not ready: telemetry stops within 1 s",
    ]


@pytest.mark.parametrize(
    ("failure", "event", "fragment"),
    [
        (RuntimeError("the loop fell over"), "process_failed", "RuntimeError: the loop fell over"),
        (None, "process_failed", "task 'loop' returned"),
        (EndProcess("the lease is lost"), "process_ended", "the lease is lost"),
    ],
)
async def test_a_loop_that_ends_ends_the_process_with_one(
    lines: io.StringIO, failure: Exception | None, event: str, fragment: str
) -> None:
    harness = Harness()
    harness.failure = failure

    async with asyncio.TaskGroup() as group:
        run = group.create_task(harness.run())
        await harness.clock.advance(1)
        harness.fail.set()

    assert run.result() == 1
    last = json.loads(lines.getvalue().splitlines()[-1])
    assert last["event"] == event
    assert fragment in last.get("exception", last.get("reason"))
    assert ("Traceback" in last.get("exception", "")) == (event == "process_failed")
    assert [line.partition(": ")[2] for line in harness.diary[-4:]] == [
        "loop ends", "server stops within 7 s", "clients close", "telemetry stops within 1 s",
    ]  # fmt: skip


class LeaseLost(Exception):  # noqa: N818 - stands for one of another package
    pass


async def test_an_error_that_is_known_to_happen_is_one_line_beside_those_that_are_not(
    lines: io.StringIO,
) -> None:
    harness = Harness()
    harness.failure = ExceptionGroup("both", [LeaseLost("to another"), RuntimeError("no idea")])

    async with asyncio.TaskGroup() as group:
        known = run_until_stopped(
            harness.service, harness.clock, stop=harness.stop, known=(LeaseLost,)
        )
        run = group.create_task(known)
        await harness.clock.advance(1)
        harness.fail.set()

    ended, failed = [json.loads(line) for line in lines.getvalue().splitlines()[-2:]]
    assert run.result() == 1
    assert (ended["event"], ended["reason"]) == ("process_ended", "to another")
    assert failed["event"] == "process_failed"
    assert "RuntimeError: no idea" in failed["exception"]
    assert "LeaseLost" not in failed["exception"]


async def test_clients_that_cannot_be_opened_end_the_process_with_one(lines: io.StringIO) -> None:
    def broken() -> AbstractAsyncContextManager[Running]:
        raise EndProcess("no kubeconfig")

    code = await run_until_stopped(Service(name="broken", open=broken), VirtualClock())

    assert code == 1
    assert json.loads(lines.getvalue())["reason"] == "no kubeconfig"


async def test_a_service_told_to_stop_while_it_opens_closes_what_it_has_opened(
    lines: io.StringIO,
) -> None:
    harness = Harness()
    telemetry = NotedServer("telemetry", harness.diary)

    @asynccontextmanager
    async def waiting() -> AsyncIterator[Running]:
        harness.diary.note("clients open")
        try:
            await asyncio.Event().wait()
            yield Running()
        finally:
            harness.diary.note("clients close")

    service = Service(name="waits", open=waiting, gate=harness.gate, telemetry=telemetry)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(run_until_stopped(service, harness.clock, stop=harness.stop))
        await harness.clock.advance(1)
        harness.stop.set()

    assert run.result() == 0
    assert harness.diary == [
        "0 s, not ready: telemetry accepts",
        "0 s, not ready: clients open",
        "1 s, not ready: clients close",
        "1 s, not ready: telemetry stops within 1 s",
    ]


async def test_a_known_end_while_a_service_opens_is_one_line(lines: io.StringIO) -> None:
    async def read() -> None:
        raise EndProcess("the wiring is unknown")

    @asynccontextmanager
    async def refusing() -> AsyncIterator[Running]:
        await read()
        yield Running()

    code = await run_until_stopped(Service(name="refuses", open=refusing), VirtualClock())

    assert code == 1
    said = json.loads(lines.getvalue())
    assert (said["event"], said["reason"]) == ("process_ended", "the wiring is unknown")


class Child:
    """The sample service in a process of its own."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def say(self, what: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := await self.process.stdout.readline():
                said: dict[str, Any] = json.loads(line)
                if said.pop("what") == what:
                    return said
        raise AssertionError(f"the child ended before it said {what!r}")


@asynccontextmanager
async def child(mode: str) -> AsyncIterator[Child]:
    command = [sys.executable, "-m", "tests.process.sample_service", mode]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
async def test_a_signal_lets_the_request_in_flight_finish(number: signal.Signals) -> None:
    async with child("normal") as sample, aiohttp.ClientSession() as session:
        up = await sample.say("up")
        ready = f"http://127.0.0.1:{up['telemetry_port']}/readyz"
        await until_status(session, ready, 200)

        async with asyncio.TaskGroup() as group:
            call = group.create_task(text(session, f"http://127.0.0.1:{up['port']}/slow"))
            await sample.say("asked")
            sample.process.send_signal(number)
            await until_status(session, ready, 503)
            assert await text(session, f"http://127.0.0.1:{up['port']}/last") == "done"

        await sample.say("loop_cancelled")
        await sample.say("clients_closed")
        assert call.result() == "done"
        assert await asyncio.wait_for(sample.process.wait(), 60) == 0


async def test_a_crash_in_a_process_is_exit_code_one_and_a_logged_traceback() -> None:
    async with child("crash") as sample:
        _, errors = await sample.process.communicate()

    (line,) = [json.loads(text) for text in errors.splitlines()]
    assert sample.process.returncode == 1
    assert line["event"] == "process_failed"
    assert "RuntimeError: the loop fell over" in line["exception"]


async def text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        return await response.text()


async def until_status(session: aiohttp.ClientSession, url: str, status: int) -> None:
    async with asyncio.timeout(60):
        while True:
            async with session.get(url) as response:
                if response.status == status:
                    return
