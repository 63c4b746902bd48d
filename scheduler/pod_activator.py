"""Makes kube-scheduler retry pods that fit because something that closed a card is over.

kube-scheduler retries a pod that an extender rejected only after an event of an object that it
watches, or after five minutes. The expiry of a cordon or an assumption writes no object, and it
does not watch Moves, whose reservations end. So pending pods that fit on the affected nodes are
marked, which is an event. A new leader does not know what ended while nobody led, and looks at all
nodes once.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

import structlog

from fracgpu.cards.card import CardUuid
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.placement import evaluate
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import PodAllocation
from kube.errors import KubeError
from process.clock import Clock
from scheduler.cache.event_handlers import AnyPod
from scheduler.cache.pod_marker import PodMarker
from scheduler.fence import awaits_placement

log = structlog.get_logger()

_TICK_S: Final = 1.0
_AT_ONCE: Final = 50  # pods checked in one tick; the others follow in the next
_NODES_AT_ONCE: Final = 500


class _Assumed(NamedTuple):
    """What an assumption counts, and where."""

    pod_uid: str
    node: str
    by_card: frozenset[tuple[CardUuid, CardAllocation]]


def _assumed_of(holds: PodAllocation) -> _Assumed:
    return _Assumed(holds.pod_uid, holds.node, frozenset(holds.by_card.items()))


class PodActivator:
    """Marks pods that fit after a cordon, an assumption or a reservation has ended.

    Args:
        ledger: has the cordons, assumptions and reservations.
        matrix: the cards.
        pods: returns the informer's pods.
        find: returns one of them by namespace and name, if it is still pending.
        marker: marks a pod.
        strategy: returns the cluster's current default.
        leads: whether this replica may write.
        clock: paces the loop, and the time at which cordons and assumptions are evaluated.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        ledger: Ledger,
        matrix: NodeMatrix,
        *,
        pods: Callable[[], Iterable[AnyPod]],
        find: Callable[[str, str], PodInfo | None],
        marker: PodMarker,
        strategy: Callable[[], Strategy],
        leads: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._matrix = matrix
        self._pods = pods
        self._find = find
        self._marker = marker
        self._strategy = strategy
        self._leads = leads
        self._clock = clock
        self._closed: Mapping[object, str] | None = None
        self._opened: frozenset[str] = frozenset()
        self._due: list[PodInfo] = []

    async def run(self) -> None:
        """Check about once a second, until cancelled."""
        while True:
            await self.once()
            await self._clock.sleep(_TICK_S)

    async def once(self) -> int:
        """Check once; return the number of pods that were marked."""
        closed = await self._what_is_closed(self._clock.now())
        first = self._closed is None
        opened = (
            frozenset(self._ledger.nodes)
            if self._closed is None
            else frozenset(
                node
                for what, node in self._closed.items()
                if what not in closed and not self._has_come_true(what)
            )
        )
        self._closed = closed
        if opened:
            self._opened = opened | (self._opened if self._due else frozenset())
            waiting = (
                pod
                for pod in self._pods()
                if isinstance(pod, PodInfo)
                and awaits_placement(pod)
                # What kube-scheduler has still to try needs no waking when we begin.
                and not (first and pod.unschedulable_since is None)
            )
            self._due = sorted(waiting, key=lambda pod: -pod.priority)
        looked_at, self._due = self._due[:_AT_ONCE], self._due[_AT_ONCE:]
        marked = 0
        for pod in looked_at:
            marked += await self._wake(pod)
        return marked

    async def _what_is_closed(self, now: datetime) -> Mapping[object, str]:
        """Return whatever closes a card now, with its node."""
        closed = await self._cordoned(now)
        for assumed in self._ledger.assumed.values():
            closed[_assumed_of(assumed.allocation)] = assumed.allocation.node
        for move, claims in self._ledger.reservations.claims.items():
            reservation, denial = claims.reservation, claims.denial
            if reservation is not None and reservation.until > now:
                closed[move, reservation.node, reservation.card] = reservation.node
            if denial is not None and denial.until > now:
                closed[move, denial.node, denial.card] = denial.node
            hold = claims.hold
            if hold is not None and hold.until > now and hold.pod_uid not in self._ledger.observed:
                closed[move, hold.node] = hold.node
        return closed

    async def _cordoned(self, now: datetime) -> dict[object, str]:
        found: dict[object, str] = {}
        for at, (name, node) in enumerate(tuple(self._ledger.nodes.items())):
            if at % _NODES_AT_ONCE == _NODES_AT_ONCE - 1:
                await self._clock.sleep(0)
            if node.cordons:
                found |= {(name, uuid): name for uuid in node.cordoned(now=now)}
        return found

    def _has_come_true(self, what: object) -> bool:
        """Report whether *what* is an assumption whose pod is seen to hold just that by now.

        So ends every Binding that takes effect; the cards are not free for anybody by that.
        """
        if not isinstance(what, _Assumed):
            return False
        observed = self._ledger.observed.get(what.pod_uid)
        return observed is not None and _assumed_of(observed) == what

    async def _wake(self, pod: PodInfo) -> bool:
        for _ in self._matrix.refreshing(self._clock.now):
            await self._clock.sleep(0)
        record = pod.record
        now = self._find(record.namespace, record.name)
        if (
            now is None
            or now.record.uid != record.uid
            or not awaits_placement(now)
            or record.uid in self._ledger.assumed  # its Binding is under way
            or now.need is None
        ):
            return False
        rows = self._matrix.rows_of(sorted(self._opened))
        found = evaluate(self._matrix, now.need, rows, strategy=self._strategy())
        if not found.fits.any() or not self._leads():
            return False
        try:
            await self._marker.mark(now.record)
        except (KubeError, TimeoutError, ValueError) as error:
            log.warning("pod_not_woken", pod=record.key, error=str(error))
            return False
        log.info("pod_woken", pod=record.key)
        return True
