"""Reads the cards periodically and keeps the latest usage snapshot for scrapes."""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from deviceplugin.cards.interface import Cards, CardSamples, CardsUnavailableError
from deviceplugin.exporter.attribution import Attribution
from deviceplugin.exporter.overuse import OveruseWatch
from deviceplugin.exporter.usage import Counted, UsageSnapshot, build_usage_snapshot
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock

log = structlog.get_logger()


class Sampler:
    """Reads in a loop of its own, so that a scrape never waits for a driver.

    Args:
        cards: what to read.
        tracker: the node's inventory.
        attribution: finds the pods of processes.
        pods: this node's pods as last seen.
        clock: paces the readings and timestamps the snapshots.
        period_s: between two readings.
        metrics: counts the readings.
        counted: returns what driver or kernel say of containers; called in a thread.
        on_samples: called with the samples of each reading.
        on_snapshot: called in a thread after each snapshot.
        beat: called before each reading.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        cards: Cards,
        tracker: InventoryTracker,
        attribution: Attribution,
        pods: Callable[[], Iterable[PodInfo]],
        clock: Clock,
        period_s: float,
        metrics: DevicePluginMetrics,
        counted: Callable[[], Counted] = dict,
        on_samples: Callable[[CardSamples], None] = lambda _: None,
        on_snapshot: Callable[[], None] = lambda: None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._cards = cards
        self._tracker = tracker
        self._attribution = attribution
        self._pods = pods
        self._clock = clock
        self._period_s = period_s
        self._metrics = metrics
        self._counted = counted
        self.overuse = OveruseWatch()
        self._on_samples = on_samples
        self._on_snapshot = on_snapshot
        self._beat = beat
        self._latest: UsageSnapshot | None = None
        self._problem: str | None = None

    def latest(self) -> UsageSnapshot | None:
        """Return the latest snapshot, however old, or None before the first."""
        return self._latest

    async def run(self) -> None:
        """Read the cards until cancelled."""
        while True:
            self._beat()
            await self.collect()
            await self._clock.sleep(self._period_s)

    async def collect(self) -> None:
        """Read the cards once; if that fails, the latest snapshot stays."""
        try:
            samples = await self._cards.read()
        except CardsUnavailableError as error:
            self._metrics.collected(success=False)
            self._set_problem(str(error))
            return
        self._on_samples(samples)
        taken_at_s = self._clock.now().timestamp()
        pids = {process.pid for sample in samples.samples.values() for process in sample.processes}
        owners = await asyncio.to_thread(self._attribution.owners, pids)
        counted = await asyncio.to_thread(self._counted)
        self._latest = build_usage_snapshot(
            taken_at_s=taken_at_s,
            inventory=self._tracker.inventory,
            samples=samples,
            owners=owners,
            pods=self._pods(),
            counted=counted,
        )
        self.overuse.observe(self._latest, now_s=self._clock.monotonic())
        await asyncio.to_thread(self._on_snapshot)
        self._metrics.collected(success=not samples.errors)
        self._set_problem(_error_text(samples))

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.warning("cards_not_read", reason=problem)
        self._problem = problem


def _error_text(samples: CardSamples) -> str | None:
    if not samples.errors:
        return None
    return "; ".join(f"{card}: {reason}" for card, reason in sorted(samples.errors.items()))
