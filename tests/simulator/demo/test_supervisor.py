"""Processes are kept running, and all of them end when the supervisor does."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from simulator.background import background
from simulator.demo.supervisor import ProcessSpec, Supervisor, why_not_ready
from simulator.envtest.ports import free_ports
from tests.support.scripted import a_server, answering
from tests.support.waiting import until_true

SLEEPER = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)",
)


@asynccontextmanager
async def supervised(folder: Path, **argv: tuple[str, ...]) -> AsyncIterator[Supervisor]:
    specs = [
        ProcessSpec(name=name, argv=words, env=dict(os.environ)) for name, words in argv.items()
    ]
    supervisor = Supervisor(specs, log_dir=folder)
    async with background(supervisor.run()):
        yield supervisor


def said_up(supervisor: Supervisor, name: str, *, times: int = 1) -> Callable[[], bool]:
    file = supervisor.log_file(name)
    return lambda: file.exists() and file.read_text().count("up") >= times


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, role=SLEEPER) as supervisor:
        await until_true(said_up(supervisor, "role"), what="the process to be up")
        first = supervisor.pid("role")

        supervisor.kill("role")

        await until_true(said_up(supervisor, "role", times=2), what="the process to be up")
        # It may say so before the supervisor knows its pid.
        await until_true(
            lambda: supervisor.pid("role") not in (None, first), what="another process to run"
        )
        assert supervisor.starts("role") == 2
        assert supervisor.exits()["role"] == (-signal.SIGKILL,)


async def test_nothing_is_left_when_the_supervisor_ends(tmp_path: Path) -> None:
    async with supervised(tmp_path, polite=SLEEPER, stubborn=STUBBORN) as supervisor:
        await until_true(said_up(supervisor, "polite"), what="the process to be up")
        await until_true(said_up(supervisor, "stubborn"), what="the process to be up")
        pids = [supervisor.pid(name) for name in supervisor.names()]

    assert all(pid is not None and gone(pid) for pid in pids)


async def test_a_process_that_ends_at_once_is_tried_again_more_slowly(tmp_path: Path) -> None:
    async with supervised(
        tmp_path, broken=(sys.executable, "-c", "raise SystemExit(3)")
    ) as supervisor:
        await until_true(lambda: supervisor.starts("broken") >= 2, what="the process to be up")

        assert set(supervisor.exits()["broken"]) == {3}


async def test_the_last_words_of_a_process_can_be_read(tmp_path: Path) -> None:
    words = (sys.executable, "-c", "raise SystemExit('no such card')")
    async with supervised(tmp_path, broken=words) as supervisor:
        await until_true(lambda: len(supervisor.exits()["broken"]) >= 1, what="its end")

        assert supervisor.last_words("broken").endswith("no such card")


async def asked(answer: web.Response) -> str | None:
    async with a_server(answering(answer)) as server:
        return await why_not_ready(server.url.removeprefix("http://"))


async def test_a_ready_role_has_no_excuse_and_one_that_is_not_ready_says_why() -> None:
    assert await asked(web.Response(text="ok")) is None
    trouble = web.Response(status=503, text="inventory: not listed yet")
    assert await asked(trouble) == "inventory: not listed yet"


async def test_a_role_that_does_not_answer_is_not_ready() -> None:
    (port,) = free_ports(1)

    assert "refused" in (await why_not_ready(f"127.0.0.1:{port}") or "")


async def test_a_role_that_answers_nonsense_is_not_ready() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no HTTP\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        assert (await why_not_ready(f"127.0.0.1:{port}") or "").startswith("BadStatusLine")
