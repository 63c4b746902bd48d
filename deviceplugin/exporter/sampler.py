"""Reads the cards at a steady pace and keeps the last picture for whoever scrapes us."""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from deviceplugin.cards.interface import Cards, CardSamples, CardsUnavailableError
from deviceplugin.exporter.attribution import Attribution
from deviceplugin.exporter.usage import UsageSnapshot, build_usage_snapshot
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock

log = structlog.get_logger()


class Sampler:
    """Collects in a loop of its own: a scrape never waits for a driver.

    Args:
        cards: what to read.
        tracker: which cards there are.
        attribution: whose processes they are.
        pods: this node's pods as last seen.
        clock: paces the readings and stamps the pictures.
        period_s: between two readings.
        metrics: counts the readings.
        on_round: told of every round of readings.
        on_picture: called in a thread after each picture.
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
        on_round: Callable[[CardSamples], None] = lambda _: None,
        on_picture: Callable[[], None] = lambda: None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._cards = cards
        self._tracker = tracker
        self._attribution = attribution
        self._pods = pods
        self._clock = clock
        self._period_s = period_s
        self._metrics = metrics
        self._on_round = on_round
        self._on_picture = on_picture
        self._beat = beat
        self._snapshot: UsageSnapshot | None = None
        self._problem: str | None = None

    def latest(self) -> UsageSnapshot | None:
        """Give the last picture, or None before the first; its age is the reader's to judge."""
        return self._snapshot

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            self._beat()
            await self.collect()
            await self._clock.sleep(self._period_s)

    async def collect(self) -> None:
        """Read once; what cannot be read leaves the last picture to grow old."""
        try:
            samples = await self._cards.read()
        except CardsUnavailableError as error:
            self._metrics.collected(success=False)
            self._note(str(error))
            return
        self._on_round(samples)
        taken_at_s = self._clock.now().timestamp()
        pids = {p.pid for it in samples.samples.values() for p in it.processes}
        owners = await asyncio.to_thread(self._attribution.owners, pids)
        self._snapshot = build_usage_snapshot(
            taken_at_s=taken_at_s,
            inventory=self._tracker.inventory,
            samples=samples,
            owners=owners,
            pods=self._pods(),
        )
        await asyncio.to_thread(self._on_picture)
        self._metrics.collected(success=not samples.errors)
        self._note(_troubles(samples))

    def _note(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.warning("cards_not_read", reason=problem)
        self._problem = problem


def _troubles(samples: CardSamples) -> str | None:
    if not samples.errors:
        return None
    return "; ".join(f"{card}: {reason}" for card, reason in sorted(samples.errors.items()))
