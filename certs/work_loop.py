"""A loop that reconciles when an object has changed and when something is due."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

import structlog

from certs.metrics import CertsMetrics
from kube.errors import KubeError
from kube.transport import ServerVersion
from process.clock import Clock, wait_at_most

log = structlog.get_logger()

LOOK_AT_LEAST_EVERY: Final = timedelta(minutes=5)
# While replicas may serve an older certificate.
REPLICAS_EVERY: Final = timedelta(seconds=10)
_RETRY: Final = timedelta(seconds=5)
# The loop runs again after each write, with growing pauses in case a write never takes effect.
_AGAIN_FIRST: Final = timedelta(milliseconds=20)
_AGAIN_DOUBLINGS: Final = 8


# Beyond these a certificate made now is not valid yet for the API server, or much too short.
_MOST_AHEAD: Final = timedelta(minutes=4)
_MOST_BEHIND: Final = timedelta(days=1)


class ClockDiffers(Exception):  # noqa: N818 - says what is wrong
    """This machine's clock and the API server's do not agree."""


class LookAgain(Exception):  # noqa: N818 - not an error
    """What was read is stale: an object was written since, by us or by another writer."""


class WorkLoop(ABC):
    """Reads everything again in each pass, so that a restart loses no state.

    Args:
        clock: this machine's.
        metrics: count what failed.
        server: asks the API server for its time; nothing is done while the two differ.
    """

    def __init__(
        self,
        clock: Clock,
        metrics: CertsMetrics,
        *,
        server: Callable[[], Awaitable[ServerVersion]] | None = None,
    ) -> None:
        self._clock = clock
        self._server = server
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._restless = 0
        self.problem: str | None = "not reconciled yet"
        """Why the desired state is not reached, or None; the readiness check."""

    @abstractmethod
    async def _go_round(self, now: datetime) -> timedelta:
        """Bring everything closer to the desired state; return how long to wait for the next pass.

        Raises:
            LookAgain: something was written.
            KubeError: the API server did not answer, or refused.
        """

    def wake(self) -> None:
        """Wake the loop: an object that it reads may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            self._changed.clear()
            pause = await self.run_once()
            await wait_at_most(self._clock, self._changed, limit_s=pause.total_seconds())

    async def run_once(self) -> timedelta:
        """Reconcile once; return how long to wait for the next pass."""
        try:
            await self._compare_clocks()
            pause = await self._go_round(self._clock.now())
        except ClockDiffers as error:
            if str(error) != self.problem:
                log.warning("clock_differs", reason=str(error))
            self.problem = str(error)
            return _RETRY
        except LookAgain:
            self._restless = min(self._restless + 1, _AGAIN_DOUBLINGS)
            return _AGAIN_FIRST * (1 << self._restless)
        except KubeError as error:
            self.problem = str(error)
            self._metrics.failed(reason=error.reason)
            log.warning("certificates_not_checked", reason=str(error))
            return _RETRY
        self._restless = 0
        return pause

    async def _compare_clocks(self) -> None:
        """Raise if a certificate that is made now would be no good for the API server."""
        if self._server is None:
            return
        before = self._clock.now()
        answer = await self._server()
        ahead = answer.ahead(before=before, after=self._clock.now())
        if ahead is None or -_MOST_BEHIND <= ahead <= _MOST_AHEAD:
            return
        minutes = round(abs(ahead) / timedelta(minutes=1))
        where = "ahead of" if ahead > timedelta(0) else "behind"
        raise ClockDiffers(
            f"this machine's clock is {minutes} minutes {where} the API server's, for which a "
            "certificate made now would not be valid; set one of them right (NTP)"
        )
