"""Makes kube-scheduler look again at pods for which time alone has made room.

kube-scheduler tries a pod that an extender refused only after some event of the cluster, or after
five minutes. A cordon that lapses and an assumption that is dropped are no events: nobody writes
anything. So whoever waits and would now fit where that happened is marked, which is one.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

import structlog

from fracgpu.placement.fit_index import FITS, FitIndex
from fracgpu.request.need import Strategy
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from kube.errors import KubeError
from process.clock import Clock
from scheduler.cache.event_handlers import AnyPod
from scheduler.cache.pod_marker import PodMarker
from scheduler.fence import awaits_placement

log = structlog.get_logger()

_TICK_S: Final = 1.0
_AT_ONCE: Final = 50  # pods looked at in one tick; the others come with the next


class PodActivator:
    """Watches what lapses.

    Args:
        ledger: knows the cordons and assumptions.
        fit_index: says who fits where.
        pods: gives the pods as the API server last showed them.
        find: gives one of them anew, by namespace and name, if it still waits.
        marker: marks one.
        strategy: gives the cluster's default at the moment of asking.
        leads: whether this replica may write.
        clock: paces it, and tells what holds.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        ledger: Ledger,
        fit_index: FitIndex,
        *,
        pods: Callable[[], Iterable[AnyPod]],
        find: Callable[[str, str], PodInfo | None],
        marker: PodMarker,
        strategy: Callable[[], Strategy],
        leads: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._fit_index = fit_index
        self._pods = pods
        self._find = find
        self._marker = marker
        self._strategy = strategy
        self._leads = leads
        self._clock = clock
        self._closed: Mapping[object, str] = {}
        self._opened: frozenset[str] = frozenset()
        self._due: list[PodInfo] = []

    async def run(self) -> None:
        """Watch for ever, about once a second."""
        while True:
            await self.once()
            await self._clock.sleep(_TICK_S)

    async def once(self) -> int:
        """Look once; give the number of pods that were marked."""
        closed = self._what_is_closed(self._clock.now())
        opened = frozenset(node for it, node in self._closed.items() if it not in closed)
        self._closed = closed
        if opened:
            self._opened = opened | (self._opened if self._due else frozenset())
            waiting = (
                it for it in self._pods() if isinstance(it, PodInfo) and awaits_placement(it)
            )
            self._due = sorted(waiting, key=lambda it: -it.priority)
        looked_at, self._due = self._due[:_AT_ONCE], self._due[_AT_ONCE:]
        marked = 0
        for pod in looked_at:
            marked += await self._wake(pod)
        return marked

    def _what_is_closed(self, now: datetime) -> Mapping[object, str]:
        """Give each cordon and each assumption that holds now, with its node."""
        closed: dict[object, str] = {
            (name, uuid): name
            for name, node in self._ledger.nodes.items()
            if node.cordons
            for uuid in node.cordoned(now=now)
        }
        for uid, it in self._ledger.assumed.items():
            closed[uid] = it.allocation.node
        return closed

    async def _wake(self, pod: PodInfo) -> bool:
        record = pod.record
        now = self._find(record.namespace, record.name)
        if (
            now is None
            or now.record.uid != record.uid
            or not awaits_placement(now)
            or now.need is None
        ):
            return False
        answers = self._fit_index.ask(now.need, strategy=self._strategy(), now=self._clock.now())
        rows = self._fit_index.matrix.rows_of(sorted(self._opened))
        if not (answers.verdict[rows] == FITS).any() or not self._leads():
            return False
        try:
            await self._marker.mark(now.record)
        except (KubeError, TimeoutError, ValueError) as error:
            log.warning("pod_not_woken", pod=record.key, error=str(error))
            return False
        log.info("pod_woken", pod=record.key)
        return True
