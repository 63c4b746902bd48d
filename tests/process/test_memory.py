"""What the C library's heap does, by its own statistics."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from process.memory import give_back_large_blocks, share_one_heap

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


@glibc
def test_it_tells_that_it_could() -> None:
    assert share_one_heap()
    assert give_back_large_blocks()
