"""Real control groups, of whichever versions this machine has, with real processes in them."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MOUNTS = Path("/proc/mounts")
# Hierarchies of version 1 that take any process without further settings.
_PLAIN_V1 = ("pids", "freezer", "cpuacct", "systemd")
_GONE_LIMIT_S = 60.0


def hierarchy(version: int) -> Path:
    """Return a writable hierarchy of cgroup *version*, or skip with the reason."""
    if os.geteuid() != 0:
        pytest.skip("only root may make control groups")
    mounts = [line.split() for line in _MOUNTS.read_text().splitlines()]
    kind = "cgroup2" if version == 2 else "cgroup"
    found = [Path(fields[1]) for fields in mounts if fields[2] == kind]
    if version == 1:
        found = [root for root in found if root.name in _PLAIN_V1]
    for root in found:
        try:
            probe = root / f"fracgpu-{secrets.token_hex(4)}"
            probe.mkdir()
            probe.rmdir()
        except OSError:
            continue
        return root
    pytest.skip(f"this machine has no writable cgroup hierarchy of version {version}")


@contextmanager
def a_group(root: Path, path: str) -> Iterator[Path]:
    """Create the group *path* under a name of its own in *root*; remove all of it afterwards."""
    top = root / f"fracgpu-{secrets.token_hex(4)}"
    group = top / path
    group.mkdir(parents=True)
    try:
        yield group
    finally:
        folders = [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
        for folder in folders:
            _remove(folder)


def _remove(group: Path) -> None:
    """Remove a group, and end what a test has left in it: a child may outlive its parent.

    The kernel may need a moment to see that its processes are gone.
    """
    until_s = time.monotonic() + _GONE_LIMIT_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > until_s:
                raise
            for pid in map(int, (group / "cgroup.procs").read_text().split()):
                if pid:  # 0 stands for one of another namespace, and to kill() for our own group
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        else:
            return


def join(group: Path, pid: int) -> None:
    """Move a process into *group*."""
    (group / "cgroup.procs").write_text(str(pid))


@contextmanager
def a_sleeper(*prefix: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that does nothing, under the command *prefix*; end it afterwards."""
    process = subprocess.Popen([*prefix, "sleep", "300"])  # noqa: S603 - our own words
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def program(name: str) -> str:
    """Return the path of a program, or skip with the reason."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no program {name!r} in PATH")
    return found
