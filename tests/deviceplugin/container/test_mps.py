"""MPS daemons, with a stand-in program in place of NVIDIA's."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deviceplugin.container.mps import MpsDaemons
from deviceplugin.container.spec_builder import MpsError
from fracgpu.cards.card import CardUuid
from process.clock import SystemClock
from tests.support.stand_ins import MPS_CONTROL, a_program
from tests.support.waiting import until_true

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")


@asynccontextmanager
async def running(root: Path, program: str) -> AsyncIterator[MpsDaemons]:
    daemons = MpsDaemons(root, program=program, clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(daemons.run())
        yield daemons
        task.cancel()


def lives(root: Path, card: str) -> list[tuple[int, str]]:
    """Return pid and card of every start of a card's daemon."""
    lines = (root / card / "log" / "control.log").read_text().splitlines()
    return [(int(pid), seen) for pid, seen in (line.split() for line in lines)]


def mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


def alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


async def test_each_card_has_one_daemon_that_sees_only_this_card(tmp_path: Path) -> None:
    root = tmp_path / "mps"
    async with running(root, a_program(tmp_path, MPS_CONTROL)) as daemons:
        first = await daemons.ensure(A)
        again = await daemons.ensure(A)
        other = await daemons.ensure(B)

        assert first == again != other
        assert [seen for _, seen in lives(root, A)] == [A]
        assert [seen for _, seen in lives(root, B)] == [B]
        pids = [lives(root, card)[0][0] for card in (A, B)]
        assert all(map(alive, pids))
        assert mode(first.pipe) == 0o777  # whatever uid a container has

    assert not any(map(alive, pids))


async def test_a_daemon_that_dies_is_started_again(tmp_path: Path) -> None:
    root = tmp_path / "mps"
    async with running(root, a_program(tmp_path, MPS_CONTROL)) as daemons:
        await daemons.ensure(A)
        ((pid, _),) = lives(root, A)
        os.kill(pid, 9)
        await until_true(lambda: len(lives(root, A)) == 2, what="the daemon runs again")

        assert (await daemons.ensure(A)).pipe


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", None], ids=["ends", "not installed"])
async def test_a_daemon_that_does_not_come_up_is_named_with_its_cause(
    tmp_path: Path, text: str | None
) -> None:
    program = a_program(tmp_path, text) if text else str(tmp_path / "none")
    daemons = MpsDaemons(tmp_path / "mps", program=program, clock=SystemClock(), ready_limit_s=1.0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(daemons.run())
        with pytest.raises(MpsError, match=r"GPU-a is not ready.*(ended with 3|No such file)"):
            await daemons.ensure(A)
        task.cancel()


async def test_a_name_that_would_leave_the_folder_is_refused(tmp_path: Path) -> None:
    daemons = MpsDaemons(tmp_path, program="none", clock=SystemClock())

    with pytest.raises(MpsError, match="name of a folder"):
        await daemons.ensure(CardUuid("../../etc"))


async def test_shared_memory_is_mounted_where_the_node_has_a_folder_for_it(tmp_path: Path) -> None:
    root = tmp_path / "mps"
    (root / "shm").mkdir(parents=True)
    async with running(root, a_program(tmp_path, MPS_CONTROL)) as daemons:
        assert (await daemons.ensure(A)).shm == str(root / "shm")
