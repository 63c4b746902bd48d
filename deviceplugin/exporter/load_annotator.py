"""Publishes the load of the node's cards on the node object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from deviceplugin.exporter.load import LoadAverage, NodeLoad
from deviceplugin.exporter.usage import UsageSnapshot
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import NodeState
from deviceplugin.node.node_status import NodeWriter
from fracgpu import names
from fracgpu.cards.annotations import read_foreign, write_foreign, write_heat, write_time
from fracgpu.errors import WireError
from kube.errors import KubeError
from kube.kinds import NODES
from process.clock import Clock

log = structlog.get_logger()

# What has not changed is stood by as often as kubelet does with its node's status
# (``nodeStatusReportFrequency``); readers believe heat for three times as long.
_CONFIRM_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamped:
    """What the node says, and since when: by a clock that never goes back, and by the calendar."""

    load: NodeLoad
    at_s: float
    at: datetime


class LoadAnnotator:
    """Looks at each picture of the cards, and patches the node when it should say something else.

    It also puts back what somebody has taken away.

    Args:
        node: its name.
        load: averages and decides.
        picture: the last picture of the cards, or None.
        current: the node as last seen, or None.
        writer: writes it.
        clock: paces the rounds.
        period_s: between two rounds.
        metrics: counts the writes.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        node: str,
        load: LoadAverage,
        picture: Callable[[], UsageSnapshot | None],
        current: Callable[[], NodeState | None],
        writer: NodeWriter,
        clock: Clock,
        period_s: float,
        metrics: DevicePluginMetrics,
    ) -> None:
        self._node = node
        self._load = load
        self._picture = picture
        self._current = current
        self._writer = writer
        self._clock = clock
        self._period_s = period_s
        self._metrics = metrics
        self._seen: UsageSnapshot | None = None
        self._remembered = False
        self._stamped: _Stamped | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.round()
            await self._clock.sleep(self._period_s)

    async def round(self) -> None:
        """Look once, and write what differs."""
        snapshot, now_s = self._picture(), self._clock.monotonic()
        if snapshot is not None and snapshot is not self._seen:
            self._seen = snapshot
            self._load.observe(snapshot, now_s=now_s)
        have = self._current()
        if have is None or not have.shares:
            return  # what stands on a node that shares no more is taken back by others of us
        self._remember(have)
        load = self._load.say(now_s=now_s)
        if load is None:
            return
        wanted = _annotations(load, have, at=self._stamp(load, now_s))
        changed = {key: text for key, text in wanted.items() if have.annotations.get(key) != text}
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
        """Take over, once, what the agent before us said: a card may not be readable now."""
        if self._remembered:
            return
        self._remembered = True
        try:
            self._load.remember(read_foreign(have.annotations.get(names.NODE_FOREIGN, "")))
        except WireError as error:
            log.warning("foreign_not_remembered", node=self._node, reason=str(error))

    def _stamp(self, load: NodeLoad, now_s: float) -> datetime:
        """Say when *load* was last stood by: when it began to be said, and from time to time."""
        last = self._stamped
        if last is None or last.load is not load or now_s - last.at_s >= _CONFIRM_S:
            last = self._stamped = _Stamped(load=load, at_s=now_s, at=self._clock.now())
        return last.at


def _annotations(load: NodeLoad, have: NodeState, *, at: datetime) -> Mapping[str, str]:
    """Write *load* down; on a node that another plugin counts, nothing but the end of it."""
    if have.others:
        ours = (names.NODE_HEAT, names.NODE_FOREIGN)
        return {key: "{}" for key in ours if key in have.annotations}
    return {
        names.NODE_HEAT: write_heat(load.heat),
        names.NODE_FOREIGN: write_foreign(load.foreign),
        names.NODE_LOAD_TIME: write_time(at),
    }
