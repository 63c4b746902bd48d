"""The strategy ``least-waste`` in a cluster: the policy, kept up to date and learning the mix.

What the policy remembers is filled between requests. Until that is done for the first time, and
where its library cannot be loaded, cards' own scores decide (the tightest card, as ``pack``).

`scheduler.workload_learner` runs the learning in the background while requests are answered. The
extender, ``fracgpu explain``, replays and benchmarks all use this one class, so that what is
measured and explained is what runs.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import compress
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.ma  # np.unique imports it late, and that takes 10 ms
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.fit import USABLE
from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI, IntArray, NodeMatrix
from fracgpu.placement.policies.least_waste.library import LIBRARY, Library
from fracgpu.placement.policies.least_waste.mix import Demand, PodClass, WorkloadMix, drift_ratio
from fracgpu.placement.policies.least_waste.nodes import MAX_CARDS, PolicyNodes
from fracgpu.placement.policies.least_waste.policy import Kind, LeastWaste
from fracgpu.placement.policies.least_waste.turnover import Turnover
from fracgpu.request.need import PodNeed
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.pod_info import PodInfo

# Nodes that fit score at least this much, so that nodes unknown to the policy, with 0, come last.
_MIN_FIT_SCORE: Final = 0.1
# What the best of the nodes gets of which the cost is not known: less than any that is known.
_MOST_UNKNOWN_SCORE: Final = 0.09
# How long a request may evaluate: a count by that time, so that no answer depends on the load.
_REQUEST_MS: Final = 3
# Evaluated before a newly learnt mix is used, 3 s or less: on most clusters that is everything.
_EVALUATED_AHEAD: Final = 50_000
_KINDS_AHEAD: Final = 64
_DRIFT_RATIO: Final = 0.05
_PODS_AT_ONCE: Final = 500
_CLASSES_AT_ONCE: Final = 64
_NODES_AT_ONCE: Final = 32
# Pods that were refused and are not bound yet; of more than these the oldest are counted again.
_MOST_WAITING: Final = 10_000
_MOST: Final = 2**40  # more than any node has, and within 64 bits with all that is added to it

_NONE_CLOSED: Final[Mapping[CardUuid, str]] = MappingProxyType({})


class LeastWasteOrder:
    """Scores nodes, and chooses cards, by the expected waste.

    Args:
        matrix: the cards.
        bound_pods: the bound pods, with the CPU and memory that they request.
        now: the current time, which decides which cordons and assumptions are still valid.
        request_ms: about how long a request may evaluate what is not known.
        library: the compiled code; without it nothing is learnt.

    Attributes:
        problem: why nothing can be learnt; None if it can.
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
        library: Library = LIBRARY,
    ) -> None:
        self._matrix, self._request_ms, self._library = matrix, request_ms, library
        self._bound_pods, self._now = bound_pods, now
        # The models of a Demand in this mix are globs, as the pod wrote them. They are resolved
        # each time the mix is learnt, since a cluster may get new models.
        self._mix, self._folded = WorkloadMix(), False
        self._waiting: dict[str, bool] = {}
        self._nodes = PolicyNodes(matrix, bound_pods)
        self._policy: LeastWaste | None = None
        self.problem = library.problem
        self.times_learnt = 0
        self._pods_learnt = 0
        self.turnover = Turnover()

    @property
    def learnt(self) -> bool:
        """Whether it has learnt a mix, so that it scores nodes."""
        return self._policy is not None

    @property
    def classes(self) -> tuple[PodClass, ...]:
        """The mix that scores are based on; empty before one is learnt."""
        return () if self._policy is None else self._policy.classes

    @property
    def states(self) -> int:
        """How many states of nodes have been evaluated; 0 before a mix is learnt."""
        return 0 if self._policy is None else self._policy.evaluated

    @property
    def evaluated_per_request(self) -> int:
        """How many states a request may evaluate; 0 before a mix is learnt."""
        return 0 if self._policy is None else self._policy.evaluated_in(self._request_ms)

    @property
    def outdated(self) -> bool:
        """Whether the cluster turns over and scores do not count that yet, or fills up again."""
        return self._policy is not None and self._policy.weights != self.turnover.weights

    @property
    def grown(self) -> bool:
        """Whether twice as many pods are known as when the mix was learnt."""
        return self._folded and self._mix.pods >= max(1, 2 * self._pods_learnt)

    def observe(self, pod: BoundPod) -> None:
        """Count a newly bound pod as started and, if it was not refused before, in the mix."""
        demand = self._demand_of_bound(pod) if self._folded else None
        if demand is not None:
            if not self._waiting.pop(pod.uid, False):
                self._mix.observe(demand)
            self.turnover.started(demand.gpu_milli)

    def forget(self, pod: BoundPod) -> None:
        """Count a pod that was bound and is gone as ended."""
        demand = self._demand_of_bound(pod) if self._folded else None
        if demand is not None:
            self.turnover.ended(demand.gpu_milli)

    def refused(self, pod: PodInfo) -> None:
        """Count a pod in the mix that found no node, once.

        Were only pods counted that are bound, cards for pods that starve would get cheaper.
        """
        uid, need = pod.record.uid, pod.need
        if uid in self._waiting or need is None or len(need.containers) != 1:
            return
        if len(self._waiting) >= _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[uid] = True
        (container,) = need.containers
        demand = Demand(
            cpu_milli=min(pod.host.cpu_milli, _MOST),
            cards=container.cards,
            share_milli=_milli(container.mib, self._nodes.usual_size_mib()),
            models=frozenset(need.models) or None,
        )
        self._mix.observe(demand)

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
        With *ahead* states are evaluated up to a limit; `catching_up` evaluates the rest.
        """
        if self._library.rank is None:
            return
        yield from self._refreshed()
        if not self._folded:
            yield from self._fold()
        before, pods = self._policy, self._mix.pods
        if not pods:  # by an empty mix nothing is wasted wherever a pod goes
            return
        models = tuple(self._matrix.models)
        classes = yield from self._resolved(models)
        self._pods_learnt = pods
        if (
            before is not None
            and not self.outdated
            and before.models == models
            and drift_ratio(before.classes, classes) < _DRIFT_RATIO
        ):
            return
        yield
        policy = LeastWaste(
            classes, models, self._nodes, weights=self.turnover.weights, rank=self._library.rank
        )
        yield from policy.building()
        if ahead:
            yield from self._warming(policy)
        self._policy = policy
        self.times_learnt += 1

    def _warming(self, policy: LeastWaste) -> Iterator[None]:
        """Evaluate, up to a limit, what the most frequent pods of the mix cost."""
        size_mib = self._nodes.usual_size_mib()
        rows = np.flatnonzero(self._nodes.model >= 0)
        for one in policy.classes[:_KINDS_AHEAD]:
            kind = Kind(
                # Rounded up, so that it is the same part of a card when it is rounded down.
                mib=-(-one.demand.share_milli * size_mib // WHOLE_CARD_MILLI),
                cards=one.demand.cards,
                cpu_milli=one.demand.cpu_milli,
            )
            for _ in policy.warming(kind, rows):
                yield
                self._nodes.keep_up(_NODES_AT_ONCE)
                if policy.evaluated > _EVALUATED_AHEAD:
                    return

    def catching_up(self) -> Iterator[None]:
        """Evaluate, in steps of some milliseconds, what requests found unknown or nodes changed.

        It ends when all is known of the pods that were scored lately.
        """
        yield from self._refreshed()
        policy = self._policy
        for _ in () if policy is None else policy.catching_up():
            yield
            yield from self._refreshed()

    def _refreshed(self) -> Iterator[None]:
        """Take over what changed, a few nodes in each step."""
        while not self._matrix.refresh(now=self._now(), most=_NODES_AT_ONCE):
            yield
        while not self._nodes.keep_up(_NODES_AT_ONCE):
            yield

    def _fold(self) -> Iterator[None]:
        """Count the pods that are bound already; pods bound meanwhile count as new."""
        self._folded = True
        for at, pod in enumerate(self._bound_pods.pods()):
            demand = self._demand_of_bound(pod)
            if demand is not None and not self._waiting.pop(pod.uid, False):
                self._mix.include(demand)
            if at % _PODS_AT_ONCE == _PODS_AT_ONCE - 1:
                yield

    def _resolved(self, models: tuple[str, ...]) -> Generator[None, None, tuple[PodClass, ...]]:
        """Return the mix with globs replaced by the models of the cluster that they allow."""
        accepted: dict[frozenset[str], frozenset[str] | None] = {}
        found: dict[Demand, float] = {}
        for at, pod_class in enumerate(self._mix.classes()):
            demand = pod_class.demand
            if demand.models is not None:
                if demand.models not in accepted:
                    accepted[demand.models] = self._allowed(demand.models, models)
                demand = replace(demand, models=accepted[demand.models])
            found[demand] = found.get(demand, 0.0) + pod_class.frequency_ratio
            if at % _CLASSES_AT_ONCE == _CLASSES_AT_ONCE - 1:
                yield
        yield
        return tuple(
            PodClass(demand=demand, frequency_ratio=frequency_ratio)
            for demand, frequency_ratio in found.items()
        )

    def _allowed(self, globs: frozenset[str], models: tuple[str, ...]) -> frozenset[str] | None:
        """Return those of *models* that globs allow, or None for all of them."""
        found = frozenset(compress(models, self._matrix.allowed(sorted(globs)).tolist()))
        return None if len(found) == len(models) else found

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
            rows: the nodes, as rows of the matrix, each at most once.
            by_cards: [node] the score by the card that the pod would get, 0..1.
            closed: cards that the pod does not get, each with its node.
        """
        policy = self._policy
        if policy is None or (need is not None and len(need.containers) != 1):
            return None
        self._nodes.keep_up()
        cost = policy.costs(
            _kind(need, host),
            rows,
            allowance=self.evaluated_per_request,
            first=by_cards,
            closed=self._bits_of(closed),
        )
        if need is None:  # nodes that the policy does not know have no card to waste
            cost[np.isinf(cost) | (self._nodes.model[rows] < 0)] = 0.0
        known, unknown = np.isfinite(cost), np.isnan(cost)
        if not known.any() and unknown.any():
            return None
        scores = np.zeros(len(rows))
        if by_cards is not None:
            scores[unknown] = by_cards[unknown] * _MOST_UNKNOWN_SCORE
        scores[known] = _scores_of(cost[known])
        return scores

    def _bits_of(self, closed: Mapping[CardUuid, str]) -> dict[int, int]:
        """Return cards that would be usable otherwise as bits, by row."""
        found: dict[int, int] = {}
        for card, node in closed.items():
            row = self._matrix.rows.get(node)
            uuids = () if row is None else self._matrix.uuids(row)[:MAX_CARDS]
            if row is not None and card in uuids:
                column = uuids.index(card)
                if self._matrix.state[row, column] == USABLE:
                    found[row] = found.get(row, 0) | 1 << column
        return found

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
        policy = self._policy
        if policy is None or len(need.containers) != 1:
            return None
        self._matrix.refresh(now=self._now())  # binds may follow each other without a filter
        self._nodes.keep_up()
        row = self._matrix.rows.get(node)
        if row is None:
            return None
        bits = policy.taken(
            _kind(need, host),
            row,
            closed=self._bits_of(closed).get(row, 0),
            allowance=self.evaluated_per_request,
        )
        if bits is None:
            return None
        return frozenset(
            uuid for column, uuid in enumerate(self._matrix.uuids(row)) if bits >> column & 1
        )

    def card_costs(
        self, need: PodNeed, host: HostResources, rows: IntArray, columns: IntArray
    ) -> NDArray[np.float64] | None:
        """Return what a pod of one card would cost on each card; NaN for one that is avoided.

        The cards are given by matrix row and column. None for no preference, as in `prefer`.
        """
        policy = self._policy
        if policy is None or len(need.containers) != 1 or need.containers[0].cards != 1:
            return None
        self._nodes.keep_up()
        found = np.full(len(rows), np.nan)
        at = np.flatnonzero(columns < MAX_CARDS)
        others = ~(np.uint32(1) << columns[at].astype(np.uint32))
        cost, _ = policy.costs_without(_kind(need, host), rows[at], others, allowance=_MOST)
        found[at] = np.where(np.isinf(cost), np.nan, cost)
        return found


def _kind(need: PodNeed | None, host: HostResources) -> Kind:
    cpu_milli = min(host.cpu_milli, _MOST)
    if need is None:
        return Kind(cpu_milli=cpu_milli)
    (container,) = need.containers
    return Kind(mib=min(container.mib, _MOST), cards=container.cards, cpu_milli=cpu_milli)


def _scores_of(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the scores of nodes of which the costs are known, the cheapest 1.0."""
    if not len(cost):
        return cost
    least, most = float(cost.min()), float(cost.max())
    if most <= least:
        return np.ones(len(cost))
    return 1.0 - (cost - least) / (most - least) * (1.0 - _MIN_FIT_SCORE)


def _milli(mib: int, size_mib: int) -> int:
    """Return MiB as thousandths of a card, 1 to 1000, rounded down as free amounts are."""
    return min(WHOLE_CARD_MILLI, max(1, mib * WHOLE_CARD_MILLI // max(1, size_mib)))
