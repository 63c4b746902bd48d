"""Updates least-waste's mix of pods in the background, while requests are answered."""

import asyncio

import structlog

from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from process.clock import Clock

log = structlog.get_logger()


class WorkloadLearner:
    """Learns in steps of some milliseconds, so that kube-scheduler's requests are not delayed."""

    def __init__(self, order: LeastWasteOrder) -> None:
        self._order = order

    async def run(self, clock: Clock, *, every_s: float) -> None:
        """Learn the current mix of pods periodically, until cancelled."""
        while True:
            await self.once()
            await clock.sleep(every_s)

    async def once(self) -> bool:
        """Learn the mix of pods if it has changed; report whether it had."""
        before = self._order.times_learnt
        for _ in self._order.learning():
            await asyncio.sleep(0)
        if self._order.times_learnt == before:
            return False
        log.info("mix_learnt", classes=len(self._order.classes), states=self._order.states)
        return True
