"""Keeping a process small: one heap for all threads, and large blocks returned at once."""

import ctypes
import gc
from asyncio import sslproto
from collections.abc import Callable
from typing import Final

from process.clock import Clock

# Of mallopt(3), in glibc's malloc.h.
_M_ARENA_MAX: Final = -8

_M_MMAP_THRESHOLD: Final = -3

_LARGE_BYTES: Final = 64 * 1024

_TLS_PIECE_BYTES: Final = 32 * 1024

_FREEZE_S: Final = 0.1  # in which a start makes some ten thousand objects


def share_one_heap() -> bool:
    """Make all threads use one heap of the C library from now on; return whether that worked.

    glibc gives each thread a heap of its own, which is a waste where Python's lock lets one thread
    work at a time: about 10 MiB for a process with gRPC's threads. Other C libraries do not do so.
    """
    return _mallopt(_M_ARENA_MAX, 1)


def give_back_large_blocks() -> bool:
    """Return blocks of 64 KiB and more to the kernel when freed; return whether that worked.

    glibc maps the first such blocks too, but once one is freed it raises its threshold and keeps
    later ones in its heap, where small neighbours pin them. A server whose connections each have a
    TLS buffer of 256 KiB then grows with every burst of them.
    """
    return _mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def read_tls_in_small_pieces() -> None:
    """Have asyncio read TLS connections in pieces of 32 KiB, instead of 256 KiB.

    asyncio allocates a whole piece for each read, about two in a request, and keeps a buffer of
    that size for each connection; with :func:`give_back_large_blocks` each one is mapped and
    unmapped. No read returns more than one TLS record, which has at most 16 KiB (RFC 8446, 5.1;
    SSL_read(3) of OpenSSL), so a longer piece is never filled.
    """
    sslproto.SSLProtocol.max_size = _TLS_PIECE_BYTES


def _mallopt(parameter: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))


def freeze_imported() -> None:
    """Take all that exists out of the garbage collector's sight: what imports have made stays.

    It is called once, before the event loop runs. A full collection, which stops everything, then
    takes 40 ms less.
    """
    gc.collect()
    gc.freeze()


async def freeze_until(done: Callable[[], bool], clock: Clock) -> None:
    """Take what is being listed out of the garbage collector's sight, until *done* returns True.

    Otherwise it traverses every object again and again while they come, and later in the middle of
    a request, in vain: what stays has no cycles. Little is looked at each time, so that nothing
    stands still; a cycle that exists just then and is dropped later is never freed, so this is for
    a start and not for ever.
    """
    while True:
        gc.collect(1)  # the young ones: some thousand
        gc.freeze()
        if done():
            return
        await clock.sleep(_FREEZE_S)
