"""Filter and prioritize: both read the same cluster state, and change nothing."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import not_
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.node_affinity import untolerated
from fracgpu.k8s.resources import HostResources, pod_requests
from fracgpu.placement.fit_index import FITS, FitIndex, Obstacle, refusal, verdict_of
from fracgpu.placement.node_matrix import IntArray
from fracgpu.placement.outcome import NoPlacement
from fracgpu.placement.placement import MAX_SCORE, place
from fracgpu.placement.reserved import (
    cards_without_host,
    denied_cards,
    place_kept,
    place_reserved,
)
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock
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


class _Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of each candidate, in the order in which kube-scheduler named them.

    Attributes:
        rows: its row in the node matrix.
        verdict: FITS, or why the pod does not fit.
        score: by the card that the pod would get, 0..1.
        avoided: that is a card which is taken only where no other fits.
        denied: the cards that Moves keep the pod off.
    """

    rows: IntArray
    verdict: IntArray
    score: NDArray[np.float64]
    avoided: NDArray[np.bool_]
    denied: Mapping[CardUuid, str]

    def only(self, those: NDArray[np.bool_]) -> "_Candidates":
        """Return some of the candidates."""
        return _Candidates(
            rows=self.rows[those],
            verdict=self.verdict[those],
            score=self.score[those],
            avoided=self.avoided[those],
            denied=self.denied,
        )


