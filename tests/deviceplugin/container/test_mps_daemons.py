"""MPS daemons in their own pod, with a stand-in program in place of NVIDIA's."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.container.mps import MpsOfNode
from deviceplugin.container.spec_builder import MpsError
from fracgpu.cards.card import CardUuid
from tests.support.mps import answering, mps_daemons
from tests.support.nvml import MPS_CONTROL, a_program
from tests.support.waiting import until_true

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the sockets of a daemon need."""
    with tempfile.TemporaryDirectory(prefix="fg-") as name:
        yield Path(name)


def lives(root: Path, card: str) -> list[tuple[int, str]]:
    """Return pid and card of every start of a card's daemon."""
    lines = (root / card / "log" / "control.log").read_text().splitlines()
    return [(int(pid), visible) for pid, visible in (line.split() for line in lines)]


def alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


def end_what_was_left(folder: Path) -> None:
    for file in folder.glob("*.pid"):
        os.kill(int(file.read_text()), signal.SIGKILL)


async def test_each_card_has_one_daemon_that_sees_only_this_card(folder: Path) -> None:
    root = folder / "mps"
    async with mps_daemons(root, a_program(folder, MPS_CONTROL), A, B) as daemons:
        first, other = await answering(root, A), await answering(root, B)

        assert first != other
        assert [visible for _, visible in lives(root, A)] == [A]
        assert [visible for _, visible in lives(root, B)] == [B]
        pids = [lives(root, card)[0][0] for card in (A, B)]
        assert all(map(alive, pids))
        # Whatever uid a container has.
        assert mode(first.pipe) == 0o777
        await until_true(lambda: daemons.problem is None, what="the pod is ready")

    assert not any(map(alive, pids))
    with pytest.raises(MpsError, match="does not answer"):
        MpsOfNode(root).folders(A)


async def test_a_daemon_that_dies_answers_nobody_until_it_was_started_again(folder: Path) -> None:
    root = folder / "mps"
    async with mps_daemons(root, a_program(folder, MPS_CONTROL), A) as daemons:
        await answering(root, A)
        ((pid, _),) = lives(root, A)
        os.kill(pid, signal.SIGKILL)
        await until_true(lambda: not alive(pid), what="it is gone")
        with pytest.raises(MpsError, match="does not answer"):
            MpsOfNode(root).folders(A)
        await until_true(lambda: bool(daemons.problem), what="it is named")
        await until_true(lambda: len(lives(root, A)) == 2, what="it runs again", limit_s=60)
        await answering(root, A)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("#!/bin/sh\nexit 3\n", "ended with 3"),
        ("#!/bin/sh\necho one >&2; echo no card; exit 1\n", "ended with 1: no card"),
        # What it started goes on, and holds its output open.
        ("#!/bin/sh\nsleep 30 & echo $! >$0.pid; echo why; exit 1\n", "ended with 1: why"),
        (None, "No such file"),
    ],
    ids=["ends", "says why", "leaves a server", "not installed"],
)
async def test_a_daemon_that_does_not_come_up_is_named_with_its_cause(
    folder: Path, text: str | None, cause: str
) -> None:
    program = a_program(folder, text) if text else str(folder / "none")
    async with mps_daemons(folder / "mps", program, A) as daemons:
        await until_true(lambda: cause in str(daemons.problem), what="the cause", limit_s=60)

        assert "the MPS daemon of GPU-a: " in str(daemons.problem)
        with pytest.raises(MpsError, match=r"GPU-a does not answer.*No such file"):
            MpsOfNode(folder / "mps").folders(A)
    end_what_was_left(folder)


async def test_a_daemon_that_lives_and_does_not_answer_is_named(folder: Path) -> None:
    root = folder / "mps"
    (root / A / "pipe").mkdir(parents=True)
    (root / A / "pipe" / "silent").touch()
    async with mps_daemons(root, a_program(folder, MPS_CONTROL), A) as daemons:
        await until_true(
            lambda: "it is not asked: no answer" in str(daemons.problem), what="why", limit_s=60
        )

        with pytest.raises(MpsError, match="answered: No such file"):
            MpsOfNode(root).folders(A)


async def test_a_daemon_that_fails_holds_up_no_other(folder: Path) -> None:
    fails = 'if card == "GPU-b": sys.exit(1)\nwith socket'
    program = a_program(folder, MPS_CONTROL.replace("with socket", fails, 1))
    async with mps_daemons(folder / "mps", program, B, A) as daemons:
        await answering(folder / "mps", A)
        assert "GPU-b" in str(daemons.problem)


async def test_a_daemon_that_writes_much_is_not_stopped_by_it(folder: Path) -> None:
    words = '    print("y\\n" * 500000)\n    it.listen()'
    talkative = MPS_CONTROL.replace("    it.listen()", words)
    async with mps_daemons(folder / "mps", a_program(folder, talkative), A):
        await answering(folder / "mps", A)


@pytest.mark.parametrize(
    ("root", "card", "why"),
    [("deep" * 20, "GPU-a", "want at most 107"), ("mps", "../../etc", "name of a folder")],
)
async def test_a_folder_that_no_daemon_can_have_is_named_before_one_is_started(
    folder: Path, root: str, card: str, why: str
) -> None:
    async with mps_daemons(folder / root, "none", CardUuid(card)) as daemons:
        await until_true(lambda: why in str(daemons.problem), what="it is named")

    assert not (folder / root).exists()
    with pytest.raises(MpsError, match=why):
        MpsOfNode(folder / root).folders(CardUuid(card))
