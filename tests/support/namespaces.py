"""A test's own network and mounts, so that the machine's are not touched."""

import asyncio
import ctypes
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from tests.support.processes import Child, output_of
from tests.support.waiting import until_true

# Of <linux/sched.h>; os.unshare and os.setns came with Python 3.12.
_NEW_NETWORK: Final = 0x4000_0000


@contextmanager
def own_network(address: str) -> Iterator[None]:
    """Move this thread, and what it starts from now on, to a network with nothing but *address*.

    Existing threads, such as an executor's, stay in the machine's network.

    Args:
        address: an IPv4 address; it is up, has a default route and can be reached by
            whatever is in the network, besides 127.0.0.1.
    """
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _call("unshare", _NEW_NETWORK)
        try:
            _lay_out(address)
            yield
        finally:
            _call("setns", before, _NEW_NETWORK)
    finally:
        os.close(before)


def _call(name: str, *numbers: int) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*numbers) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _lay_out(address: str) -> None:
    for words in (
        "link set lo up",
        # A veth pair for an address that is not loopback's, and a default route.
        "link add node0 type veth peer name node1",
        "link set node1 up",
        "link set node0 up",
        f"address add {address}/24 dev node0",
        "route add default dev node0",
    ):
        subprocess.run(["ip", *words.split()], check=True, capture_output=True)  # noqa: S603, S607
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


class OwnMounts:
    """Mounts that only the programs see that are started through :meth:`command`.

    ``/etc`` and ``/var`` are the machine's, and what is written there is lost at the end; ``/run``
    is empty. Folders of a test may be mounted over any of theirs.
    """

    def __init__(self, holder: int) -> None:
        self._holder = holder

    def command(self, *words: str | Path) -> list[str | Path]:
        """Return the command line that runs *words* with these mounts."""
        return ["nsenter", f"--mount=/proc/{self._holder}/ns/mnt", *words]

    def path(self, inside: str) -> Path:
        """Return the path in this process of what the others see as *inside*."""
        return Path(f"/proc/{self._holder}/root{inside}")


_MOUNT: Final = """
mount -t tmpfs tmpfs "$1"
for it in etc var; do
    mkdir "$1/$it" "$1/$it.work"
    mount -t overlay -o "lowerdir=/$it,upperdir=$1/$it,workdir=$1/$it.work" overlay "/$it"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock
place=$1
shift
while [ $# -gt 0 ]; do
    mkdir -p "$2"
    mount --bind "$1" "$2"
    shift 2
done
touch "$place.ready"
exec sleep infinity
"""


@asynccontextmanager
async def own_mounts(workdir: Path, over: Mapping[str, Path]) -> AsyncIterator[OwnMounts]:
    """Create separate mounts, and end them with the block.

    Args:
        workdir: an empty folder for what is needed and for the log.
        over: what is mounted, by the path at which it is seen.
    """
    scratch = workdir / "scratch"
    scratch.mkdir(parents=True)
    pairs = [word for inside, real in over.items() for word in (real, inside)]
    holder = Child(
        [
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-eu", "-c", _MOUNT, "sh", scratch, *pairs),
        ],
        log=workdir / "mounts.log",
    )
    await holder.start()
    try:

        def ready() -> bool:
            assert holder.alive, holder.tail()
            return (workdir / "scratch.ready").exists()

        await until_true(ready, what="the mounts are made")
        yield OwnMounts(holder.pid)
    finally:
        await holder.kill()


async def run_in(mounts: OwnMounts, words: Sequence[str | Path]) -> str:
    """Run a program with *mounts* to its end and return its output.

    Raises:
        AssertionError: it failed; the message says how.
    """
    process = await asyncio.create_subprocess_exec(
        *(str(word) for word in mounts.command(*words)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await output_of(process, limit_s=120)
    assert process.returncode == 0, f"{words}: {out.decode(errors='replace')[-2000:]}"
    return out.decode(errors="replace")
