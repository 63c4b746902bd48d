"""Keeping a process small: one heap for all threads."""

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8  # of mallopt(3), in glibc's malloc.h


def share_one_heap() -> bool:
    """Let all threads use one heap of the C library, from now on; tell whether it can.

    glibc gives each thread a heap of its own, which is a waste where Python's lock lets one thread
    work at a time: about 10 MiB for a process with gRPC's threads. Other C libraries do not do so.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))