class _Passed(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates that passed filter last, and what that was read from.

    Attributes:
        moment: the number of the latest change of the node matrix.
    """

    names: tuple[str, ...]
    found: _Candidates
    need: PodNeed
    strategy: Strategy
    moment: int


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The best of the candidates, and how good those are that come into question.

    Attributes:
        best: its place among the candidates.
        quality: 0..1, of those of which *ranked* has the places; none if the best is given.
    """

    best: int
    ranked: IntArray
    quality: NDArray[np.float64]


class _Refusals:
    """The reasons of the candidates that do not fit.

    Args:
        names: all candidates.
        verdict: FITS, or why the pod does not fit, for each.
        fit_index: whose verdicts they are.
    """

    def __init__(self, names: Sequence[str], verdict: IntArray, fit_index: FitIndex) -> None:
        self._names, self._unfit = names, verdict != FITS
        self._codes: list[int] = verdict[self._unfit].tolist()
        self._why = fit_index.obstacle_of

    @property
    def count(self) -> int:
        """The number of candidates that do not fit."""
        return len(self._codes)

    @property
    def reason(self) -> str:
        """The text that each of them gets, the most common obstacle first.

        Every node gets the same: kube-scheduler sums up equal reasons and sorts different ones as
        text, so only one combined text can list the most common obstacle first.
        """
        counted: Counter[Obstacle] = Counter()
        for code, count in Counter(self._codes).items():
            counted[self._why(code)[0]] += count
        return refusal(counted)

    def by_node(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the reason of each: preemption may help, or not."""
        text = self.reason
        no = tuple(compress(self._names, self._unfit.tolist()))
        may_help = [self._why(code)[1] for code in self._codes]
        return (
            dict.fromkeys(compress(no, may_help), text),
            dict.fromkeys(compress(no, map(not_, may_help)), text),
        )


class Extender:
    """Answers kube-scheduler from the ledger.

    Args:
        fit_index: where each need fits.
        strategy: returns the cluster's current default.
        clock: the time at which cordons and assumptions are evaluated.
        orders: strategies that score nodes themselves.
        host_left: what no pod has requested of a node's CPU and memory; None if it is not known.
    """

    def __init__(
        self,
        fit_index: FitIndex,
        *,
        strategy: Callable[[], Strategy],
        clock: Clock,
        orders: dict[Strategy, NodeScorer] | None = None,
        host_left: Callable[[str], HostResources | None] = lambda _: None,
    ) -> None:
        self._fit_index = fit_index
        self._strategy = strategy
        self._clock = clock
        self._ledger = fit_index.matrix.ledger
        self._orders = orders or {}
        self._host_left = host_left
        self._passed: _Passed | None = None

    def filter(self, args: ExtenderArgs) -> FilterResult:
        """Return the candidates on which the pod fits, and the reasons for the others."""
        pod, names = args.pod, args.node_names
        if pod.need_problem:
            return FilterResult(unresolvable=dict.fromkeys(names, pod.need_problem))
        if pod.need is None:
            return FilterResult(passed=names)
        reserved = self._reserved_node(pod, names)
        if reserved:
            others = (name for name in names if name != reserved)
            return FilterResult(passed=(reserved,), failed=dict.fromkeys(others, _RESERVED))
        found = self._evaluate(pod, pod.need, names)
        verdict = found.verdict
        own = self._own_node(pod.record.uid, pod.need)
        if own and own in names:
            verdict[names.index(own)] = FITS
        fits = verdict == FITS
        everywhere = np.count_nonzero(fits) == len(names)
        passed = names if everywhere else tuple(compress(names, fits.tolist()))
        # On its own node a pod fits beside what is assumed for it, and no other pod does.
        self._passed = (
            None
            if own
            else _Passed(
                names=passed,
                found=found if everywhere else found.only(fits),
                need=pod.need,
                strategy=self._strategy(),
                moment=self._fit_index.matrix.now,
            )
        )
        if everywhere:
            return FilterResult(passed=passed)
        return FilterResult(passed=passed, refusals=_Refusals(names, verdict, self._fit_index))

    def _reserved_node(self, pod: PodInfo, names: Sequence[str]) -> str:
        """Return the candidate on which a Move holds a card for the pod; empty if there is none.

        A reservation on a node that is no candidate, or on a card that cannot take the pod any
        more, is given up: the pod is placed like any other.
        """
        strategy, now = self._strategy(), self._clock.now()
        held = place_reserved(self._ledger, pod, strategy=strategy, now=now, nodes=names)
        if held is not None:
            return held.reservation.node
        kept = place_kept(self._ledger, pod, strategy=strategy, now=now, nodes=names)
        return "" if kept is None else kept.hold.node

    def _evaluate(self, pod: PodInfo, need: PodNeed, names: Sequence[str]) -> _Candidates:
        """Return what each candidate would give the pod, without the cards that it is kept off."""
        now, strategy = self._clock.now(), self._strategy()
        denied = {
            **denied_cards(self._ledger, pod, now=now),
            **cards_without_host(self._ledger, pod, host_left=self._host_left, now=now),
        }
        matrix, passed = self._fit_index.matrix, self._passed
        if passed is not None and passed.names is names and passed.need is need:
            matrix.refresh(now=now)
            as_before = passed.moment == matrix.now and passed.strategy is strategy
            # A card that the pod is kept off changes what its node gives.
            if as_before and not denied and not passed.found.denied:
                return passed.found
        answers = self._fit_index.evaluate(need, strategy=strategy, now=now)
        rows = matrix.rows_of(names)
        found = _Candidates(
            rows=rows,
            verdict=answers.verdict[rows],
            score=answers.score[rows],
            avoided=answers.avoided[rows],
            denied=denied,
        )
        for node in set(found.denied.values()).intersection(names) if found.denied else ():
            at = names.index(node)
            node_info = self._ledger.node(node, now=now)
            if found.verdict[at] != FITS or node_info is None:
                continue
            answer = place(node_info.with_cordoned(found.denied), need, strategy=strategy)
            if isinstance(answer, NoPlacement):
                found.verdict[at] = verdict_of(answer)
            else:
                found.score[at], found.avoided[at] = answer.score, answer.avoided
        return found

    def _own_node(self, uid: str, need: PodNeed) -> str:
        """Return the node where the pod itself is assumed and would fit; empty if there is none.

        Its Binding, or the answer to it, may have been lost.
        """
        assumption = self._ledger.assumed.get(uid)
        if assumption is None:
            return ""
        name = assumption.allocation.node
        node_info = self._ledger.node_but(name, uid, now=self._clock.now())
        if node_info is None or isinstance(
            place(node_info, need, strategy=self._strategy()), NoPlacement
        ):
            return ""
        return name

    def prioritize(self, args: ExtenderArgs) -> IntArray:
        """Return the candidates' scores, 0 to 10, in their order; exactly one that fits gets 10.

        All scores are 0 if the pod requests no card.
        """
        scores = np.zeros(len(args.node_names), np.int64)
        choice = self._choice(args.pod, args.node_names)
        if choice is not None:
            scores[choice.ranked] = np.rint(choice.quality * _RUNNER_UP).astype(np.int64)
            scores[choice.best] = MAX_SCORE
        return scores

    def winner(self, pod: PodInfo, names: tuple[str, ...]) -> str | None:
        """Return the candidate to which `prioritize` gives the maximum; None if none gets it."""
        choice = self._choice(pod, names)
        return None if choice is None else names[choice.best]

    def _choice(self, pod: PodInfo, names: tuple[str, ...]) -> _Choice | None:
        if pod.need is None:
            return None
        found = self._evaluate(pod, pod.need, names)
        # Where a card is reserved for it, or where its earlier Binding may have taken effect.
        own = self._reserved_node(pod, names) or self._own_node(pod.record.uid, pod.need)
        if own and own in names:
            return _Choice(best=names.index(own), ranked=_NO_PLACES, quality=_NO_QUALITY)
        fits = found.verdict == FITS
        if not np.count_nonzero(fits):
            return None
        # A node with nothing but an avoided card gets no point while any other fits.
        others = fits & ~found.avoided
        fits = others if others.any() else fits
        places = fits.nonzero()[0]
        ranked = found if len(places) == len(names) else found.only(fits)
        quality = self._quality(pod, pod.need, ranked)
        # Of equal nodes the one with the lowest row, independent of the candidates' order.
        ties = (quality == quality.max()).nonzero()[0]
        best = ties[0] if len(ties) == 1 else ties[ranked.rows[ties].argmin()]
        return _Choice(best=int(places[best]), ranked=places, quality=quality)

    def best(self, pod: PodInfo, names: Sequence[str]) -> str | None:
        """Return the one of *names*, which passed, that kube-scheduler should take.

        That is the best of those with the fewest taints ``PreferNoSchedule`` that the pod does not
        tolerate, as in kube-scheduler's plugin TaintToleration. None if the pod requests no card.
        """
        best = self.winner(pod, tuple(names))
        if best is None or not self._soft_taints(pod, best):
            return best
        taints = [self._soft_taints(pod, name) for name in names]
        fewest = min(taints)
        preferred = (name for name, count in zip(names, taints, strict=True) if count == fewest)
        return self.winner(pod, tuple(preferred))

    def _soft_taints(self, pod: PodInfo, node: str) -> int:
        known = self._ledger.nodes.get(node)
        return 0 if known is None else untolerated(known.soft_taints, pod.tolerations)

    def _quality(self, pod: PodInfo, need: PodNeed, found: _Candidates) -> NDArray[np.float64]:
        """Return how good each of the candidates, which fit, is, 0..1."""
        order = self._orders.get(need.strategy or self._strategy())
        quality = None
        if order is not None and not found.avoided.any():
            host = pod_requests(pod.record.containers)
            quality = order.score(need, host, found.rows, by_cards=found.score, closed=found.denied)
        return found.score if quality is None else quality
