"""Keeps least-waste's mix of pods, and what it knows of nodes, up to date between requests."""

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol

import structlog

from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from process.clock import Clock
from scheduler.metrics import RequestActivity

log = structlog.get_logger()

# Between two looks for what requests found unknown, where nothing in the cluster changes.
_LOOK_S: Final = 0.5
# While requests come in, a step is taken when one is answered, or else after this time. So most of
# them meet no step, and those that need long stop nothing.
_REST_S: Final = 0.01


class Changes(Protocol):
    """The changes of the cluster, as `scheduler.cache.change_signal` counts them."""

    @property
    def count(self) -> int: ...

    async def wait(self, clock: Clock, *, limit_s: float) -> bool: ...


class WorkloadLearner:
    """Learns in steps of some milliseconds, so that kube-scheduler's requests are not delayed."""

    def __init__(
        self,
        order: LeastWasteOrder,
        requests: RequestActivity | None = None,
        *,
        rest_s: float = _REST_S,
    ) -> None:
        self._order = order
        self._requests = requests or RequestActivity()
        self._rest_s = rest_s

    async def run(self, clock: Clock, changes: Changes, *, every_s: float) -> None:
        """Learn the current mix of pods periodically, and when it has grown, until cancelled.

        So a cluster that fills in its first minute is not filled blindly. In between, evaluate what
        requests left unknown or what *changes* made so.
        """
        if self._order.problem is not None:
            log.warning("fill_not_compiled", problem=self._order.problem, placed_by="pack")
        while True:
            await self.once()
            due_s = clock.monotonic() + every_s
            while (left_s := due_s - clock.monotonic()) > 0 and not self._order.grown:
                count = changes.count
                await self.catch_up()
                if changes.count == count:
                    await changes.wait(clock, limit_s=min(_LOOK_S, left_s))

    async def once(self) -> bool:
        """Learn the mix of pods if it has changed; report whether it had."""
        before = self._order.times_learnt
        await self._take(self._order.learning())
        if self._order.times_learnt == before:
            return False
        log.info("mix_learnt", classes=len(self._order.classes), states=self._order.states)
        return True

    async def catch_up(self) -> None:
        """Evaluate what is not known yet of the pods that were scored lately."""
        await self._take(self._order.catching_up())

    async def _take(self, steps: Iterator[None]) -> None:
        requests, observed, were_some = self._requests, self._requests.begun, False
        for _ in steps:
            await asyncio.sleep(0)
            are_some = requests.under_way or requests.begun != observed
            if are_some or were_some:
                await requests.gap(limit_s=self._rest_s)
            observed, were_some = requests.begun, are_some
