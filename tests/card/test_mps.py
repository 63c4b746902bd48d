"""NVIDIA's MPS daemon on a physical card, run as the agent runs it: its limits and figures."""

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from deviceplugin.cards.nvml.reader import NvmlReader
from deviceplugin.container.mps import Folders
from fracgpu.cards.card import CardUuid
from tests.card.test_reader import later
from tests.support.cuda_load import OUT_OF_MEMORY, CudaError, Load, using
from tests.support.mps import answering, mps_daemons
from tests.support.waiting import until_true

pytestmark = [pytest.mark.card, pytest.mark.timeout(180)]

_PROGRAM = "nvidia-cuda-mps-control"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the daemon's sockets need."""
    with tempfile.TemporaryDirectory(prefix="fg-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@asynccontextmanager
async def daemon_of(uuid: str, root: Path) -> AsyncIterator[Folders]:
    """Run the card's daemon as the agent does."""
    if shutil.which(_PROGRAM) is None:
        pytest.skip(f"no {_PROGRAM}")
    async with mps_daemons(root, _PROGRAM, CardUuid(uuid)):
        yield await answering(root, CardUuid(uuid))


def client_of(folders: Folders, **limits: str) -> Mapping[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        "CUDA_MPS_PIPE_DIRECTORY": folders.pipe,
        "CUDA_MPS_LOG_DIRECTORY": folders.log,
        **limits,
    }


async def test_a_client_gets_no_more_memory_than_its_limit(
    folder: Path, uuid: str, program: Path
) -> None:
    async with daemon_of(uuid, folder) as folders:
        limited = client_of(folders, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2000M")
        async with using(program, Load(mib=1000), env=limited) as running:
            free_mib = running.sees["free_mib"]
        with pytest.raises(CudaError) as refused:
            async with using(program, Load(mib=2001), env=limited):
                pass

    assert free_mib <= 1000
    assert refused.value.code == OUT_OF_MEMORY


async def test_a_client_gets_its_part_of_the_multiprocessors(
    folder: Path, uuid: str, program: Path
) -> None:
    async with (
        daemon_of(uuid, folder) as folders,
        using(program, Load(), env=client_of(folders)) as entire,
        using(
            program, Load(), env=client_of(folders, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25")
        ) as quarter,
    ):
        processors = entire.sees["processors"], quarter.sees["processors"]

    assert processors[1] / processors[0] == pytest.approx(0.25, abs=0.03)


async def test_the_memory_of_clients_is_told_and_their_time_only_as_the_servers(
    folder: Path, uuid: str, program: Path, reader: NvmlReader
) -> None:
    async with daemon_of(uuid, folder) as folders:
        env = client_of(folders)
        async with (
            using(program, Load(mib=1000), env=env) as one,
            using(program, Load(mib=2000), env=env) as two,
        ):
            found = await later(reader, uuid, count=3)
    last = {process.pid: process for process in found[-1].processes}

    assert (last[two.pid].used_mib or 0) - (last[one.pid].used_mib or 0) == 1000
    assert (last[one.pid].sm_percent, last[two.pid].sm_percent) == (None, None)
    others = [
        process.sm_percent or 0 for pid, process in last.items() if pid not in (one.pid, two.pid)
    ]
    assert sum(others) > 0


async def test_a_daemon_that_was_killed_comes_back_for_new_clients(
    folder: Path, uuid: str, program: Path
) -> None:
    async with daemon_of(uuid, folder) as folders:
        pid_file = Path(folders.pipe) / "nvidia-cuda-mps-control.pid"
        first = int(pid_file.read_text())
        os.kill(first, signal.SIGKILL)

        def is_new() -> bool:
            return pid_file.exists() and pid_file.read_text() not in {"", str(first)}

        await until_true(is_new, what="the next daemon", limit_s=30)
        async with using(program, Load(mib=100), env=client_of(folders)) as running:
            assert running.sees["cards"] == 1


async def test_the_end_of_the_agent_ends_daemon_and_server(
    folder: Path, uuid: str, program: Path
) -> None:
    before = _mps_processes()
    async with (
        daemon_of(uuid, folder) as folders,
        using(program, Load(mib=100), env=client_of(folders)),
    ):
        during = _mps_processes() - before

    assert len(during) == 2, "the daemon, and the server that it started for the client"
    await until_true(lambda: not during & _mps_processes(), what=f"the end of {during}", limit_s=30)


def _mps_processes() -> set[int]:
    """Return the control daemons and servers of the machine."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"nvidia-cuda-mps-" in words[0]:
                found.add(int(process.name))
    return found
