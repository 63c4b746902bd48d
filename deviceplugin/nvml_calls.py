"""NVML's functions one at a time, each with a time limit; what a card lacks is asked for once."""

from collections.abc import Callable
from typing import Any, Final

import structlog

from deviceplugin.blocking import CallThread, StuckError
from deviceplugin.cards import CardsUnavailableError

log = structlog.get_logger()

# The card has no such figure, or the driver is too old to tell it: not an error, and not 0.
_ABSENT: Final = (
    "NotSupported",
    "FunctionNotFound",
    "NoPermission",
    "NoData",
    "Deprecated",
    "ArgumentVersionMismatch",
)
# The library has lost the driver as a whole: shut down and begin again. "Unknown" is not among
# them: that is what some drivers say of a single card that fell off the bus.
_LOST: Final = ("Uninitialized", "DriverNotLoaded", "LibraryNotFound", "LibRmVersionMismatch")

# pynvml asks twice, for the size and for the content; between the two something may have come.
_SIZE_RACES: Final = 3


class NvmlCalls:
    """Calls of one thread into one library.

    Args:
        library: ``pynvml``, or something with its functions.
        timeout_s: limit of one call.
    """

    def __init__(self, library: Any, *, timeout_s: float) -> None:
        self.library: Final = library
        self._timeout_s = timeout_s
        self._thread = CallThread("nvml")
        self._absent: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Ask again for everything: the driver may be another one now."""
        self._absent.clear()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call *function*.

        Raises:
            CardsUnavailableError: it, or a call before it, has not returned in time.
            NVMLError: what the library said; the type is the library's own.
        """
        try:
            return await self._thread.call(function, *args, timeout_s=self._timeout_s)
        except StuckError as error:
            raise CardsUnavailableError(f"NVML hangs: {error}") from error

    async def figure(
        self, card: str, name: str, function: Callable[..., Any], *args: Any
    ) -> Any | None:
        """Call for a figure that a card may not have: None then, and it is not asked for again."""
        if (card, name) in self._absent:
            return None
        try:
            return await self.call(function, *args)
        except self.library.NVMLError as error:
            if error_kind(error) not in _ABSENT:
                raise
            self.drop(card, name, reason=str(error))
            return None

    async def listing(
        self, card: str, name: str, function: Callable[..., Any], *args: Any
    ) -> Any | None:
        """Call for a list that may grow while it is read: None where the card has no such list.

        Raises:
            NVMLError: also ``NVML_ERROR_INSUFFICIENT_SIZE``, where it grew again and again.
        """
        for last in (*(False,) * (_SIZE_RACES - 1), True):
            try:
                return await self.figure(card, name, function, *args)
            except self.library.NVMLError as error:
                if last or error.value != self.library.NVML_ERROR_INSUFFICIENT_SIZE:
                    raise
        return None

    def drop(self, card: str, name: str, *, reason: str) -> None:
        """Ask a card no more for a figure, and say so."""
        self._absent.add((card, name))
        log.info("figure_dropped", card=card, figure=name, reason=reason)


def error_kind(error: Exception) -> str:
    """Name an NVML error without its prefix, such as ``GpuIsLost``."""
    return type(error).__name__.removeprefix("NVMLError_")


def driver_is_lost(error: Exception) -> bool:
    """Tell whether *error* speaks of the driver as a whole."""
    return error_kind(error) in _LOST
