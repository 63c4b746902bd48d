"""Keeping a process small: one heap for all threads, and large blocks returned at once."""

import asyncio
import ctypes
import gc
from asyncio import sslproto
from typing import Final

# Of mallopt(3), in glibc's malloc.h.
_M_ARENA_MAX: Final = -8

_M_MMAP_THRESHOLD: Final = -3

_LARGE_BYTES: Final = 64 * 1024

_TLS_PIECE_BYTES: Final = 32 * 1024


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


async def settle_memory() -> None:
    """Freeze the objects listed so far for the garbage collector, then wait for ever.

    Otherwise it traverses every pod again and again, for some hundred milliseconds in the middle
    of a request, in vain: the informers' objects have no cycles.
    """
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()
