"""Filter and prioritize: both read the same cluster state, and change nothing."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import compress
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.node_affinity import untolerated
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.fit import IntArray, Obstacle, refusal
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import (
    MAX_SCORE,
    FitResult,
    HostLeft,
    cards_without_host,
    denied_cards,
    evaluate,
    place,
    place_held,
)
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock
from scheduler.cache.change_signal import ChangeSignal
from scheduler.extender.api import ExtenderArgs, FilterResult

# The best node gets all ten points and every other at most these, so that kube-scheduler breaks no
# tie between nodes at random that a pod's own preferences do not tell apart.
_RUNNER_UP: Final = 7

_NO_PLACES: Final = np.zeros(0, np.int64)
_NO_QUALITY: Final = np.zeros(0)

_RESERVED: Final = "node(s) without the card that is reserved for this pod (it is being moved)"


class NodeScorer(Protocol):
    """A policy that scores whole nodes, not only their cards."""

    def score(
        self,
        need: PodNeed | None,
        host: HostResources,
        rows: IntArray,
        *,
        by_cards: NDArray[np.float64],
        closed: Mapping[CardUuid, str],
    ) -> NDArray[np.float64] | None:
        """Return a score for each of *rows*, nodes on which the pod fits: 1.0 best, 0.0 worst.

        *by_cards* are their scores by the card that the pod would get.

        The array has one float per row, in the order of *rows*. The pod gets none of the cards in
        *closed*, each with its node. None if the policy has no preference; then the scores of the
        cards decide.
        """


_NO_ORDERS: Final[Mapping[Strategy, NodeScorer]] = MappingProxyType({})


class _Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of each candidate, in the order in which kube-scheduler named them.

    Attributes:
        rows: its row in the node matrix.
        fit: whether, and how well, the pod fits there.
        denied: the cards that Moves keep the pod off.
    """

    rows: IntArray
    fit: FitResult
    denied: Mapping[CardUuid, str]


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The best of the candidates, and how good those are that come into question.

    Attributes:
        best: its place among the candidates.
        quality: 0..1, of those of which *ranked* has the places; none if the best is given.
    """

    best: int
    ranked: IntArray
    quality: NDArray[np.float64]


class Extender:
    """Answers kube-scheduler from the ledger.

    Args:
        matrix: the cards.
        strategy: returns the cluster's current default.
        clock: the time at which cordons and assumptions are evaluated.
        orders: strategies that score nodes themselves.
        host_left: what no other pod has requested of a node's CPU and memory.
    """

    def __init__(
        self,
        matrix: NodeMatrix,
        *,
        strategy: Callable[[], Strategy],
        clock: Clock,
        orders: Mapping[Strategy, NodeScorer] = _NO_ORDERS,
        host_left: HostLeft = lambda *_: None,
    ) -> None:
        self._matrix = matrix
        self._strategy = strategy
        self._clock = clock
        self._ledger = matrix.ledger
        self._orders = orders
        self._host_left = host_left

    def refreshing(self) -> Iterator[None]:
        """Take over what changed of nodes, in steps; what changes later, each answer takes over."""
        return self._matrix.refreshing(self._clock.now)

    def filter(self, args: ExtenderArgs) -> FilterResult:
        """Return the candidates on which the pod fits, and the reasons for the others."""
        pod, names = args.pod, args.node_names
        if pod.need_problem:
            return FilterResult(unresolvable=dict.fromkeys(names, pod.need_problem))
        if pod.need is None:
            return FilterResult(passed=names)
        reserved = self.reserved_node(pod, names)
        if reserved:
            others = (name for name in names if name != reserved)
            return FilterResult(passed=(reserved,), failed=dict.fromkeys(others, _RESERVED))
        found = self._evaluate(pod, pod.need, names)
        fits = found.fit.fits
        own = self._own_node(pod.record.uid, pod.need)
        if own and own in names:
            fits[names.index(own)] = True
        passed = tuple(compress(names, fits.tolist()))
        best = partial(self._best, pod, pod.need, names, found, own)
        if len(passed) == len(names):
            return FilterResult(passed=passed, best=best)
        # Every node gets the same text: kube-scheduler sums up equal reasons and sorts different
        # ones as text, so only one combined text can list the most common obstacle first.
        refusals, no = found.fit.refusals, tuple(compress(names, (~fits).tolist()))
        counted = np.bincount(refusals.obstacles, minlength=len(Obstacle)).tolist()
        text = refusal(
            {kind: count for kind, count in zip(Obstacle, counted, strict=True) if count}
        )
        may_help = refusals.resolvable
        return FilterResult(
            passed=passed,
            failed=dict.fromkeys(compress(no, may_help.tolist()), text),
            unresolvable=dict.fromkeys(compress(no, (~may_help).tolist()), text),
            best=best,
        )

    def reserved_node(self, pod: PodInfo, names: Sequence[str]) -> str:
        """Return the candidate on which a Move holds a card for the pod; empty if there is none.

        A reservation on a node that is no candidate, or on a card that cannot take the pod any
        more, is given up: the pod is placed like any other.
        """
        strategy, now = self._strategy(), self._clock.now()
        held = place_held(self._ledger, pod, strategy=strategy, now=now, nodes=names)
        return "" if held is None else held.placement.node

    def denied_to(self, pod: PodInfo) -> Mapping[CardUuid, str]:
        """Return the cards that a pod is kept off now, and the node of each."""
        now = self._clock.now()
        return {
            **denied_cards(self._ledger, pod, now=now),
            **cards_without_host(self._ledger, pod, host_left=self._host_left, now=now),
        }

    def _evaluate(self, pod: PodInfo, need: PodNeed, names: Sequence[str]) -> _Candidates:
        """Return what each candidate would give the pod, without the cards that it is kept off."""
        now, strategy = self._clock.now(), self._strategy()
        denied = self.denied_to(pod)
        matrix = self._matrix
        matrix.refresh(now=now)
        rows = matrix.rows_of(names)
        fit = evaluate(matrix, need, rows, strategy=strategy)
        for node in set(denied.values()).intersection(names) if denied else ():
            at = names.index(node)
            node_info = self._ledger.node(node, now=now)
            if fit.fits[at] and node_info is not None:
                answer = place(node_info.with_cordoned(denied), need, strategy=strategy)
                fit.put(at, answer, tuple(node_info.cards))
        return _Candidates(rows=rows, fit=fit, denied=denied)

    def _own_node(self, uid: str, need: PodNeed) -> str:
        """Return the node where the pod itself is assumed and would fit; empty if there is none.

        Its Binding, or the answer to it, may have been lost.
        """
        assumption = self._ledger.assumed.get(uid)
        if assumption is None:
            return ""
        name = assumption.allocation.node
        node_info = self._ledger.node_but(name, uid, now=self._clock.now())
        if node_info is None:
            return ""
        answer = place(node_info, need, strategy=self._strategy())
        return name if isinstance(answer, Placement) else ""

    def prioritize(self, args: ExtenderArgs) -> IntArray:
        """Return the candidates' scores, 0 to 10, in their order; exactly one that fits gets 10.

        All scores are 0 if the pod requests no card.
        """
        pod, names = args.pod, args.node_names
        scores = np.zeros(len(names), np.int64)
        if pod.need is None:
            return scores
        # Where a card is reserved for it, or where its earlier Binding may have taken effect.
        own = self.reserved_node(pod, names) or self._own_node(pod.record.uid, pod.need)
        found = self._evaluate(pod, pod.need, names)
        choice = self._choice(pod, pod.need, names, found, own)
        if choice is not None:
            scores[choice.ranked] = np.rint(choice.quality * _RUNNER_UP).astype(np.int64)
            scores[choice.best] = MAX_SCORE
        return scores

    def ranked(self, args: ExtenderArgs) -> tuple[str, ...]:
        """Return the candidates on which the pod fits, the best first.

        First are those with the fewest taints that it should not tolerate, then those where it
        needs no avoided card.
        """
        pod, names = args.pod, args.node_names
        if pod.need is None:
            return ()
        found = self._evaluate(pod, pod.need, names)
        places = found.fit.fits.nonzero()[0]
        if not places.size:
            return ()
        quality = self._quality(pod, pod.need, found, places)
        taints = self._soft_taints(pod, [names[place] for place in places.tolist()])
        avoided = found.fit.avoided[places]
        order = np.lexsort((found.rows[places], -quality, avoided, np.array(taints)))
        return tuple(names[place] for place in places[order].tolist())

    def _choice(
        self, pod: PodInfo, need: PodNeed, names: Sequence[str], found: _Candidates, own: str
    ) -> _Choice | None:
        if own and own in names:
            return _Choice(best=names.index(own), ranked=_NO_PLACES, quality=_NO_QUALITY)
        fits, avoided = found.fit.fits, found.fit.avoided
        if not fits.any():
            return None
        # A node with nothing but an avoided card gets no point while any other fits.
        others = fits & ~avoided
        fits = others if others.any() else fits
        places = fits.nonzero()[0]
        quality = self._quality(pod, need, found, places)
        # Of equal nodes the one with the lowest row, independent of the candidates' order.
        ties = places[quality == quality.max()]
        best = ties[found.rows[ties].argmin()]
        return _Choice(best=int(best), ranked=places, quality=quality)

    def _best(
        self, pod: PodInfo, need: PodNeed, names: Sequence[str], found: _Candidates, own: str
    ) -> str | None:
        """Return the one of *names*, where the pod fits, that kube-scheduler should take.

        That is the best of those with the fewest taints ``PreferNoSchedule`` that the pod does not
        tolerate, as in kube-scheduler's plugin TaintToleration.
        """
        choice = self._choice(pod, need, names, found, own)
        if choice is not None and any(self._soft_taints(pod, (names[choice.best],))):
            taints = np.array(self._soft_taints(pod, names))
            found.fit.fits[taints > taints[found.fit.fits].min()] = False
            choice = self._choice(pod, need, names, found, own)
        return None if choice is None else names[choice.best]

    def _soft_taints(self, pod: PodInfo, nodes: Iterable[str]) -> list[int]:
        """Return how many taints of each node the pod should tolerate and does not.

        Most nodes have the same ones, and a pod may have many tolerations.
        """
        count = cache(partial(untolerated, tolerations=pod.tolerations))
        known = map(self._ledger.nodes.get, nodes)
        return [count(node.soft_taints) if node and node.soft_taints else 0 for node in known]

    def _quality(
        self, pod: PodInfo, need: PodNeed, found: _Candidates, places: IntArray
    ) -> NDArray[np.float64]:
        """Return how good each of the candidates in *places*, which fit, is, 0..1."""
        order = self._orders.get(need.strategy or self._strategy())
        by_cards, quality = found.fit.score[places], None
        if order is not None and not found.fit.avoided[places].any():
            rows, closed = found.rows[places], found.denied
            quality = order.score(need, pod.host, rows, by_cards=by_cards, closed=closed)
        return by_cards if quality is None else quality


def narrowed(args: ExtenderArgs, result: FilterResult) -> FilterResult:
    """Return the answer with the best node alone, or *result* if the pod has preferences.

    kube-scheduler asks prioritize, and runs its own scoring, only if more than one node passes. For
    a pod that states no preference, scoring would weigh only what nobody asked for: its default
    spreading, and free CPU and memory. What a pod prefers by itself is kube-scheduler's to weigh:
    then every node is named.

    Source: pkg/scheduler schedule_one.go (schedulePod, findNodesThatPassExtenders), 1.36. Nodes
    that an answer leaves out count as hopeless for preemption (``NodeToStatus``), which
    kube-scheduler tries only if no node passes; then nothing is left out. docs/decisions/0047.
    """
    if result.error or len(result.passed) <= 1 or args.pod.has_preferences:
        return result
    best = result.best()
    return result if best is None else FilterResult(passed=(best,))


_MOST_REMEMBERED: Final = 10_000  # refused pods; a forgotten one gets no wait once

_REST_PER_WAIT: Final = 4.0  # kube-scheduler schedules pods one at a time, so waits must be rare


class Filter(Protocol):
    """What this module needs of :class:`scheduler.extender.filter.Extender`."""

    def filter(self, args: ExtenderArgs) -> FilterResult: ...


class StaleCacheRetry:
    """Filters, and filters again once the cache has caught up if it may be stale.

    Args:
        inner: answers from the current cache.
        changes: signals pod and node events.
        clock: bounds the wait.
        limit_s: the longest wait, in seconds; kube-scheduler schedules nothing meanwhile.
    """

    def __init__(
        self, inner: Filter, changes: ChangeSignal, clock: Clock, *, limit_s: float
    ) -> None:
        self._inner = inner
        self._changes = changes
        self._clock = clock
        self._limit_s = limit_s
        self._refused_at: OrderedDict[str, int] = OrderedDict()
        self._rest_until_s = -math.inf
        changes.listen(self._ignore_own_status)

    async def filter(self, args: ExtenderArgs) -> FilterResult:
        """Return the answer of *inner*; a better one if the cache may be stale and catches up."""
        uid = args.pod.record.uid
        result = self._inner.filter(args)
        if not _may_change(result):
            self._refused_at.pop(uid, None)
            return result
        if self._refused_at.get(uid) == self._changes.count:
            result = await self._wait_for_better(args, result)
        self._remember(uid)
        return result

    def _remember(self, uid: str) -> None:
        self._refused_at[uid] = self._changes.count
        self._refused_at.move_to_end(uid)
        if len(self._refused_at) > _MOST_REMEMBERED:
            self._refused_at.popitem(last=False)

    async def _wait_for_better(self, args: ExtenderArgs, result: FilterResult) -> FilterResult:
        began_s = now_s = self._clock.monotonic()
        if now_s < self._rest_until_s:
            return result
        while _may_change(result) and now_s < began_s + self._limit_s:
            if await self._changes.wait(self._clock, limit_s=began_s + self._limit_s - now_s):
                result = self._inner.filter(args)
            now_s = self._clock.monotonic()
        self._rest_until_s = now_s + (now_s - began_s) * _REST_PER_WAIT
        return result

    def _ignore_own_status(self, pod_uid: str) -> None:
        """Ignore the event of kube-scheduler writing our refusal into the pod's own status."""
        if self._refused_at.get(pod_uid) == self._changes.count - 1:
            self._refused_at[pod_uid] += 1


def _may_change(result: FilterResult) -> bool:
    """Report whether no node passed, and a change of pods could let one pass."""
    return not result.passed and not result.error and bool(result.failed)
