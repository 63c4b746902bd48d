"""Waiting for a condition instead of for a time."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(
    condition: Callable[[], Awaitable[bool]], *, what: str, limit_s: float = 20.0
) -> None:
    """Return once *condition* is true.

    Raises:
        AssertionError: it was not within *limit_s*; the message says *what* was awaited.
    """
    try:
        async with asyncio.timeout(limit_s):
            while not await condition():  # noqa: ASYNC110 - whatever it is, it cannot notify us
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {limit_s} s: {what}") from None


async def until_true(condition: Callable[[], bool], *, what: str, limit_s: float = 20.0) -> None:
    """Like :func:`until`, for a condition that needs no awaiting."""

    async def holds() -> bool:
        return condition()

    await until(holds, what=what, limit_s=limit_s)
