"""Teaches least-waste the mix of pods that this cluster runs, while requests are answered."""

import asyncio

import structlog

from fracgpu.placement.policies.least_waste.order import LeastWasteOrder
from process.clock import Clock

log = structlog.get_logger()


class WorkloadLearner:
    """Lets an order learn in steps of some milliseconds; kube-scheduler's requests come first."""

    def __init__(self, order: LeastWasteOrder) -> None:
        self._order = order

    async def run(self, clock: Clock, *, every_s: float) -> None:
        """Learn for ever; each time from the mix as it is by then."""
        while True:
            await self.once()
            await clock.sleep(every_s)

    async def once(self) -> bool:
        """Learn if the mix is another one than was learnt; tell whether it was."""
        before = self._order.times_learnt
        for _ in self._order.learning():
            await asyncio.sleep(0)
        if self._order.times_learnt == before:
            return False
        log.info("mix_learnt", classes=len(self._order.classes), states=self._order.states)
        return True
