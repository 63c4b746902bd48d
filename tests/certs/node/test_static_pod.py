"""The kube-scheduler of a node is found by its own flags, and no other process is ended."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from certs.node.static_pod import KubeSchedulerProcesses, Process

CONFIG = "/etc/fracgpu/kube-scheduler/current/config.yaml"
STAT = "{pid} (kube (odd) name) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0"


def a_process(proc: Path, pid: int, *words: str, start: int = 700) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes("\0".join((*words, "")).encode())
    (folder / "stat").write_text(STAT.format(pid=pid, start=start))


def found(proc: Path) -> set[tuple[int, str]]:
    return {
        (process.pid, process.started)
        for process in KubeSchedulerProcesses(config=CONFIG, proc=proc).running()
    }


def test_it_is_the_one_that_was_started_with_our_configuration(tmp_path: Path) -> None:
    a_process(tmp_path, 10, "kube-scheduler", "--leader-elect=true", f"--config={CONFIG}")
    a_process(tmp_path, 11, "/usr/local/bin/kube-scheduler", "--config", CONFIG, start=800)
    a_process(tmp_path, 12, "kube-scheduler", "--config=/etc/other.yaml")
    a_process(tmp_path, 13, "kube-scheduler")
    a_process(tmp_path, 14, "kubelet", f"--config={CONFIG}")
    a_process(tmp_path, 15, "sh", "-c", f"kube-scheduler --config={CONFIG}")
    (tmp_path / "self").mkdir()
    (tmp_path / "16").mkdir()  # it has ended meanwhile

    assert found(tmp_path) == {(10, "700"), (11, "800")}


def test_a_number_that_is_used_again_is_another_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a_process(tmp_path, os.getpid(), "kube-scheduler", f"--config={CONFIG}", start=900)

    # Had it been terminated, this test would have ended too.
    KubeSchedulerProcesses(config=CONFIG, proc=tmp_path).end(
        Process(pid=os.getpid(), started="700")
    )

    assert capfd.readouterr().err == ""


async def test_a_real_process_is_asked_to_end(tmp_path: Path) -> None:
    (tmp_path / "kube-scheduler").symlink_to(sys.executable)
    child = await asyncio.create_subprocess_exec(
        *(str(tmp_path / "kube-scheduler"), "-c", "import time; time.sleep(60)"),
        f"--config={CONFIG}-{tmp_path.name}",
    )
    ours = KubeSchedulerProcesses(config=f"{CONFIG}-{tmp_path.name}", proc=Path("/proc"))

    (process,) = ours.running()
    ours.end(process)

    assert process.pid == child.pid
    async with asyncio.timeout(20):
        assert await child.wait() == -signal.SIGTERM
    assert ours.running() == frozenset()
    ours.end(process)  # nothing to end, nothing happens
