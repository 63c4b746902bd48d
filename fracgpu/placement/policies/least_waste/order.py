"""The strategy ``least-waste``: fed by the ledger, learning from the pods it sees.

What it takes to judge a node, `fracgpu.placement.policies.least_waste.policy`, is worked out
beforehand and between requests. Until that is done for the first time, cards' own scores decide
(the tightest card).

`scheduler.workload_learner` lets it learn, for ever, while requests are answered. The
extender, ``fracgpu explain``, replays and benchmarks all ask this one class, so that what is
measured and what is explained is what runs.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.placement.node_matrix import (
    MAX_CARDS,
    SHARES,
    USABLE,
    WHOLE_CARD_MILLI,
    Demand,
    FreeResources,
    NodeMatrix,
    Rows,
)
from fracgpu.placement.policies.least_waste.policy import LeastWaste
from fracgpu.placement.policies.least_waste.workload_mix import PodClass, WorkloadMix, drift_ratio
from fracgpu.request.need import PodNeed
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex

# Nodes that fit are never judged worse than this, so that nodes unknown to the policy come last.
_WORST_JUDGED: Final = 0.1
_DRIFT_RATIO: Final = 0.05
_PODS_AT_ONCE: Final = 500
_CLASSES_AT_ONCE: Final = 64
_WANTS_REMEMBERED: Final = 64
_GLOBS_REMEMBERED: Final = 256
_UNBOUNDED_MILLI: Final = 10**9

Models = frozenset[str] | None


class LeastWasteOrder:
    """Judges nodes, and chooses cards, by what the cluster would lose.

    Args:
        matrix: the cards.
        bound_pods: CPU and memory that pods take.
        now: tells which cordons and assumptions still hold.
    """

    def __init__(
        self, matrix: NodeMatrix, bound_pods: BoundPodIndex, *, now: Callable[[], datetime]
    ) -> None:
        self._matrix = matrix
        self._bound_pods = bound_pods
        self._now = now
        # In here the models of a Want are what its pod wrote: globs. Which models those are is
        # found out anew each time that the mix is learnt, for a fleet gets new ones.
        self._mix = WorkloadMix()
        self._folded = False
        self._feed: _Feed | None = None
        self.times_learnt = 0
        self._accepted: dict[frozenset[str], Models] = {}
        self._models_known = 0

    @property
    def learnt(self) -> bool:
        """Whether it judges already."""
        return self._feed is not None

    @property
    def classes(self) -> tuple[PodClass, ...]:
        """The mix that it judges by; nothing before it has learnt one."""
        return () if self._feed is None else self._feed.policy.classes

    @property
    def states(self) -> int:
        """How many states of nodes it has judged; 0 before it has learnt a mix."""
        return 0 if self._feed is None else self._feed.policy.evaluated

    def observe(self, pod: BoundPod) -> None:
        """Count a pod that is new to the books towards the mix."""
        if self._folded:
            demand = self._want_of_bound(pod)
            if demand is not None:
                self._mix.observe(demand)

    def expect(self, wants: Iterable[Demand]) -> None:
        """Count pods that are known beforehand, of a workload that is yet to come."""
        for demand in wants:
            self._mix.include(demand)

    def _want_of_bound(self, pod: BoundPod) -> Demand | None:
        """Tell what a pod asked for; None where it can leave no card idle."""
        row = self._matrix.rows.get(pod.node)
        node_info = None if row is None else self._matrix.infos[row]
        if node_info is None or not node_info.cards:
            return None
        held = [
            (node_info.cards[uuid], it)
            for uuid, it in pod.holds.by_card.items()
            if uuid in node_info.cards
        ]
        share = 0
        if held:
            (card_info, allocation), *_ = held
            share = _milli(allocation.mib, card_info.card.capacity_mib)
        return Demand(
            cpu_milli=pod.host.cpu_milli,
            cards=len(held),
            share_milli=share,
            models=frozenset(pod.models) if held and pod.models else None,
        )

    def learn_now(self, *, ahead: bool = True) -> None:
        """Learn at one go, where nobody waits for an answer meanwhile; see `learning`."""
        for _ in self.learning(ahead=ahead):
            pass

    def learning(self, *, ahead: bool = True) -> Iterator[None]:
        """Learn, in steps of some milliseconds, if the mix is another one than was learnt.

        Args:
            ahead: work out beforehand what questions will need. The answers are the same without.
        """
        self._matrix.refresh(now=self._now())
        if not self._folded:
            yield from self._fold()
        classes = yield from self._resolved()
        if (
            self._feed is not None
            and drift_ratio(self._feed.policy.classes, classes) < _DRIFT_RATIO
        ):
            return
        feed = _Feed(LeastWaste(classes, self._matrix.models), self._matrix, self._bound_pods)
        feed.keep_up()
        for _ in feed.policy.warming([it.demand for it in classes]) if ahead else ():
            yield
        self._feed = feed
        self.times_learnt += 1

    def _fold(self) -> Iterator[None]:
        """Learn from the pods that live already; whoever comes meanwhile is counted as new."""
        living = self._bound_pods.pods()
        self._folded = True
        for at, pod in enumerate(living):
            demand = self._want_of_bound(pod)
            if demand is not None:
                self._mix.include(demand)
            if at % _PODS_AT_ONCE == _PODS_AT_ONCE - 1:
                yield

    def _resolved(self) -> Generator[None, None, tuple[PodClass, ...]]:
        """Give the mix with each pod's globs as the models of this fleet that they allow."""
        found: dict[Demand, float] = {}
        for at, it in enumerate(self._mix.classes()):
            demand = it.demand
            if demand.models is not None:
                demand = replace(demand, models=self._models(demand.models))
            found[demand] = found.get(demand, 0.0) + it.frequency_ratio
            if at % _CLASSES_AT_ONCE == _CLASSES_AT_ONCE - 1:
                yield
        return tuple(PodClass(demand=want, frequency_ratio=it) for want, it in found.items())

    def _models(self, globs: frozenset[str]) -> Models:
        """Find the models of the fleet that globs allow; None where it is every one."""
        models = self._matrix.models
        if len(models) != self._models_known or len(self._accepted) >= _GLOBS_REMEMBERED:
            self._models_known = len(models)
            self._accepted.clear()
        if globs not in self._accepted:
            allowed = self._matrix.allowed(sorted(globs)).tolist()
            found = frozenset(it for it, yes in zip(models, allowed, strict=False) if yes)
            self._accepted[globs] = None if len(found) == len(models) else found
        return self._accepted[globs]

    def score(
        self, need: PodNeed | None, host: HostResources, rows: Rows
    ) -> NDArray[np.float64] | None:
        """Judge nodes on which a pod fits; see `scheduler.extender.filter.NodeScorer`.

        A pod without a need takes CPU and memory of a node, and no card.
        """
        feed = self._feed
        if feed is None or (need is not None and len(need.containers) != 1):
            return None
        feed.keep_up()
        sizes = feed.size_mib[rows]
        cost = feed.costs(self._want(need, host, int(sizes[0])))[rows]
        other = sizes != sizes[0]
        for size in np.unique(sizes[other]).tolist():
            at = np.flatnonzero(sizes == size)
            cost[at] = feed.costs(self._want(need, host, size))[rows[at]]
        if need is None:  # nodes that the policy does not know have no card to lose
            cost[np.isnan(cost)] = 0.0
        judged = np.flatnonzero(~np.isnan(cost))
        quality = np.zeros(len(rows))
        if len(judged):
            least, most = cost[judged].min(), cost[judged].max()
            dear = (cost[judged] - least) / (most - least) if most > least else 0.0
            quality[judged] = 1.0 - dear * (1.0 - _WORST_JUDGED)
        return quality

    def prefer(self, need: PodNeed, host: HostResources, node: str) -> frozenset[CardUuid] | None:
        """Name the cards to take on one node; None where it has nothing to say.

        Thousandths of a card are not MiB, and other binds may be under way: whether the pod fits
        on them is the caller's to find out.
        """
        feed = self._feed
        if feed is None or len(need.containers) != 1:
            return None
        # Binds follow each other without a question in between that would bring the news.
        self._matrix.refresh(now=self._now())
        feed.keep_up()
        row = self._matrix.rows.get(node)
        node_info = None if row is None else self._matrix.infos[row]
        at = -1 if row is None else int(feed.row[row])
        if row is None or node_info is None or at < 0:
            return None
        demand = self._want(need, host, int(feed.size_mib[row]))
        ranking = feed.policy.rank(demand, among=np.array([at]))
        if not len(ranking.rows):
            return None
        uuids = tuple(node_info.cards)
        return frozenset(uuids[card] for card in feed.policy.cards(ranking, 0, demand))

    def _want(self, need: PodNeed | None, host: HostResources, size_mib: int) -> Demand:
        if need is None:
            return Demand(cpu_milli=host.cpu_milli, memory_mib=host.memory_mib)
        (container,) = need.containers
        return Demand(
            cpu_milli=host.cpu_milli,
            memory_mib=host.memory_mib,
            cards=container.cards,
            share_milli=_milli(container.mib, size_mib),
            models=self._models(frozenset(need.models)) if need.models else None,
        )


