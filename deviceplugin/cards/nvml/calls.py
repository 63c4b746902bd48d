"""Calls NVML with a time limit; what a card does not support is asked for only now and then."""

from collections.abc import Callable, Collection
from math import inf
from typing import Any, Final

import structlog

from deviceplugin.cards.call_thread import CallThread
from process.clock import Clock

log = structlog.get_logger()

# The card has no such metric, or the driver is too old for it: not an error, and not 0.
ABSENT: Final = (
    "NotSupported",
    "FunctionNotFound",
    "NoPermission",
    "NoData",
    "Deprecated",
    "ArgumentVersionMismatch",
)
# The kernel has a driver of another version than the library that this process has loaded. Only a
# new process loads another library.
_OUTDATED: Final = "LibRmVersionMismatch"
# The library has lost the driver as a whole: shut down and initialise again. "Unknown" is not among
# them: some drivers return it for a single card that fell off the bus.
_LOST: Final = ("Uninitialized", "DriverNotLoaded", "LibraryNotFound", _OUTDATED)

# Some drivers return these errors once, as while a card is reset: so they count only for a while.
ASK_AGAIN_S: Final = 300.0

# NVML_VALUE_NOT_AVAILABLE, and what the registers of a card that fell off the bus read as.
NO_VALUES: Final = (2**32 - 1, 2**64 - 1)

# pynvml calls twice, for the size and for the content; the list may grow between the two.
_SIZE_RACES: Final = 3


class NvmlCalls:
    """Calls of one thread into one library.

    NVML may be called from several threads at once (NVML's reference, "thread safe"), so each card
    has a thread of its own, and one that hangs holds up no other.

    Args:
        library: ``pynvml``, or something with its functions.
        timeout_s: limit of one call.
        clock: says when to ask again for what a card did not support.
        name: of the thread.
    """

    def __init__(self, library: Any, *, timeout_s: float, clock: Clock, name: str = "nvml") -> None:
        self.library: Final = library
        self._timeout_s = timeout_s
        self._clock = clock
        self._thread = CallThread(name)
        self._absent_until_s: dict[tuple[str, str], float] = {}
        self._failing: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Ask for everything again: the driver may be another one now."""
        self._absent_until_s.clear()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what *function* returns.

        Raises:
            StuckError: it, or a call before it, has not returned in time.
            NVMLError: the library returned an error; the type is the library's own.
        """
        return await self._thread.call(function, *args, timeout_s=self._timeout_s)

    async def figure(
        self, card: str, name: str, function: Callable[..., Any], *args: Any
    ) -> Any | None:
        """Return an optional metric; None where the library returns an error, or no value.

        A metric that the card does not have is asked for again after five minutes; any other error
        counts for this call only.

        Raises:
            StuckError: as :meth:`call`.
            NVMLError: the driver as a whole is lost.
        """
        if self.lacks(card, name):
            return None
        try:
            value = await self.call(function, *args)
        except self.library.NVMLError as error:
            self.missed(card, name, error)
            return None
        self._failing.discard((card, name))
        return None if isinstance(value, int) and value in NO_VALUES else value

    async def core(
        self, card: str, name: str, function: Callable[..., Any], *args: Any
    ) -> Any | None:
        """Return what a card cannot be shared without, asked for each time; None if it has none.

        Raises:
            StuckError: as :meth:`call`.
            NVMLError: the card does not answer, or the driver as a whole is lost.
        """
        try:
            return await self.call(function, *args)
        except self.library.NVMLError as error:
            if error_kind(error) not in ABSENT:
                raise
            self.drop(card, name, reason=str(error))
            return None

    async def listing(
        self,
        card: str,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        empty: Collection[int] = (),
    ) -> Any | None:
        """Return a list that may grow while it is read; None as :meth:`figure`.

        Args:
            card: the card.
            name: what is listed.
            function: returns the list.
            args: its arguments.
            empty: codes of errors that mean that the list is empty.
        """
        if self.lacks(card, name):
            return None
        for last in (*(False,) * (_SIZE_RACES - 1), True):
            try:
                value = await self.call(function, *args)
            except self.library.NVMLError as error:
                if error.value in empty:
                    return ()
                if error.value == self.library.NVML_ERROR_INSUFFICIENT_SIZE and not last:
                    continue
                self.missed(card, name, error)
                return None
            self._failing.discard((card, name))
            return value
        return None

    def missed(self, card: str, name: str, error: Exception) -> None:
        """Record that a metric returned *error*; raise it if the driver as a whole is lost."""
        if driver_is_lost(error):
            raise error
        if error_kind(error) in ABSENT:
            self.drop(card, name, reason=str(error))
        elif (card, name) not in self._failing:
            self._failing.add((card, name))
            log.warning("figure_failed", card=card, figure=name, reason=str(error))

    def drop(self, card: str, name: str, *, reason: str) -> None:
        """Do not ask a card for a metric for a while; the first time is logged."""
        if (card, name) not in self._absent_until_s:
            log.info("figure_dropped", card=card, figure=name, reason=reason)
        self._absent_until_s[card, name] = self._clock.monotonic() + ASK_AGAIN_S

    def lacks(self, card: str, name: str) -> bool:
        """Report whether *card* said lately that it does not have the metric."""
        return self._clock.monotonic() < self._absent_until_s.get((card, name), -inf)


def error_kind(error: Exception) -> str:
    """Return the name of an NVML error without its prefix, such as ``GpuIsLost``."""
    return type(error).__name__.removeprefix("NVMLError_")


def driver_is_lost(error: Exception) -> bool:
    """Report whether *error* means that the driver as a whole is lost."""
    return error_kind(error) in _LOST


def library_is_outdated(error: Exception) -> bool:
    """Report whether the driver was replaced since this process loaded the library."""
    return error_kind(error) == _OUTDATED
