"""Runs calls that may hang in a thread of their own, with a timeout for the caller."""

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")
_Key = TypeVar("_Key")


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
        done = self._submit(partial(function, *args, **kwargs))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(done)
        except TimeoutError:
            raise self._stuck(function, done, timeout_s) from None

    def wait(self, function: Callable[..., _T], *args: Any, timeout_s: float) -> _T:
        """Call *function* in the thread as :meth:`call` does, for a caller in a thread.

        Raises:
            StuckError: this call, or one before it, has not returned in time.
        """
        done = self._submit(partial(function, *args))
        try:
            return done.result(timeout_s)
        except TimeoutError:
            raise self._stuck(function, done, timeout_s) from None

    def _submit(self, function: Callable[[], _T]) -> concurrent.futures.Future[_T]:
        if self._stuck_in is not None:
            raise StuckError(f"{self._stuck_in} has not returned yet")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()
        # One that runs cannot be cancelled, so that its end is always reported.
        done.set_running_or_notify_cancel()

        def work() -> None:
            try:
                value = function()
            # Any exception goes to the caller, who waits in another thread.
            except BaseException as error:  # noqa: BLE001
                done.set_exception(error)
            else:
                done.set_result(value)

        self._calls.put(work)
        return done

    def _stuck(
        self,
        function: Callable[..., Any],
        done: concurrent.futures.Future[Any],
        timeout_s: float,
    ) -> StuckError:
        self._stuck_in = getattr(function, "__name__", "a call").strip("_")
        done.add_done_callback(self._freed)
        return StuckError(f"{self._stuck_in} did not return in {timeout_s:g} s")

    def _run(self) -> None:
        while True:
            self._calls.get()()

    def _freed(self, _: concurrent.futures.Future[Any]) -> None:
        self._stuck_in = None


async def settled(
    calls: Mapping[_Key, Callable[[], Awaitable[_T]]], *errors: type[Exception]
) -> Mapping[_Key, _T | Exception]:
    """Await all calls at once; return by key what each returns, or raises of *errors*."""

    async def settle(call: Callable[[], Awaitable[_T]]) -> _T | Exception:
        try:
            return await call()
        except errors as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = {
            key: group.create_task(settle(call), name=f"settle {key}")
            for key, call in calls.items()
        }
    return {key: task.result() for key, task in tasks.items()}
