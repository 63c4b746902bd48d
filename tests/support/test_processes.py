"""A child that takes too long is ended, and leaves no pipe open."""

import asyncio
import sys

import pytest

from tests.support.processes import told_by
from tests.support.test_tcp import left_open


async def child(script: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_what_a_child_writes_is_told() -> None:
    echo = await child("import sys; sys.stdout.write(sys.stdin.read()); sys.stderr.write('well')")

    assert await told_by(echo, b"hello", limit_s=60) == (b"hello", b"well")


def test_a_child_that_takes_too_long_is_ended_and_its_pipes_are_closed() -> None:
    async def too_long(_: object) -> None:
        sleeper = await child("import time; time.sleep(3600)")
        with pytest.raises(TimeoutError):
            await told_by(sleeper, limit_s=0.2)
        assert sleeper.returncode == -9

    assert left_open(too_long) == []
