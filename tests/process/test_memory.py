"""One heap for all threads, seen in the C library's own words."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from process.memory import share_one_heap

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


@glibc
def test_it_tells_that_it_could() -> None:
    assert share_one_heap()
