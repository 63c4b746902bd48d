"""XID errors, which the driver reports once, to those who wait at that moment."""

import ctypes
import threading
from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any, Final

import structlog

from deviceplugin.cards.nvml.calls import ASK_AGAIN_S, error_kind
from process.clock import Clock

log = structlog.get_logger()

# The longest wait in the library, and so the longest time until the thread ends.
_WAIT_MS: Final = 500
_NO_EVENTS: Final = ("NotSupported", "FunctionNotFound", "NoPermission")


class XidWatch:
    """Counts the XID errors of each card, in a thread of its own because waiting blocks.

    The counts survive a shutdown of the library: a new driver does not undo a card's errors.

    Args:
        library: ``pynvml``, or something with its functions.
        clock: says when to ask again for cards that had no events.
    """

    def __init__(self, library: Any, clock: Clock) -> None:
        self._nvml = library
        self._clock = clock
        self._again_at_s = inf
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[int]] = {}
        self._last: dict[str, int] = {}
        self._cards: frozenset[str] = frozenset()
        self._end: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def keep(self, handles: Mapping[str, Any]) -> None:
        """Watch the cards in *handles*; no-op if they are watched already.

        Cards that have no events are left out, and tried again after five minutes. Blocks for up
        to a second.
        """
        cards = frozenset(handles)
        alive = self._thread is None or self._thread.is_alive()
        if alive and cards == self._cards and self._clock.monotonic() < self._again_at_s:
            return
        self._again_at_s = inf
        self.stop()
        try:
            self._start(handles)
        except self._nvml.NVMLError as error:
            if error_kind(error) not in _NO_EVENTS:
                log.warning("xid_watch_not_started", reason=str(error))
                return  # retried when the cards are listed next
            self._left_out("all", error)
        self._cards = cards

    def stop(self) -> None:
        """End the thread; blocks until it has ended, at most a second."""
        end, thread = self._end, self._thread
        self._end = self._thread = None
        self._cards = frozenset()
        if end is not None and thread is not None:
            end.set()
            thread.join(2 * _WAIT_MS / 1000)

    def last(self, card: str) -> int | None:
        """Return the code of the last error: 0 if there was none, None if it is not watched."""
        with self._lock:
            return self._last.get(card)

    def counts(self, card: str) -> Mapping[int, int]:
        """Return how often each code occurred."""
        with self._lock:
            return dict(self._counts.get(card, {}))

    def _start(self, handles: Mapping[str, Any]) -> None:
        events = self._nvml.nvmlEventSetCreate()
        watched = [uuid for uuid in handles if self._register(events, uuid, handles[uuid])]
        if not watched:
            self._nvml.nvmlEventSetFree(events)
            return
        with self._lock:
            for uuid in watched:
                self._counts.setdefault(uuid, Counter())
                self._last.setdefault(uuid, 0)
        end = threading.Event()
        cards = {_address(handles[uuid]): uuid for uuid in watched}
        thread = threading.Thread(target=self._run, args=(events, end, cards), name="nvml-xid")
        thread.daemon = True  # a wait that hangs in the driver must not block our exit
        self._end, self._thread = end, thread
        thread.start()

    def _register(self, events: Any, uuid: str, handle: Any) -> bool:
        kind = self._nvml.nvmlEventTypeXidCriticalError
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, kind, events)
        except self._nvml.NVMLError as error:
            self._left_out(uuid, error)
            return False
        return True

    def _left_out(self, card: str, error: Exception) -> None:
        self._again_at_s = self._clock.monotonic() + ASK_AGAIN_S
        log.info("figure_dropped", card=card, figure="xid", reason=str(error))

    def _run(self, events: Any, end: threading.Event, cards: Mapping[int | None, str]) -> None:
        nvml = self._nvml
        while not end.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    continue
                # The next listing of the cards starts a new watch, on those that are still there.
                log.warning("xid_watch_ended", reason=str(error), kind=error_kind(error))
                return
            self._note(self._card_of(event.device, cards), int(event.eventData))
        try:
            nvml.nvmlEventSetFree(events)
        except nvml.NVMLError as error:
            log.warning("xid_watch_not_freed", reason=str(error))

    def _card_of(self, handle: Any, cards: Mapping[int | None, str]) -> str:
        """Return the UUID of a card, which one that has just been lost cannot say any more."""
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
        except self._nvml.NVMLError:
            return cards.get(_address(handle), "")
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def _note(self, card: str, code: int) -> None:
        with self._lock:
            self._counts.setdefault(card, Counter())[code] += 1
            self._last[card] = code
        log.warning("xid_error", card=card, xid=code)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
