"""One start of a set of slots at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

_LIMIT_S: Final = 10.0


class BusyError(Exception):
    """An earlier start of the same slots is still being prepared."""


class Turns:
    """Keeps starts of the same slots apart: one at a time looks whose they are and writes a spec.

    Otherwise a slow write for a pod that has lost them could follow that for the next holder.

    Args:
        limit_s: how long a start waits for another one of the same slots, in real time.
    """

    def __init__(self, *, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        # Each is there as long as a start has or awaits its turn.
        self._turns: WeakValueDictionary[frozenset[str], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, slot_ids: frozenset[str]) -> AsyncIterator[None]:
        """Have the turn of *slot_ids* until the block ends.

        Raises:
            BusyError: another start had it for all of the limit.
        """
        turn = self._turns.get(slot_ids)
        if turn is None:
            turn = self._turns[slot_ids] = asyncio.Lock()
        try:
            async with asyncio.timeout(self._limit_s):
                await turn.acquire()
        except TimeoutError:
            text = "an earlier start of these slots is still being prepared"
            raise BusyError(f"{text} after {self._limit_s:g} s") from None
        try:
            yield
        finally:
            turn.release()
