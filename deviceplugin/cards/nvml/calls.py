"""NVML's functions one at a time, each with a time limit; what a card lacks is asked for once."""

from collections.abc import Callable, Collection
from typing import Any, Final

import structlog

from deviceplugin.cards.call_thread import CallThread

log = structlog.get_logger()

# The card has no such figure, or the driver is too old to tell it: not an error, and not 0.
ABSENT: Final = (
    "NotSupported",
    "FunctionNotFound",
    "NoPermission",
    "NoData",
    "Deprecated",
    "ArgumentVersionMismatch",
)
# The kernel has another driver than the library that this process has loaded. Only a new process
# loads another library.
_OUTDATED: Final = "LibRmVersionMismatch"
# The library has lost the driver as a whole: shut down and begin again. "Unknown" is not among
# them: that is what some drivers say of a single card that fell off the bus.
_LOST: Final = ("Uninitialized", "DriverNotLoaded", "LibraryNotFound", _OUTDATED)

# pynvml asks twice, for the size and for the content; between the two something may have come.
_SIZE_RACES: Final = 3


class NvmlCalls:
    """Calls of one thread into one library.

    NVML may be called from several threads at once (NVML's reference, "thread safe"), so each card
    has a thread of its own, and one that hangs holds up no other.

    Args:
        library: ``pynvml``, or something with its functions.
        timeout_s: limit of one call.
        name: of the thread.
    """

    def __init__(self, library: Any, *, timeout_s: float, name: str = "nvml") -> None:
        self.library: Final = library
        self._timeout_s = timeout_s
        self._thread = CallThread(name)
        self._absent: set[tuple[str, str]] = set()
        self._failing: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Ask again for everything: the driver may be another one now."""
        self._absent.clear()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call *function*.

        Raises:
            StuckError: it, or a call before it, has not returned in time.
            NVMLError: what the library said; the type is the library's own.
        """
        return await self._thread.call(function, *args, timeout_s=self._timeout_s)

    async def figure(
        self, card: str, name: str, function: Callable[..., Any], *args: Any
    ) -> Any | None:
        """Call for a figure that a card may do without: None where the library gives an error.

        A figure that the card does not have is not asked for again; any other error counts for
        this call only.

        Raises:
            StuckError: as :meth:`call`.
            NVMLError: the driver as a whole is lost.
        """
        if (card, name) in self._absent:
            return None
        try:
            value = await self.call(function, *args)
        except self.library.NVMLError as error:
            self.missed(card, name, error)
            return None
        self._failing.discard((card, name))
        return value

    async def core(
        self, card: str, name: str, function: Callable[..., Any], *args: Any
    ) -> Any | None:
        """Call for what a card cannot be shared without: None where it does not have it.

        Raises:
            StuckError: as :meth:`call`.
            NVMLError: the card does not answer, or the driver as a whole is lost.
        """
        if (card, name) in self._absent:
            return None
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
        """Call for a list that may grow while it is read: None as :meth:`figure`.

        Args:
            card: whose list.
            name: what it lists.
            function: gives the list.
            args: what it wants to know.
            empty: codes of errors that say that there is nothing on the list.
        """
        if (card, name) in self._absent:
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
        """Take notice that a figure gave an error; raises it if the driver as a whole is lost."""
        if driver_is_lost(error):
            raise error
        if error_kind(error) in ABSENT:
            self.drop(card, name, reason=str(error))
        elif (card, name) not in self._failing:
            self._failing.add((card, name))
            log.warning("figure_failed", card=card, figure=name, reason=str(error))

    def drop(self, card: str, name: str, *, reason: str) -> None:
        """Ask a card no more for a figure, and say so."""
        self._absent.add((card, name))
        log.info("figure_dropped", card=card, figure=name, reason=reason)

    def lacks(self, card: str, name: str) -> bool:
        """Tell whether *card* has said that it does not have the figure."""
        return (card, name) in self._absent


def error_kind(error: Exception) -> str:
    """Name an NVML error without its prefix, such as ``GpuIsLost``."""
    return type(error).__name__.removeprefix("NVMLError_")


def driver_is_lost(error: Exception) -> bool:
    """Tell whether *error* speaks of the driver as a whole."""
    return error_kind(error) in _LOST


def library_is_outdated(error: Exception) -> bool:
    """Tell whether the driver was replaced beneath the library that this process has loaded."""
    return error_kind(error) == _OUTDATED
