"""A loop that reconciles when an object has changed and when something is due."""

import asyncio
from abc import ABC, abstractmethod
from datetime import datetime, timedelta
from typing import Final

import structlog

from certs.metrics import CertsMetrics
from kube.errors import KubeError
from process.clock import Clock, wait_at_most

log = structlog.get_logger()

LOOK_AT_LEAST_EVERY: Final = timedelta(minutes=5)
# While replicas may serve an older certificate.
REPLICAS_EVERY: Final = timedelta(seconds=10)
_RETRY: Final = timedelta(seconds=5)
# The loop runs again after each write, with growing pauses in case a write never takes effect.
_AGAIN_FIRST: Final = timedelta(milliseconds=20)
_AGAIN_DOUBLINGS: Final = 8


class LookAgain(Exception):  # noqa: N818 - not an error
    """What was read is stale: an object was written since, by us or by another writer."""


class WorkLoop(ABC):
    """Reads everything again in each pass, so that a restart loses no state."""

    def __init__(self, clock: Clock, metrics: CertsMetrics) -> None:
        self._clock = clock
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
            pause = await self._go_round(self._clock.now())
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
