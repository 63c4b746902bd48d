"""MPS daemons, with a stand-in program in place of NVIDIA's."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from deviceplugin.container.mps import Folders, MpsDaemons
from deviceplugin.container.spec_builder import MpsError
from fracgpu.cards.card import CardUuid
from process.clock import SystemClock
from tests.support.nvml import MPS_CONTROL, a_program
from tests.support.waiting import until_true

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the sockets of a daemon need."""
    with tempfile.TemporaryDirectory(prefix="fg-") as name:
        yield Path(name)


@asynccontextmanager
async def running(root: Path, program: str) -> AsyncIterator[MpsDaemons]:
    daemons = MpsDaemons(root, program=program, clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(daemons.run())
        yield daemons
        task.cancel()


async def ready(daemons: MpsDaemons, card: CardUuid) -> Folders:
    await daemons.prepare([card])
    return daemons.folders(card)


def lives(root: Path, card: str) -> list[tuple[int, str]]:
    """Return pid and card of every start of a card's daemon."""
    lines = (root / card / "log" / "control.log").read_text().splitlines()
    return [(int(pid), visible) for pid, visible in (line.split() for line in lines)]


def mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


def alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def end_what_was_left(folder: Path) -> None:
    for file in folder.glob("*.pid"):
        os.kill(int(file.read_text()), signal.SIGKILL)


async def test_each_card_has_one_daemon_that_sees_only_this_card(folder: Path) -> None:
    root = folder / "mps"
    async with running(root, a_program(folder, MPS_CONTROL)) as daemons:
        first = await ready(daemons, A)
        again = await ready(daemons, A)
        other = await ready(daemons, B)

        assert first == again != other
        assert [visible for _, visible in lives(root, A)] == [A]
        assert [visible for _, visible in lives(root, B)] == [B]
        pids = [lives(root, card)[0][0] for card in (A, B)]
        assert all(map(alive, pids))
        assert mode(first.pipe) == 0o777  # whatever uid a container has

    assert not any(map(alive, pids))


async def test_a_daemon_that_dies_is_started_again(folder: Path) -> None:
    root = folder / "mps"
    async with running(root, a_program(folder, MPS_CONTROL)) as daemons:
        await ready(daemons, A)
        ((pid, _),) = lives(root, A)
        os.kill(pid, 9)
        await until_true(lambda: len(lives(root, A)) == 2, what="the daemon runs again")

        def up() -> bool:
            with suppress(MpsError):
                return bool(daemons.folders(A))
            return False

        await until_true(up, what="it is ready again")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("#!/bin/sh\nexit 3\n", r"ended with 3$"),
        ("#!/bin/sh\necho one >&2; echo no card; exit 1\n", r"ended with 1: no card$"),
        # What it started goes on, and holds its output open.
        ("#!/bin/sh\nsleep 30 & echo $! >$0.pid; echo why; exit 1\n", r"ended with 1: why$"),
        (None, "No such file"),
    ],
    ids=["ends", "says why", "leaves a server", "not installed"],
)
async def test_a_daemon_that_does_not_come_up_is_named_with_its_cause(
    folder: Path, text: str | None, cause: str
) -> None:
    program = a_program(folder, text) if text else str(folder / "none")
    daemons = MpsDaemons(folder / "mps", program=program, clock=SystemClock(), ready_limit_s=1.0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(daemons.run())
        with pytest.raises(MpsError, match=f"GPU-a is not ready.*{cause}"):
            await ready(daemons, A)
        task.cancel()
    end_what_was_left(folder)


async def test_a_daemon_that_has_failed_once_holds_up_no_other_start(folder: Path) -> None:
    fails = 'case "$CUDA_VISIBLE_DEVICES" in GPU-b) exit 1;; esac'
    program = a_program(folder, MPS_CONTROL.replace("test ", f"{fails}\ntest ", 1))
    async with running(folder / "mps", program) as daemons:
        with pytest.raises(MpsError, match="has not been started yet"):
            daemons.folders(B)
        await daemons.prepare([A, B])

        assert daemons.folders(A).pipe
        with pytest.raises(MpsError, match=r"GPU-b is not ready.*ended with 1"):
            daemons.folders(B)


async def test_a_daemon_that_writes_much_is_not_stopped_by_it(folder: Path) -> None:
    talkative = MPS_CONTROL.replace("test ", "yes | head -c 1000000\ntest ", 1)
    async with running(folder / "mps", a_program(folder, talkative)) as daemons:
        assert (await ready(daemons, A)).pipe


async def test_a_folder_too_deep_for_sockets_is_named_before_a_daemon_is_started(
    folder: Path,
) -> None:
    root = folder / ("deep" * 20)
    daemons = MpsDaemons(root, program="none", clock=SystemClock())

    with pytest.raises(MpsError, match=r"want at most 107"):
        await ready(daemons, A)
    assert not root.exists()


async def test_a_name_that_would_leave_the_folder_is_refused(folder: Path) -> None:
    daemons = MpsDaemons(folder, program="none", clock=SystemClock())

    with pytest.raises(MpsError, match="name of a folder"):
        await ready(daemons, CardUuid("../../etc"))


async def test_shared_memory_is_mounted_where_the_node_has_a_folder_for_it(folder: Path) -> None:
    root = folder / "mps"
    (root / "shm").mkdir(parents=True)
    async with running(root, a_program(folder, MPS_CONTROL)) as daemons:
        assert (await ready(daemons, A)).shm == str(root / "shm")
