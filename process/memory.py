"""Keeping a process small: one heap for all threads, and large blocks given back at once."""

import asyncio
import ctypes
import gc
from typing import Final

# Of mallopt(3), in glibc's malloc.h.
_M_ARENA_MAX: Final = -8

_M_MMAP_THRESHOLD: Final = -3

_LARGE_BYTES: Final = 64 * 1024


def share_one_heap() -> bool:
    """Let all threads use one heap of the C library, from now on; tell whether it can.

    glibc gives each thread a heap of its own, which is a waste where Python's lock lets one thread
    work at a time: about 10 MiB for a process with gRPC's threads. Other C libraries do not do so.
    """
    return _mallopt(_M_ARENA_MAX, 1)


def give_back_large_blocks() -> bool:
    """Let blocks of 64 KiB and more return to the kernel when freed; tell whether it can.

    glibc takes the first such blocks from the kernel too, but once one was freed it keeps their
    like in its heap, where small neighbours pin them. A server whose connections each have a buffer
    of 256 KiB for TLS then grows with every wave of them.
    """
    return _mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _mallopt(parameter: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))


async def settle_memory() -> None:
    """Take what was listed out of the collector's sight, then wait for ever.

    It would walk every pod again and again, some hundred milliseconds in the middle of a request,
    and find nothing: what the informers hold has no cycles.
    """
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()
