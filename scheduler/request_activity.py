"""Whether requests are under way, for work that is to be done between them."""

import asyncio
from types import TracebackType


class RequestActivity:
    """Counts requests; a context of it is one request, from its first bytes to its answer.

    Attributes:
        begun: how many requests there have been.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._under_way = 0
        self._none_left = asyncio.Event()

    def __enter__(self) -> None:
        self.begun += 1
        self._under_way += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._none_left.set()

    @property
    def under_way(self) -> bool:
        """Whether a request waits for its answer."""
        return self._under_way > 0

    async def gap(self, *, limit_s: float) -> None:
        """Wait until a request is answered and no other is under way; return after *limit_s*."""
        self._none_left.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._none_left.wait()
        except TimeoutError:
            return