class _Feed:
    """One policy, and what it has been told of the board."""

    def __init__(self, policy: LeastWaste, matrix: NodeMatrix, bound_pods: BoundPodIndex) -> None:
        self.policy = policy
        self._matrix = matrix
        self._bound_pods = bound_pods
        self._seen = -1
        self._host_seen = -1
        self._names: dict[int, str] = {}
        self.row = np.full(1, -1, np.int64)
        self.size_mib = np.zeros(1, np.int64)
        self._costs: dict[Demand, NDArray[np.float64]] = {}

    def costs(self, demand: Demand) -> NDArray[np.float64]:
        """Give what a pod would cost on each row of the board; NaN where it does not fit."""
        found = self._costs.get(demand)
        if found is None:
            if len(self._costs) >= _WANTS_REMEMBERED:
                self._costs.clear()
            ranking = self.policy.rank(demand)
            rows_there = max(self.policy.rows.values(), default=-1) + 1
            by_row = np.full(rows_there + 1, np.nan)  # the last one is for rows without a node
            by_row[ranking.rows] = ranking.cost_milli
            found = self._costs[demand] = by_row[self.row]
        return found

    def keep_up(self) -> None:
        """Tell the policy of nodes that changed."""
        matrix, bound_pods = self._matrix, self._bound_pods
        changed = matrix.changed_since(self._seen).tolist()
        touched = bound_pods.changed_since(self._host_seen)
        self._seen, self._host_seen = matrix.now, bound_pods.now
        if changed or touched:
            self._costs.clear()
        if len(self.row) < len(matrix.changed):
            more = np.full(len(matrix.changed) - len(self.row), -1, np.int64)
            self.row = np.concatenate((self.row, more))
            self.size_mib = np.concatenate((self.size_mib, np.zeros_like(more)))
        for row in {*changed, *(matrix.rows[name] for name in touched if name in matrix.rows)}:
            self._tell(row)

    def _tell(self, row: int) -> None:
        name, free = self._matrix.names[row], self._free(row)
        before = self._names.pop(row, None)
        if before is not None and (before != name or free is None):
            self.policy.drop(before)
            self.row[row] = -1
        if free is not None:
            self.policy.put(name, free)
            self.size_mib[row] = self._matrix.capacity_mib[row].max()
            self._names[row] = name
            self.row[row] = self.policy.rows[name]

    def _free(self, row: int) -> FreeResources | None:
        matrix = self._matrix
        node_info = matrix.infos[row]
        if node_info is None or matrix.node_state[row] != SHARES:
            return None
        cards = tuple(node_info.cards.values())[:MAX_CARDS]
        state: Sequence[int] = matrix.state[row].tolist()
        there, used = node_info.node.host, self._bound_pods.used(node_info.node.node)
        bounded = there != NO_HOST_RESOURCES
        return FreeResources(
            model=cards[0].card.model,
            cpu_milli=there.cpu_milli - used.cpu_milli if bounded else _UNBOUNDED_MILLI,
            memory_mib=there.memory_mib - used.memory_mib if bounded else _UNBOUNDED_MILLI,
            card_milli=tuple(
                max(0, card_info.free_mib * WHOLE_CARD_MILLI // max(1, card_info.card.capacity_mib))
                if state[column] == USABLE
                else 0
                for column, card_info in enumerate(cards)
            ),
        )


def _milli(mib: int, size_mib: int) -> int:
    """Give MiB as thousandths of a card, rounded down as what is free of cards is."""
    return min(WHOLE_CARD_MILLI, max(1, mib * WHOLE_CARD_MILLI // max(1, size_mib)))
