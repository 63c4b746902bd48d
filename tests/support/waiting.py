"""Waiting for a condition instead of for a time."""

import asyncio
from collections.abc import Awaitable, Callable

_SHORTEST_S = 0.02
_LONGEST_S = 0.3


async def until(
    condition: Callable[[], Awaitable[bool]], *, what: str, limit_s: float = 60.0
) -> None:
    """Return once *condition* is true.

    The limit is for what never comes, not for a machine that is busy.

    Raises:
        AssertionError: it was not within *limit_s*; the message says *what* was awaited.
    """
    began_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(limit_s):
            while not await condition():  # whatever it is, it cannot notify us
                # To ask takes a CPU from those that are waited for: seldom, after a while.
                waited_s = asyncio.get_running_loop().time() - began_s
                await asyncio.sleep(min(max(_SHORTEST_S, waited_s / 10), _LONGEST_S))
    except TimeoutError:
        raise AssertionError(f"not within {limit_s} s: {what}") from None


async def until_true(condition: Callable[[], bool], *, what: str, limit_s: float = 60.0) -> None:
    """Like :func:`until`, for a condition that needs no awaiting."""

    async def holds() -> bool:
        return condition()

    await until(holds, what=what, limit_s=limit_s)
