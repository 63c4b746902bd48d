"""Publishes the load of the node's cards on the node object."""

from collections.abc import Callable, Mapping

import structlog

from deviceplugin.capacity import NodeState
from deviceplugin.load import Load, SlowLoad
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.report import NodeWriter
from deviceplugin.usage import UsagePicture
from fracgpu import names
from fracgpu.wire import write_foreign, write_heat
from kube.errors import KubeError
from kube.kinds import NODES
from process.clock import Clock

log = structlog.get_logger()


class LoadReport:
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
        load: SlowLoad,
        picture: Callable[[], UsagePicture | None],
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
        self._seen: UsagePicture | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.round()
            await self._clock.sleep(self._period_s)

    async def round(self) -> None:
        """Look once, and write what differs."""
        picture, now_s = self._picture(), self._clock.monotonic()
        if picture is not None and picture is not self._seen:
            self._seen = picture
            self._load.observe(picture, now_s=now_s)
        load, have = self._load.say(now_s=now_s), self._current()
        if load is None or have is None or not have.shares:
            return  # what stands on a node that shares no more is taken back by others of us
        wanted = _annotations(load, have)
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


def _annotations(load: Load, have: NodeState) -> Mapping[str, str]:
    """Write *load* down; on a node that another plugin counts, nothing but the end of it."""
    if have.others:
        ours = (names.NODE_HEAT, names.NODE_FOREIGN)
        return {key: "{}" for key in ours if key in have.annotations}
    return {
        names.NODE_HEAT: write_heat(load.heat),
        names.NODE_FOREIGN: write_foreign(load.foreign),
    }
