"""Filter and prioritize: both read the same cluster state, and change nothing."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid
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

# The best node gets all ten points and every other at most these. So the scores of kube-scheduler's
# plugins do not outweigh the difference, and kube-scheduler breaks no tie at random.
_RUNNER_UP: Final = 7

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
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
        # The last candidates that passed, their rows, and the change of the matrix as of which.
        self._passed: tuple[tuple[str, ...], IntArray, int] = ((), np.zeros(0, np.int64), -1)

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
        if fits.all():
            self._passed = names, found.rows, self._fit_index.matrix.now
            return FilterResult(passed=names)
        unfit = ~fits
        codes: list[int] = verdict[unfit].tolist()
        counts = Counter(codes)
        why = {code: self._fit_index.obstacle_of(code) for code in counts}
        counted: Counter[Obstacle] = Counter()
        for code, count in counts.items():
            counted[why[code][0]] += count
        # Every node gets the same text: kube-scheduler sums up equal reasons and sorts different
        # ones as text, so only one combined text can list the most common obstacle first.
        text = refusal(counted)
        no = tuple(compress(names, unfit.tolist()))
        may_help = [why[code][1] for code in codes]
        failed = dict.fromkeys(compress(no, may_help), text)
        unresolvable = dict.fromkeys(compress(no, map(not_, may_help)), text)
        passed = tuple(compress(names, fits.tolist()))
        self._passed = passed, found.rows[fits], self._fit_index.matrix.now
        return FilterResult(passed=passed, failed=failed, unresolvable=unresolvable)

    def _reserved_node(self, pod: PodInfo, names: Sequence[str]) -> str:
        """Return the candidate on which a Move holds a card for the pod; empty if there is none.

        A reservation on a node that is no candidate, or on a card that cannot take the pod any
        more, is given up: the pod is placed like any other.
        """
        held = place_reserved(
            self._ledger, pod, strategy=self._strategy(), now=self._clock.now(), nodes=names
        )
        if held is not None:
            return held.reservation.node
        kept = place_kept(
            self._ledger, pod, strategy=self._strategy(), now=self._clock.now(), nodes=names
        )
        return "" if kept is None else kept.hold.node

    def _evaluate(self, pod: PodInfo, need: PodNeed, names: Sequence[str]) -> _Candidates:
        """Return what each candidate would give the pod, without the cards that it is kept off."""
        now, strategy = self._clock.now(), self._strategy()
        answers = self._fit_index.evaluate(need, strategy=strategy, now=now)
        rows = self._rows_of(names)
        found = _Candidates(
            rows=rows,
            verdict=answers.verdict[rows],
            score=answers.score[rows],
            avoided=answers.avoided[rows],
            denied={
                **denied_cards(self._ledger, pod, now=now),
                **cards_without_host(self._ledger, pod, host_left=self._host_left, now=now),
            },
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

    def _rows_of(self, names: Sequence[str]) -> IntArray:
        """Return the rows of candidates; those that have just passed are not looked up again."""
        matrix = self._fit_index.matrix
        passed, rows, moment = self._passed
        return rows if names is passed and moment == matrix.now else matrix.rows_of(names)

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
        pod, names = args.pod, args.node_names
        if pod.need is None:
            return np.zeros(len(names), np.int64)
        found = self._evaluate(pod, pod.need, names)
        fitting = np.flatnonzero(found.verdict == FITS)
        scores = np.zeros(len(names), np.int64)
        # Where a card is reserved for it, or where its earlier Binding may have taken effect.
        own = self._reserved_node(pod, names) or self._own_node(pod.record.uid, pod.need)
        if own and own in names:
            scores[names.index(own)] = MAX_SCORE
            return scores
        if not len(fitting):
            return scores
        # A node with nothing but an avoided card gets no point while any other fits.
        others = fitting[~found.avoided[fitting]]
        ranked = others if len(others) else fitting
        quality = self._quality(pod, pod.need, found, ranked)
        scores[ranked] = np.rint(quality * _RUNNER_UP).astype(np.int64)
        # Of equal nodes the one with the lowest row, independent of the candidates' order.
        ties = np.flatnonzero(quality == quality.max())
        scores[ranked[ties[found.rows[ranked[ties]].argmin()]]] = MAX_SCORE
        return scores

    def best(self, pod: PodInfo, names: Sequence[str]) -> str | None:
        """Return the one of *names*, which passed, that kube-scheduler should take.

        None if the pod requests no card, or if a taint of that node asks for pods to run elsewhere.
        """
        scores = self.prioritize(ExtenderArgs(pod=pod, node_names=tuple(names)))
        at = int(scores.argmax())
        known = self._ledger.nodes.get(names[at])
        if scores[at] != MAX_SCORE or known is None or known.discouraged:
            return None
        return names[at]

    def _quality(
        self, pod: PodInfo, need: PodNeed, found: _Candidates, ranked: IntArray
    ) -> NDArray[np.float64]:
        """Return how good each of the *ranked* candidates is, 0..1."""
        order = self._orders.get(need.strategy or self._strategy())
        quality = None
        if order is not None and not found.avoided[ranked].any():
            host = pod_requests(pod.record.containers)
            quality = order.score(
                need, host, found.rows[ranked], by_cards=found.score[ranked], closed=found.denied
            )
        return found.score[ranked] if quality is None else quality
