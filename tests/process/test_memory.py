"""What the C library's heap does, by its own statistics."""

import asyncio
import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from process.memory import freeze_imported, freeze_until, give_back_large_blocks, share_one_heap
from tests.certs.tls_harness import a_ca, a_leaf
from tests.fakes.clock import VirtualClock

ROOT = Path(__file__).parents[2]
# malloc_stats writes one "Arena" line for each heap.
_SCRIPT = """
import ctypes, sys, threading
if sys.argv[1] == "one":
    from process.memory import share_one_heap
    share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
gate = threading.Barrier(5)
def work():
    libc.malloc(100_000)
    gate.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
gate.wait()
libc.malloc_stats()
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")


def heaps(how: str) -> int:
    answer = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", _SCRIPT, how], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return answer.stderr.count("Arena ")


@glibc
def test_threads_share_one_heap_where_each_would_have_had_its_own() -> None:
    assert heaps("many") > 1
    assert heaps("one") == 1


# A block is freed and taken again; mallinfo2's fifth field counts the blocks that are the kernel's.
_LARGE_SCRIPT = """
import ctypes, sys
if sys.argv[1] == "given back":
    from process.memory import give_back_large_blocks
    give_back_large_blocks()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd".split()] + [
        ("rest", ctypes.c_size_t * 5)]
libc.mallinfo2.restype = Info
libc.free(libc.malloc(256 * 1024))
before = libc.mallinfo2().hblks
libc.malloc(256 * 1024)
print(libc.mallinfo2().hblks - before)
"""


def blocks_of_the_kernel(how: str) -> int:
    answer = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", _LARGE_SCRIPT, how],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return int(answer.stdout)


@glibc
def test_a_large_block_goes_back_to_the_kernel_where_it_would_have_been_kept() -> None:
    assert blocks_of_the_kernel("kept") == 0
    assert blocks_of_the_kernel("given back") == 1


# What Python has allocated for ten connections between a server and a client in one process.
_TLS_SCRIPT = """
import asyncio, ssl, sys, tracemalloc
if sys.argv[1] == "small":
    from process.memory import read_tls_in_small_pieces
    read_tls_in_small_pieces()
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain(sys.argv[2])
client = ssl.create_default_context(cafile=sys.argv[3])
BODY = bytes(range(256)) * 4096
async def echo(reader, writer):
    writer.write(await reader.readexactly(len(BODY)))
async def main():
    listening = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server)
    port = listening.sockets[0].getsockname()[1]
    opened = [await asyncio.open_connection("localhost", port, ssl=client) for _ in range(10)]
    held = tracemalloc.get_traced_memory()[0]
    reader, writer = opened[0]
    writer.write(BODY)
    assert await reader.readexactly(len(BODY)) == BODY
    print(held // (10 * 2 * 1024))
    for _, writer in opened:
        writer.transport.abort()
tracemalloc.start()
asyncio.run(main())
"""


def kib_of_a_connections_end(how: str, *pems: Path) -> int:
    answer = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", _TLS_SCRIPT, how, *map(str, pems)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return int(answer.stdout)


def test_a_tls_connection_holds_a_small_buffer_and_still_passes_a_mebibyte(tmp_path: Path) -> None:
    ca = a_ca()
    leaf = a_leaf(ca)
    server, trusted = tmp_path / "server.pem", tmp_path / "ca.pem"
    server.write_bytes(leaf.cert_pem + leaf.key_pem)
    trusted.write_bytes(ca.cert_pem)

    assert kib_of_a_connections_end("whole", server, trusted) >= 256
    assert kib_of_a_connections_end("small", server, trusted) < 128


@glibc
def test_it_tells_that_it_could() -> None:
    assert share_one_heap()
    assert give_back_large_blocks()


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


class Knot:
    """Refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


async def test_what_is_listed_until_it_is_done_is_no_longer_walked_and_what_comes_later_is() -> (
    None
):
    clock, done = VirtualClock(), False
    before = gc.get_freeze_count()
    async with asyncio.TaskGroup() as group:
        freezing = group.create_task(freeze_until(lambda: done, clock))
        await clock.advance(0.0)
        listed = [{"n": [number]} for number in range(1_000)]
        await clock.advance(0.2)
        frozen = gc.get_freeze_count()
        assert frozen - before >= len(listed)
        assert not freezing.done()
        done = True
        await clock.advance(0.2)

        assert freezing.done()
    frozen = gc.get_freeze_count()
    later = [{"n": [number]} for number in range(1_000)]
    await clock.advance(1.0)
    assert gc.get_freeze_count() <= frozen
    assert later


def test_what_was_imported_is_no_longer_walked_and_what_nobody_needs_is_freed() -> None:
    knot = weakref.ref(Knot())
    before = gc.get_freeze_count()

    freeze_imported()

    assert knot() is None
    assert gc.get_freeze_count() > before
