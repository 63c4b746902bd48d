"""Writes the load of the node's cards on the Node object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from deviceplugin.exporter.load import LoadAverage, NodeLoad
from deviceplugin.exporter.usage import UsageSnapshot
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import NodeState
from fracgpu import names
from fracgpu.cards.annotations import (
    read_foreign,
    write_foreign,
    write_heat,
    write_time,
    write_used,
)
from fracgpu.errors import WireError
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import NODES
from process.clock import Clock

log = structlog.get_logger()

# An unchanged load gets a new timestamp as often as kubelet writes its node's status
# (``nodeStatusReportFrequency``); readers accept heat for three times as long.
_RENEW_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timestamped:
    """The load on the node, and since when: by the monotonic clock, and by the wall clock."""

    load: NodeLoad
    at_s: float
    at: datetime


class LoadAnnotator:
    """Follows the usage snapshots, and patches the node when its load annotations should differ.

    It also restores annotations that were removed.

    Args:
        node: its name.
        load: averages, and decides what to write.
        latest: the latest usage snapshot, or None before the first.
        current: the node as last seen, or None.
        writer: writes it.
        clock: paces the comparisons.
        period_s: between two comparisons.
        metrics: counts the writes.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        node: str,
        load: LoadAverage,
        latest: Callable[[], UsageSnapshot | None],
        current: Callable[[], NodeState | None],
        writer: KubeClient,
        clock: Clock,
        period_s: float,
        metrics: DevicePluginMetrics,
    ) -> None:
        self._node = node
        self._load = load
        self._latest = latest
        self._current = current
        self._writer = writer
        self._clock = clock
        self._period_s = period_s
        self._metrics = metrics
        self._observed: UsageSnapshot | None = None
        self._remembered = False
        self._timestamped: _Timestamped | None = None

    async def run(self) -> None:
        """Keep the annotations right until cancelled."""
        while True:
            await self.sync()
            await self._clock.sleep(self._period_s)

    async def sync(self) -> None:
        """Compare once, and write what differs."""
        snapshot, now_s = self._latest(), self._clock.monotonic()
        if snapshot is not None and snapshot is not self._observed:
            self._observed = snapshot
            self._load.observe(snapshot, now_s=now_s)
        have = self._current()
        if have is None or not have.shares:
            return  # others remove the marks of a node that no longer shares
        self._remember(have)
        load = self._load.load_to_write(now_s=now_s)
        if load is None:
            return
        desired = _annotations(load, have, at=self._timestamp(load, now_s))
        changed = {key: text for key, text in desired.items() if have.annotations.get(key) != text}
        if not changed:
            return
        try:
            await self._writer.patch(NODES, self._node, {"metadata": {"annotations": changed}})
        except KubeError as error:
            self._metrics.node_written("failed")
            log.warning("load_not_written", node=self._node, reason=str(error))
            return
        self._metrics.node_written("load_written")
        log.info("load_written", node=self._node, **changed)

    def _remember(self, have: NodeState) -> None:
        """Read the earlier agent's annotation, once: a card may not be readable now."""
        if self._remembered:
            return
        self._remembered = True
        try:
            self._load.remember(read_foreign(have.annotations.get(names.NODE_FOREIGN, "")))
        except WireError as error:
            log.warning("foreign_not_remembered", node=self._node, reason=str(error))

    def _timestamp(self, load: NodeLoad, now_s: float) -> datetime:
        """Return the timestamp of *load*: when it was first written, renewed from time to time."""
        last = self._timestamped
        if last is None or last.load is not load or now_s - last.at_s >= _RENEW_S:
            last = self._timestamped = _Timestamped(load=load, at_s=now_s, at=self._clock.now())
        return last.at


def _annotations(load: NodeLoad, have: NodeState, *, at: datetime) -> Mapping[str, str]:
    """Return the annotations for *load*; where another plugin offers the cards, empty ones."""
    if have.others:
        ours = (names.NODE_HEAT, names.NODE_FOREIGN, names.NODE_USED)
        return {key: "{}" for key in ours if key in have.annotations}
    return {
        names.NODE_HEAT: write_heat(load.heat),
        names.NODE_FOREIGN: write_foreign(load.foreign),
        names.NODE_USED: write_used(load.used),
        names.NODE_LOAD_TIME: write_time(at),
    }
