"""The strategy ``least-waste`` in a cluster: the policy, kept up to date and learning the mix.

The caches of `fracgpu.placement.policies.least_waste.policy` are filled between requests. Until
that is done for the first time, cards' own scores decide (the tightest card).

`scheduler.workload_learner` runs the learning in the background while requests are answered. The
extender, ``fracgpu explain``, replays and benchmarks all use this one class, so that what is
measured and explained is what runs.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from math import isfinite
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.ma  # np.unique imports it late, and that takes 10 ms
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.node_matrix import (
    MAX_CARDS,
    WHOLE_CARD_MILLI,
    Columns,
    Demand,
    IntArray,
    NodeMatrix,
)
from fracgpu.placement.policies.least_waste.card_states import Allowance
from fracgpu.placement.policies.least_waste.policy import LeastWaste
from fracgpu.placement.policies.least_waste.synced_policy import SyncedPolicy
from fracgpu.placement.policies.least_waste.turnover import Turnover
from fracgpu.placement.policies.least_waste.workload_mix import PodClass, WorkloadMix, drift_ratio
from fracgpu.request.need import PodNeed
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex

# Nodes that fit score at least this much, so that nodes unknown to the policy, with 0, come last.
_MIN_FIT_SCORE: Final = 0.1
# What the best of the nodes gets of which the cost is not known: less than any that is known.
_MOST_UNKNOWN_SCORE: Final = 0.09
# How long a request may evaluate: a count by that time, so that no answer depends on the load.
_REQUEST_MS: Final = 5
# Evaluated before a newly learnt mix is used, 3 s or less: on most clusters that is everything.
_EVALUATED_AHEAD: Final = 50_000
_DRIFT_RATIO: Final = 0.05
_PODS_AT_ONCE: Final = 500
_CLASSES_AT_ONCE: Final = 64
_NODES_AT_ONCE: Final = 32
_MAX_GLOBS: Final = 256
_MOST: Final = 2**40  # more than any node has, and within 64 bits with all that is added to it

_NONE_CLOSED: Final[Mapping[CardUuid, str]] = MappingProxyType({})


class LeastWasteOrder:
    """Scores nodes, and chooses cards, by the expected waste.

    Args:
        matrix: the cards.
        bound_pods: the bound pods, with the CPU and memory that they request.
        now: the current time, which decides which cordons and assumptions are still valid.
        request_ms: about how long a request may evaluate what is not known.

    Attributes:
        times_learnt: how often a mix was learnt.
        turnover: what pods take and give back; it decides what the scores count.
    """

    def __init__(
        self,
        matrix: NodeMatrix,
        bound_pods: BoundPodIndex,
        *,
        now: Callable[[], datetime],
        request_ms: int = _REQUEST_MS,
    ) -> None:
        self._matrix, self._request_ms = matrix, request_ms
        self._bound_pods = bound_pods
        self._now = now
        # The models of a Demand in this mix are globs, as the pod wrote them. They are resolved
        # each time the mix is learnt, since a cluster may get new models.
        self._mix, self._folded = WorkloadMix(), False
        self._synced: SyncedPolicy | None = None
        self.times_learnt = 0
        self.turnover = Turnover()
        self._accepted: dict[frozenset[str], frozenset[str] | None] = {}
        self._models_known = 0

    @property
    def learnt(self) -> bool:
        """Whether it has learnt a mix, so that it scores nodes."""
        return self._synced is not None

    @property
    def classes(self) -> tuple[PodClass, ...]:
        """The mix that scores are based on; empty before one is learnt."""
        return () if self._synced is None else self._synced.policy.classes

    @property
    def states(self) -> int:
        """How many states of nodes have been evaluated; 0 before a mix is learnt."""
        return 0 if self._synced is None else self._synced.policy.evaluated

    @property
    def evaluated_per_request(self) -> int:
        """How many states a request may evaluate; 0 before a mix is learnt."""
        return 0 if self._synced is None else self._synced.policy.evaluated_in(self._request_ms)

    @property
    def outdated(self) -> bool:
        """Whether the cluster turns over and scores do not count that yet, or fills up again."""
        return self._synced is not None and self._synced.policy.weights != self.turnover.weights

    def observe(self, pod: BoundPod) -> None:
        """Count a newly bound pod towards the mix, and as started."""
        if self._folded:
            demand = self._demand_of_bound(pod)
            if demand is not None:
                self._mix.observe(demand)
                self.turnover.started(demand.gpu_milli)

    def forget(self, pod: BoundPod) -> None:
        """Count a pod that was bound and is gone as ended."""
        if self._folded:
            demand = self._demand_of_bound(pod)
            if demand is not None:
                self.turnover.ended(demand.gpu_milli)

    def expect(self, demands: Iterable[Demand]) -> None:
        """Count the pods of a workload that is known in advance."""
        for demand in demands:
            self._mix.include(demand)

    def _demand_of_bound(self, pod: BoundPod) -> Demand | None:
        """Return what a bound pod requests, or None on a node without cards."""
        row = self._matrix.rows.get(pod.node)
        node_info = None if row is None else self._matrix.infos[row]
        if node_info is None or not node_info.cards:
            return None
        held = [
            (node_info.cards[uuid], allocation)
            for uuid, allocation in pod.allocation.by_card.items()
            if uuid in node_info.cards
        ]
        share = 0
        if held:
            (first_card, first_allocation), *_ = held
            share = _milli(first_allocation.mib, first_card.card.capacity_mib)
        return Demand(
            cpu_milli=pod.host.cpu_milli,
            cards=len(held),
            share_milli=share,
            models=frozenset(pod.models) if held and pod.models else None,
        )

    def learn_now(self, *, ahead: bool = True) -> None:
        """Learn the mix in one go, where no request waits meanwhile; see `learning`."""
        for _ in self.learning(ahead=ahead):
            pass

    def learning(self, *, ahead: bool = True) -> Iterator[None]:
        """Learn the mix in steps of some milliseconds, if it has drifted from the last one.

        Likewise if the cluster fills up no more, or turns over no more.
        With *ahead* the policy's caches are filled up to a limit; `catching_up` fills the rest.
        """
        yield from self._refreshed()
        if not self._folded:
            yield from self._fold()
        classes = yield from self._resolved()
        if (
            self._synced is not None
            and not self.outdated
            and len(self._synced.policy.models) == len(self._matrix.models)
            and drift_ratio(self._synced.policy.classes, classes) < _DRIFT_RATIO
        ):
            return
        yield
        policy = LeastWaste((), self._matrix.models, self.turnover.weights)
        yield from policy.learning(classes)
        synced = SyncedPolicy(policy, self._matrix, self._bound_pods)
        while not synced.keep_up(_NODES_AT_ONCE):
            yield
        demands = [pod_class.demand for pod_class in classes]
        for evaluated in policy.warming(demands) if ahead else ():
            yield
            synced.keep_up()
            if evaluated > _EVALUATED_AHEAD:
                break
        self._synced = synced
        self.times_learnt += 1

    def catching_up(self) -> Iterator[None]:
        """Evaluate, in steps of some milliseconds, what requests found unknown or nodes changed.

        It ends when all is known of the pods that were scored lately.
        """
        yield from self._refreshed()
        synced = self._synced
        if synced is None:
            return
        while not synced.keep_up(_NODES_AT_ONCE):
            yield
        for _ in synced.policy.warming(()):
            yield
            yield from self._refreshed()
            while not synced.keep_up(_NODES_AT_ONCE):
                yield

    def _refreshed(self) -> Iterator[None]:
        """Copy what changed into the matrix, a few nodes in each step."""
        while not self._matrix.refresh(now=self._now(), most=_NODES_AT_ONCE):
            yield

    def _fold(self) -> Iterator[None]:
        """Count the pods that are bound already; pods bound meanwhile count as new."""
        self._folded = True
        for at, pod in enumerate(self._bound_pods.pods()):
            demand = self._demand_of_bound(pod)
            if demand is not None:
                self._mix.include(demand)
            if at % _PODS_AT_ONCE == _PODS_AT_ONCE - 1:
                yield

    def _resolved(self) -> Generator[None, None, tuple[PodClass, ...]]:
        """Return the mix with globs replaced by the models of the cluster that they allow."""
        found: dict[Demand, float] = {}
        for at, pod_class in enumerate(self._mix.classes()):
            demand = pod_class.demand
            if demand.models is not None:
                demand = replace(demand, models=self._models(demand.models))
            found[demand] = found.get(demand, 0.0) + pod_class.frequency_ratio
            if at % _CLASSES_AT_ONCE == _CLASSES_AT_ONCE - 1:
                yield
        yield
        return tuple(
            PodClass(demand=demand, frequency_ratio=frequency_ratio)
            for demand, frequency_ratio in found.items()
        )

    def _models(self, globs: frozenset[str]) -> frozenset[str] | None:
        """Return the models of the cluster that globs allow, or None for all of them."""
        models = self._matrix.models
        if len(models) != self._models_known or len(self._accepted) >= _MAX_GLOBS:
            self._models_known = len(models)
            self._accepted.clear()
        if globs not in self._accepted:
            allowed = self._matrix.allowed(sorted(globs)).tolist()
            found = frozenset(
                model for model, is_allowed in zip(models, allowed, strict=False) if is_allowed
            )
            self._accepted[globs] = None if len(found) == len(models) else found
        return self._accepted[globs]

    def score(
        self,
        need: PodNeed | None,
        host: HostResources,
        rows: IntArray,
        *,
        by_cards: NDArray[np.float64] | None = None,
        closed: Mapping[CardUuid, str] = _NONE_CLOSED,
    ) -> NDArray[np.float64] | None:
        """Return scores 0..1 of nodes on which a pod fits, or None if there are none to give.

        A request evaluates a bounded number of states, those on the tightest cards first. Nodes of
        which the cost is not known come after all others, by their cards' own scores; `catching_up`
        evaluates the rest.

        Args:
            need: what the pod requests of cards; None for a pod that takes only CPU and memory.
            host: what it requests of the node besides cards.
            rows: the nodes, as rows of the matrix.
            by_cards: [node] the score by the card that the pod would get, 0..1.
            closed: cards that the pod does not get, each with its node.
        """
        synced = self._synced
        if synced is None or (need is not None and len(need.containers) != 1):
            return None
        synced.keep_up()
        cost = self._costs(synced, need, host, rows, synced.columns_of(closed))
        if need is None:  # nodes that the policy does not know have no card to waste
            cost[np.isinf(cost) | (synced.row[rows] < 0)] = 0.0
        scores = _scores_of(cost)
        if scores is not None:
            return scores
        known = np.isfinite(cost)
        unknown = np.isnan(cost)
        if not known.any() and unknown.any():
            return None
        scores = np.zeros(len(rows))
        if by_cards is not None:
            scores[unknown] = by_cards[unknown] * _MOST_UNKNOWN_SCORE
        scores[known] = _scores_of(cost[known])
        return scores

    def _costs(
        self,
        synced: SyncedPolicy,
        need: PodNeed | None,
        host: HostResources,
        rows: IntArray,
        columns: Mapping[int, Columns],
    ) -> NDArray[np.float64]:
        """Return the cost on each of *rows*, as `SyncedPolicy.costs` has it."""
        allowance = Allowance(self.evaluated_per_request)
        # A need in MiB is another demand, in thousandths, for each size of card.
        sizes = synced.size_mib[rows] if need is not None else np.zeros(1, np.int64)
        if len(sizes) and (sizes == sizes[0]).all():
            demand = self._demand(need, host, int(sizes[0]))
            return synced.costs(demand, int(sizes[0]), columns, allowance)[rows]
        cost = np.full(len(rows), np.nan)
        for size in np.unique(sizes).tolist():
            at = np.flatnonzero(sizes == size)
            demand = self._demand(need, host, size)
            cost[at] = synced.costs(demand, size, columns, allowance)[rows[at]]
        return cost

    def prefer(
        self,
        need: PodNeed,
        host: HostResources,
        node: str,
        *,
        closed: Mapping[CardUuid, str] = _NONE_CLOSED,
    ) -> frozenset[CardUuid] | None:
        """Return the cards to take on one node, none *closed*, or None for no preference.

        The caller checks that the pod fits: thousandths are rounded, and other binds under way.
        """
        synced = self._synced
        if synced is None or len(need.containers) != 1:
            return None
        self._matrix.refresh(now=self._now())  # binds may follow each other without a filter
        synced.keep_up()
        row = self._matrix.rows.get(node)
        node_info = None if row is None else self._matrix.infos[row]
        at = -1 if row is None else int(synced.row[row])
        if row is None or node_info is None or at < 0:
            return None
        demand = self._demand(need, host, int(synced.size_mib[row]))
        columns = synced.columns_of(closed)
        cards = synced.cards_on(demand, at, columns, Allowance(self.evaluated_per_request))
        if cards is None:
            return None
        uuids = tuple(node_info.cards)
        return frozenset(uuids[card] for card in cards)

    def card_costs(
        self, need: PodNeed, host: HostResources, rows: IntArray, columns: IntArray
    ) -> NDArray[np.float64] | None:
        """Return what a pod of one card would cost on each card; NaN for one that is avoided.

        The cards are given by matrix row and column. None for no preference, as in `prefer`.
        """
        synced = self._synced
        if synced is None or len(need.containers) != 1 or need.containers[0].cards != 1:
            return None
        synced.keep_up()
        found, own, sizes = np.full(len(rows), np.nan), synced.row[rows], synced.size_mib[rows]
        sizes[(own < 0) | (columns >= MAX_CARDS)] = 0
        for size in np.unique(sizes[sizes > 0]).tolist():
            at = np.flatnonzero(sizes == size)
            demand = self._demand(need, host, size)
            found[at] = synced.policy.card_costs(demand, own[at], columns[at])
        return found

    def _demand(self, need: PodNeed | None, host: HostResources, size_mib: int) -> Demand:
        cpu_milli, memory_mib = min(host.cpu_milli, _MOST), min(host.memory_mib, _MOST)
        if need is None:
            return Demand(cpu_milli=cpu_milli, memory_mib=memory_mib)
        (container,) = need.containers
        return Demand(
            cpu_milli=cpu_milli,
            memory_mib=memory_mib,
            cards=container.cards,
            share_milli=_milli(container.mib, size_mib),
            models=self._models(frozenset(need.models)) if need.models else None,
        )


def _scores_of(cost: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the scores of nodes, the cheapest 1.0; None if some cost is not known, or infinite."""
    if not len(cost):
        return cost
    least, most = float(np.minimum.reduce(cost)), float(np.maximum.reduce(cost))
    if not isfinite(least + most):  # NaN is the least, and the most
        return None
    if most <= least:
        return np.ones(len(cost))
    return 1.0 - (cost - least) / (most - least) * (1.0 - _MIN_FIT_SCORE)


def _milli(mib: int, size_mib: int) -> int:
    """Return MiB as thousandths of a card, 1 to 1000, rounded down as free amounts are."""
    return min(WHOLE_CARD_MILLI, max(1, mib * WHOLE_CARD_MILLI // max(1, size_mib)))
