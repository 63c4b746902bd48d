"""The strategy ``least-waste`` in the extender: fed by the books, learning from the pods it sees.

What it takes to judge a node, `fracgpu.policies.least_waste`, is worked out beforehand and between
requests. Until that is done for the first time, cards' own scores decide (the tightest card).
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from fracgpu.board import SHARES, USABLE, Board, Rows
from fracgpu.bookings import BoundPod
from fracgpu.card import NO_HOST, CardUuid
from fracgpu.policies.least_waste import LeastWaste
from fracgpu.policies.node_table import NodeFree
from fracgpu.policies.waste import MAX_CARDS
from fracgpu.policies.workload_mix import WHOLE_CARD_MILLI, Want, WorkloadMix, drift_ratio
from fracgpu.request import PodNeed
from fracgpu.resources import requested
from fracgpu.views import PodView
from process.clock import Clock
from scheduler.roster import Roster

log = structlog.get_logger()

# Nodes that fit are never judged worse than this, so that nodes unknown to the policy come last.
_WORST_JUDGED: Final = 0.1
_DRIFT_RATIO: Final = 0.05
_PODS_AT_ONCE: Final = 500
_WANTS_REMEMBERED: Final = 64
_UNBOUNDED_MILLI: Final = 10**9


class WasteOrder:
    """Judges nodes, and chooses cards, by what the cluster would lose.

    Args:
        board: the cards.
        roster: CPU and memory that pods take.
        clock: paces the learning.
        every_s: pause between two looks at whether the mix has changed.
    """

    def __init__(self, board: Board, roster: Roster, clock: Clock, *, every_s: float) -> None:
        self._board = board
        self._roster = roster
        self._clock = clock
        self._every_s = every_s
        self._mix = WorkloadMix()
        self._folded = False
        self._feed: _Feed | None = None

    @property
    def learnt(self) -> bool:
        """Whether it judges already."""
        return self._feed is not None

    def saw(self, pod: BoundPod) -> None:
        """Count a pod that is new to the books towards the mix."""
        if self._folded:
            self._count(pod)

    def _count(self, pod: BoundPod) -> None:
        row = self._board.rows.get(pod.node)
        loads = None if row is None else self._board.loads[row]
        if loads is None:
            return
        sizes = [
            loads.cards[uuid].card.capacity_mib for uuid in pod.holds.holds if uuid in loads.cards
        ]
        holds = [hold.mib for uuid, hold in pod.holds.holds.items() if uuid in loads.cards]
        share = _milli(holds[0], sizes[0]) if holds else 0
        self._mix.observe(Want(cpu_milli=pod.host.cpu_milli, cards=len(holds), share_milli=share))

    async def learn(self) -> None:
        """Learn for ever; each time from the mix as it is by then."""
        while True:
            await self.learn_once()
            await self._clock.sleep(self._every_s)

    async def learn_once(self) -> bool:
        """Learn if the mix is another one than was learnt; tell whether it was."""
        self._board.refresh(now=self._clock.now())
        if not self._folded:
            await self._fold()
        classes = self._mix.classes()
        if (
            self._feed is not None
            and drift_ratio(self._feed.policy.classes, classes) < _DRIFT_RATIO
        ):
            return False
        feed = _Feed(LeastWaste(classes, self._board.models), self._board, self._roster)
        feed.keep_up()
        for _ in feed.policy.warming([it.want for it in classes]):
            await asyncio.sleep(0)
        self._feed = feed
        log.info("mix_learnt", classes=len(classes), states=feed.policy.evaluated)
        return True

    async def _fold(self) -> None:
        """Learn from the pods that live already; whoever comes meanwhile is counted as new."""
        living = self._roster.pods()
        self._folded = True
        for at, pod in enumerate(living):
            self._count(pod)
            if at % _PODS_AT_ONCE == _PODS_AT_ONCE - 1:
                await asyncio.sleep(0)

    def quality(self, pod: PodView, need: PodNeed, rows: Rows) -> NDArray[np.float64] | None:
        """Judge nodes on which the pod fits; see `scheduler.extender.NodeOrder`."""
        feed = self._feed
        if feed is None or len(need.containers) != 1:
            return None
        feed.keep_up()
        sizes = feed.size_mib[rows]
        cost = feed.costs(self._want(pod, need, int(sizes[0])))[rows]
        other = sizes != sizes[0]
        for size in np.unique(sizes[other]).tolist():
            at = np.flatnonzero(sizes == size)
            cost[at] = feed.costs(self._want(pod, need, size))[rows[at]]
        judged = np.flatnonzero(~np.isnan(cost))
        quality = np.zeros(len(rows))
        if len(judged):
            least, most = cost[judged].min(), cost[judged].max()
            dear = (cost[judged] - least) / (most - least) if most > least else 0.0
            quality[judged] = 1.0 - dear * (1.0 - _WORST_JUDGED)
        return quality

    def prefer(self, pod: PodView, need: PodNeed, node: str) -> frozenset[CardUuid] | None:
        """Name the cards to take on one node; None where it has nothing to say.

        Thousandths of a card are not MiB, and other binds may be under way: whether the pod fits
        on them is the caller's to find out.
        """
        feed = self._feed
        if feed is None or len(need.containers) != 1:
            return None
        # Binds follow each other without a question in between that would bring the news.
        self._board.refresh(now=self._clock.now())
        feed.keep_up()
        row = self._board.rows.get(node)
        loads = None if row is None else self._board.loads[row]
        at = -1 if row is None else int(feed.row[row])
        if row is None or loads is None or at < 0:
            return None
        want = self._want(pod, need, int(feed.size_mib[row]))
        ranking = feed.policy.rank(want, among=np.array([at]))
        if not len(ranking.rows):
            return None
        uuids = tuple(loads.cards)
        return frozenset(uuids[card] for card in feed.policy.cards(ranking, 0, want))

    def _want(self, pod: PodView, need: PodNeed, size_mib: int) -> Want:
        (container,) = need.containers
        host = requested(pod.record.containers)
        models = None
        if need.models:
            allowed = self._board.allowed(need.models).tolist()
            models = frozenset(
                model for model, yes in zip(self._board.models, allowed, strict=False) if yes
            )
        return Want(
            cpu_milli=host.cpu_milli,
            memory_mib=host.memory_mib,
            cards=container.cards,
            share_milli=_milli(container.mib, size_mib),
            models=models,
        )


class _Feed:
    """One policy, and what it has been told of the board."""

    def __init__(self, policy: LeastWaste, board: Board, roster: Roster) -> None:
        self.policy = policy
        self._board = board
        self._roster = roster
        self._seen = -1
        self._host_seen = -1
        self._names: dict[int, str] = {}
        self.row = np.full(1, -1, np.int64)
        self.size_mib = np.zeros(1, np.int64)
        self._costs: dict[Want, NDArray[np.float64]] = {}

    def costs(self, want: Want) -> NDArray[np.float64]:
        """Give what a pod would cost on each row of the board; NaN where it does not fit."""
        found = self._costs.get(want)
        if found is None:
            if len(self._costs) >= _WANTS_REMEMBERED:
                self._costs.clear()
            ranking = self.policy.rank(want)
            rows_there = max(self.policy.rows.values(), default=-1) + 1
            by_row = np.full(rows_there + 1, np.nan)  # the last one is for rows without a node
            by_row[ranking.rows] = ranking.cost_milli
            found = self._costs[want] = by_row[self.row]
        return found

    def keep_up(self) -> None:
        """Tell the policy of nodes that changed."""
        board, roster = self._board, self._roster
        changed = board.changed_since(self._seen).tolist()
        touched = roster.changed_since(self._host_seen)
        self._seen, self._host_seen = board.now, roster.now
        if changed or touched:
            self._costs.clear()
        if len(self.row) < len(board.changed):
            more = np.full(len(board.changed) - len(self.row), -1, np.int64)
            self.row = np.concatenate((self.row, more))
            self.size_mib = np.concatenate((self.size_mib, np.zeros_like(more)))
        for row in {*changed, *(board.rows[name] for name in touched if name in board.rows)}:
            self._tell(row)

    def _tell(self, row: int) -> None:
        name, free = self._board.names[row], self._free(row)
        before = self._names.pop(row, None)
        if before is not None and (before != name or free is None):
            self.policy.drop(before)
            self.row[row] = -1
        if free is not None:
            self.policy.put(name, free)
            self.size_mib[row] = self._board.capacity_mib[row].max()
            self._names[row] = name
            self.row[row] = self.policy.rows[name]

    def _free(self, row: int) -> NodeFree | None:
        board = self._board
        loads = board.loads[row]
        if loads is None or board.node_state[row] != SHARES:
            return None
        cards = tuple(loads.cards.values())[:MAX_CARDS]
        state: Sequence[int] = board.state[row].tolist()
        there, used = loads.node.host, self._roster.used(loads.node.node)
        bounded = there != NO_HOST
        return NodeFree(
            model=cards[0].card.model,
            cpu_milli=there.cpu_milli - used.cpu_milli if bounded else _UNBOUNDED_MILLI,
            memory_mib=there.memory_mib - used.memory_mib if bounded else _UNBOUNDED_MILLI,
            card_milli=tuple(
                max(0, load.free_mib * WHOLE_CARD_MILLI // max(1, load.card.capacity_mib))
                if state[column] == USABLE
                else 0
                for column, load in enumerate(cards)
            ),
        )


def _milli(mib: int, size_mib: int) -> int:
    """Give MiB as thousandths of a card, rounded down as what is free of cards is."""
    return min(WHOLE_CARD_MILLI, max(1, mib * WHOLE_CARD_MILLI // max(1, size_mib)))
