"""Keeps the page's documents up to date, but only while somebody looks at it.

A node's document is made anew only when the ledger folded the node anew or a pod on it changed, so
a quiet cluster costs next to nothing. The work is done in slices, so that it delays no answer to
kube-scheduler.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.move_object import Move
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import NodeInfo
from kube.informer import Change, ChangeType
from process.clock import Clock, wait_at_most
from scheduler.cache.event_handlers import AnyPod
from scheduler.core import SchedulerCore
from scheduler.page.documents import (
    AboutDocument,
    HolderName,
    encode,
    move_document,
    node_document,
    waiting_document,
)
from scheduler.page.filter_answers import FilterAnswers
from scheduler.page.pieces import Pieces
from scheduler.waiting_pods import WaitingPods

ABOUT: Final = "about"
NODE: Final = "node/"
MOVE: Final = "move/"
WAITING: Final = "waiting/"

_PERIOD_S: Final = 1.0
_SLICE_S: Final = 0.004  # at most so long without a turn for others
_MOST_MOVES: Final = 200
_MOST_WAITING: Final = 200
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Final[Mapping[CardUuid, CardAllocation]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """What the page says of the whole cluster besides counts."""

    leader: str
    strategy: Strategy
    hot_ratio: float
    moves_served: bool = True


class Board:
    """The documents, and who looks at them.

    Args:
        core: the cache, which is read only.
        answers: the last answers to kube-scheduler.
        facts: returns what concerns the whole page now.
        clock: the time at which cordons and heat are evaluated; paces the loop.
        epoch: a name of this instance, see `Pieces`.

    Attributes:
        claim_status: returns how far the claim of a waiting pod has come, where we make claims.
    """

    def __init__(
        self,
        core: SchedulerCore,
        answers: FilterAnswers,
        *,
        facts: Callable[[], PageFacts],
        clock: Clock,
        epoch: str,
    ) -> None:
        self._core = core
        self._answers = answers
        self._facts = facts
        self._clock = clock
        self.pieces: Final = Pieces(epoch)
        self.waiting: Final = WaitingPods(clock)
        self.claim_status: Callable[[PodInfo], str] = lambda _: ""
        self._moves: dict[str, Move] = {}
        self._shown: dict[str, NodeInfo] = {}
        self._touched: set[str] = set()
        self._moves_changed = True
        self._watchers = 0
        self._wanted = asyncio.Event()
        self._fresh = asyncio.Event()
        self._changed = asyncio.Event()

    # -- what happens in the cluster -------------------------------------------------------------

    def pod_changed(self, change: Change[AnyPod]) -> None:
        """Take notice of a pod; call it after the cache has it."""
        self.waiting.pod_changed(change)
        if isinstance(change.object, BoundPod):
            self._touched.add(change.object.node)

    def move_changed(self, change: Change[Move]) -> None:
        """Take notice of a Move."""
        if change.type is ChangeType.DELETED:
            self._moves.pop(change.key.name, None)
        else:
            self._moves[change.key.name] = change.object
        self._moves_changed = True

    def waiting_pod(self, namespace: str, name: str) -> PodInfo | None:
        """Return a pod that waits for its cards, or None."""
        key = f"{namespace}/{name}"
        return next((pod for pod in self.waiting.by_uid.values() if pod.record.key == key), None)

    # -- who looks -------------------------------------------------------------------------------

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Keep the documents up to date while the block runs; it begins once they are."""
        self._watchers += 1
        self._wanted.set()
        try:
            await self._fresh.wait()
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._wanted.clear()
                self._fresh.clear()

    async def wait_changed(self, version: int, *, limit_s: float) -> bool:
        """Wait at most *limit_s* for a version after *version*; return whether there is one."""
        if self.pieces.version <= version:
            await wait_at_most(self._clock, self._changed, limit_s=limit_s)
        return self.pieces.version > version

    def wake(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    # -- the documents ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Bring the documents up to date once a second while somebody looks, until cancelled."""
        while True:
            await self._wanted.wait()
            await self.refresh()
            self._fresh.set()
            await self._clock.sleep(_PERIOD_S)

    async def refresh(self) -> None:
        """Bring the documents up to date."""
        before = self.pieces.version
        await self._refresh_nodes(self._clock.now())
        self._refresh_moves()
        await asyncio.sleep(0)
        self._refresh_waiting()
        self._refresh_about()
        if self.pieces.version != before:
            self.wake()

    async def _refresh_nodes(self, now: datetime) -> None:
        ledger = self._core.ledger
        touched, self._touched = self._touched, set()
        began_s = self._clock.monotonic()
        for name in list(ledger.nodes):
            node_info = ledger.node(name, now=now)
            if node_info is None or not (node_info.cards or node_info.node.shared):
                self._hide(name)
            elif self._shown.get(name) is not node_info or name in touched:
                self._shown[name] = node_info
                self.pieces.put(f"{NODE}{name}", self._node_body(node_info))
            if self._clock.monotonic() - began_s > _SLICE_S:
                await asyncio.sleep(0)
                began_s = self._clock.monotonic()
        for name in [name for name in self._shown if name not in ledger.nodes]:
            self._hide(name)

    def _hide(self, name: str) -> None:
        if self._shown.pop(name, None) is not None:
            self.pieces.remove(f"{NODE}{name}")

    def _node_body(self, node_info: NodeInfo) -> bytes:
        unsure = any(card_info.unplaced_mib for card_info in node_info.cards.values())
        document = node_document(
            node_info,
            holder=self._holder,
            held=self._held,
            unplaced=self._unplaced_on(node_info.node.node) if unsure else "",
            waiting=lambda uid: self._holder(uid).pod,
        )
        return encode(document)

    def _holder(self, uid: str) -> HolderName:
        bound = self._core.bound_pods.get(uid)
        if bound is not None:
            name = f"{bound.namespace}/{bound.name}"
            return HolderName(pod=name, terminating=bound.terminating)
        pending = self.waiting.by_uid.get(uid)
        assumed = uid in self._core.ledger.assumed
        return HolderName(pod=pending.record.key if pending else uid, assumed=assumed)

    def _held(self, uid: str) -> Mapping[CardUuid, CardAllocation]:
        observed = self._core.ledger.observed.get(uid)
        if observed is not None:
            return observed.by_card
        assumed = self._core.ledger.assumed.get(uid)
        return assumed.allocation.by_card if assumed is not None else _NOTHING

    def _unplaced_on(self, node: str) -> str:
        observed = self._core.ledger.observed
        uids = (uid for uid in self._core.ledger.pods_on(node) if uid in observed)
        return ", ".join(
            sorted(self._holder(uid).pod for uid in uids if observed[uid].unplaced is not None)
        )

    def _refresh_moves(self) -> None:
        if not self._moves_changed:
            return
        self._moves_changed = False
        newest = heapq.nlargest(
            _MOST_MOVES,
            self._moves.values(),
            key=lambda move: (move.metadata.creation_timestamp or _LONG_AGO, move.name),
        )
        self._replace(MOVE, {move.name: encode(move_document(move)) for move in newest})

    def _refresh_waiting(self) -> None:
        longest = heapq.nsmallest(
            _MOST_WAITING,
            self.waiting.by_uid.values(),
            key=lambda pod: (
                pod.unschedulable_since or pod.created_at or _LONG_AGO,
                pod.record.key,
            ),
        )
        bodies = {
            pod.record.key: encode(
                waiting_document(
                    pod, self._answers.get(pod.record.uid), claim=self.claim_status(pod)
                )
            )
            for pod in longest
        }
        self._replace(WAITING, bodies)

    def _replace(self, prefix: str, bodies: Mapping[str, bytes]) -> None:
        for key in self.pieces.keys(prefix):
            if key.removeprefix(prefix) not in bodies:
                self.pieces.remove(key)
        for name, body in bodies.items():
            self.pieces.put(f"{prefix}{name}", body)

    def _refresh_about(self) -> None:
        facts = self._facts()
        document = AboutDocument(
            leader=facts.leader,
            strategy=facts.strategy.value,
            hot_ratio=facts.hot_ratio,
            waiting=len(self.waiting.by_uid),
            moves=len(self._moves),
            moves_served=facts.moves_served,
        )
        self.pieces.put(ABOUT, encode(document))
