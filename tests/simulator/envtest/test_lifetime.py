"""A child ends with its parent, also when the parent is killed."""

import asyncio
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.support.processes import is_alive
from tests.support.waiting import until_true

_PARENT = """
import asyncio, sys
from simulator.envtest.lifetime import ends_with_us
async def main():
    child = await asyncio.create_subprocess_exec(*ends_with_us(["sleep", "300"]))
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


def named(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


async def test_a_child_of_a_killed_process_is_killed() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed")
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PARENT), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    # It may still be setpriv, which has not told the kernel yet.
    await until_true(lambda: named(child) == "sleep", what="the child is the program")

    parent.send_signal(signal.SIGKILL)
    await parent.wait()

    await until_true(lambda: not is_alive(child), what="the child has ended")
