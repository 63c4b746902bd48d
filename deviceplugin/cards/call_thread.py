"""Runs calls that may hang in a thread of their own, with a timeout for the caller."""

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class StuckError(Exception):
    """A call did not return in time; no other is started until it does."""


class CallThread:
    """Runs blocking calls one after the other in a thread that cannot keep the process alive.

    ``asyncio.to_thread`` does not work here: its threads are joined at exit, so a call that hangs
    in a driver would keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stuck_in: str | None = None

    async def call(
        self, function: Callable[..., _T], *args: Any, timeout_s: float, **kwargs: Any
    ) -> _T:
        """Call *function* in the thread and return what it returns.

        Raises:
            StuckError: this call, or one before it, has not returned in time.
        """
        self._begin()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()

        def work() -> None:
            try:
                value = function(*args, **kwargs)
            # Any exception goes to the caller, who waits in another thread.
            except BaseException as error:  # noqa: BLE001
                self._report(loop, self._failed, done, error)
            else:
                self._report(loop, self._succeeded, done, value)

        self._calls.put(work)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(done)
        except TimeoutError:
            raise self._stuck(function, done, timeout_s) from None

    def wait(self, function: Callable[..., _T], *args: Any, timeout_s: float) -> _T:
        """Call *function* in the thread as :meth:`call` does, for a caller in a thread.

        Raises:
            StuckError: this call, or one before it, has not returned in time.
        """
        self._begin()
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def work() -> None:
            try:
                value = function(*args)
            # Any exception goes to the caller, who waits in another thread.
            except BaseException as error:  # noqa: BLE001
                done.set_exception(error)
            else:
                done.set_result(value)

        self._calls.put(work)
        try:
            return done.result(timeout_s)
        except TimeoutError:
            raise self._stuck(function, done, timeout_s) from None

    def _begin(self) -> None:
        if self._stuck_in is not None:
            raise StuckError(f"{self._stuck_in} has not returned yet")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _stuck(
        self,
        function: Callable[..., Any],
        done: asyncio.Future[Any] | concurrent.futures.Future[Any],
        timeout_s: float,
    ) -> StuckError:
        self._stuck_in = getattr(function, "__name__", "a call").strip("_")
        done.add_done_callback(self._freed)
        return StuckError(f"{self._stuck_in} did not return in {timeout_s:g} s")

    def _run(self) -> None:
        while True:
            self._calls.get()()

    @staticmethod
    def _report(
        loop: asyncio.AbstractEventLoop, report: Callable[..., None], *args: object
    ) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(report, *args)

    @staticmethod
    def _succeeded(done: asyncio.Future[_T], value: _T) -> None:
        if not done.done():
            done.set_result(value)

    @staticmethod
    def _failed(done: asyncio.Future[Any], error: BaseException) -> None:
        if not done.done():
            done.set_exception(error)

    def _freed(self, done: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
        self._stuck_in = None
        if not done.cancelled():
            done.exception()  # read it, or asyncio logs that it was never retrieved
