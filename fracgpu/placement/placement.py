"""Which cards of a node a pod gets, or card by card why it gets none.

`place` answers for one node, `evaluate` for many at once, and both by the same arrays: what fits is
said by `fracgpu.placement.fit`, and of the cards that fit the best are taken. Only where the best
cards of several containers do not fit together, or where cards must be neighbours, another choice
is searched for on that node.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fracgpu.cards.card import Card, CardUuid
from fracgpu.k8s.container import ContainerKind, ContainerSpec, pod_resource_sum
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.placement.fit import (
    ABSENT,
    REASONS,
    SHARES,
    USABLE,
    CardRequest,
    Cards,
    Codes,
    FitReason,
    Flags,
    IntArray,
    Refusals,
    cards_of,
    node_reason,
    unfit_reasons,
)
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.policies import load_aware, pack, spread, topology
from fracgpu.placement.policies.scoring import Scoring
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy, Topology
from fracgpu.state.allocation import CardAllocation, Slice, allocations_by_card
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.reservation import Reservation
from fracgpu.state.snapshot import NodeInfo
from fracgpu.units import Mib

MAX_SCORE: Final = 10  # kube-scheduler's MaxExtenderPriority

# Several containers on several cards are a packing problem. The search ends after this many tries
# with a reason of its own, rather than stalling the scheduler. Equivalent cards are tried once, so
# ordinary pods take a handful of tries.
_MAX_TRIES: Final = 5_000


# least-waste compares nodes by what it knows of all of them. For a single node it falls back to the
# tightest card, as pack does.
SCORING: Final[Mapping[Strategy, Scoring]] = {
    Strategy.PACK: pack,
    Strategy.SPREAD: spread,
    Strategy.TOPOLOGY: topology,
    Strategy.LOAD_AWARE: load_aware,
    Strategy.LEAST_WASTE: pack,
}

_WITHIN_HEAT: Final = 1e-3  # nodes publish heat in hundredths

HostLeft = Callable[[str, str], HostResources | None]
"""What no pod but one has requested of a node, by node and UID; None if that is not known."""

# The columns of each container's cards, [row, one of its cards], by name; and as [row, card].
_Columns = Mapping[str, IntArray]
_Flags = Mapping[str, Flags]
_Scores = NDArray[np.float64]


def coolest_first(score: _Scores, *, avoided: Flags, heat: _Scores) -> _Scores:
    """Return the scores of cards, those of avoided cards by heat and, if equally hot, by *score*.

    One that was just relieved is among them: the pod gets it only if no cooler card has room.
    """
    if not avoided.any():
        return score
    return np.where(avoided, (1 - _WITHIN_HEAT) * (1.0 - heat) + _WITHIN_HEAT * score, score)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Where a need fits, of the rows that were asked about, and how well.

    Attributes:
        fits: [row] whether it fits.
        node_reasons: [row] the code of the node's own reason why not; 0 if its cards say it all.
        reasons: [row, column] the code of why a card does not fit; USABLE on rows that fit.
        score: [row] the score of the placement, 0..1; 0 where it does not fit.
        avoided: [row] it fits only with a card that is taken where no other fits.
    """

    fits: Flags
    node_reasons: Codes
    reasons: Codes
    score: _Scores
    avoided: Flags

    def put(self, row: int, answer: Placement | NoPlacement, uuids: Sequence[CardUuid]) -> None:
        """Set the answer for one row, whose cards are *uuids* by column."""
        self.reasons[row] = self.node_reasons[row] = self.score[row] = 0
        self.fits[row] = isinstance(answer, Placement)
        self.avoided[row] = isinstance(answer, Placement) and answer.avoided
        if isinstance(answer, Placement):
            self.score[row] = answer.score
            return
        self.node_reasons[row] = 0 if answer.node_reason is None else answer.node_reason.code
        for column, uuid in enumerate(uuids):
            reason = answer.refusals.get(uuid)
            self.reasons[row, column] = 0 if reason is None else reason.code

    @property
    def refusals(self) -> Refusals:
        """Why it does not fit, of the rows where it does not, in their order."""
        unfit = ~self.fits
        return Refusals.of(self.node_reasons[unfit], self.reasons.T.compress(unfit, 1).T)


def evaluate(matrix: NodeMatrix, need: PodNeed, rows: IntArray, *, strategy: Strategy) -> FitResult:
    """Return where a need fits, as `place` would say of each node.

    Args:
        matrix: the cards, as they are now.
        need: what the pod requests.
        rows: the nodes.
        strategy: the cluster's default; the pod's own overrides it.
    """
    cards = matrix.cards(rows)
    node_reasons = matrix.node_state[rows]
    fits = node_reasons == SHARES
    lacking, found, alone = _unfit_alone(cards, need)
    lacking &= fits
    reasons = found * lacking[:, np.newaxis]
    node_reasons[lacking & (found == USABLE).any(1)] = FitReason.TOO_FEW_CARDS.code
    fits &= ~lacking
    first = _Chooser(need, strategy).first_choice(cards, alone)
    score, avoided = np.where(fits, first.score, 0.0), fits & first.avoided
    result = FitResult(
        fits=fits, node_reasons=node_reasons, reasons=reasons, score=score, avoided=avoided
    )
    for row in np.flatnonzero(fits & ~first.settled).tolist():
        node_info = matrix.infos[int(rows[row])]
        assert node_info is not None, "a row in state SHARES has a node"
        result.put(row, place(node_info, need, strategy=strategy), tuple(node_info.cards))
    return result


def place(
    node_info: NodeInfo,
    need: PodNeed,
    *,
    strategy: Strategy,
    exclude: frozenset[CardUuid] = frozenset(),
) -> Placement | NoPlacement:
    """Return the cards for a pod on one node; the same input always gives the same answer.

    The pod's own strategy, if it names one, overrides *strategy*. Cards in *exclude* are treated as
    cordoned. Avoided cards are taken only if the pod does not fit on the others, the coolest first.
    Ties go to the lower index, then the smaller UUID.
    """
    reason = node_reason(node_info)
    if reason is not None:
        return NoPlacement(node=node_info.node.node, node_reason=reason, refusals={})
    cards = cards_of(node_info.cards.values())
    if exclude:
        excluded = np.array([[uuid in exclude for uuid in node_info.cards]])
        cards.state[excluded & (cards.state == USABLE)] = FitReason.CORDONED.code
    lacking, reasons, alone = _unfit_alone(cards, need)
    if lacking[0]:
        return _no_placement(node_info, reasons, FitReason.TOO_FEW_CARDS)
    chooser = _Chooser(need, strategy)
    chosen = chooser.first_choice(cards, alone)
    if not chosen.settled[0]:
        searched = _search(cards, node_info, chooser)
        if isinstance(searched, FitReason):
            return _no_placement(node_info, unfit_reasons(cards, need, None), searched)
        chosen = searched
    uuids = tuple(node_info.cards)
    return Placement(
        node=node_info.node.node,
        assignment={
            container.name: tuple(
                _slice(uuids[column], container, limits_on[column])
                for limits_on in [CardRequest.of(container).limits_on(cards)[0].tolist()]
                for column in chosen.columns[container.name][0].tolist()
            )
            for container in need.containers
        },
        score=float(chosen.score[0]),
        avoided=bool(chosen.avoided[0]),
    )


def _slice(card: CardUuid, container: ContainerNeed, limit_mib: int) -> Slice:
    own_limit_mib = Mib(limit_mib) if limit_mib > container.mib else Mib(0)
    return Slice(card=card, mib=container.mib, cores=container.cores, own_limit_mib=own_limit_mib)


def is_linked(need: PodNeed, *, strategy: Strategy) -> bool:
    """Report whether a container on several cards is to get neighbouring ones."""
    if need.topology is not None:
        return need.topology is Topology.NVLINK
    return SCORING[need.strategy or strategy].LINKED


def cards_for_pod(matrix: NodeMatrix, need: PodNeed) -> Flags:
    """Return on which cards all containers of a pod fit side by side, [row, column].

    No card takes a pod with a container on several cards.
    """
    cards = matrix.cards(slice(matrix.size))
    if any(container.cards > 1 for container in need.containers) or not need.containers:
        return np.zeros(cards.state.shape, np.bool_)
    fits: Flags = (matrix.node_state[: matrix.size] == SHARES)[:, np.newaxis]
    asked = [CardRequest.of(container) for container in need.containers]
    if len(asked) > 1:
        every = np.ones_like(cards.state, np.bool_)
        asked.append(_peak(cards, need, {part.name: every for part in need.containers}))
    for one in asked:
        fits = fits & (unfit_reasons(cards, need, one) == USABLE)
    return fits


def allocation_on_one_card(need: PodNeed, card: Card | None = None) -> CardAllocation:
    """Return what a pod holds whose containers all have one card.

    Without the card it is left out how much the pod may use beyond what it is guaranteed.
    """
    uuid = CardUuid("")
    slices = {}
    for part in need.containers:
        limit_mib = int(CardRequest.of(part).limits_on(card)) if card else part.mib
        slices[part.name] = (_slice(uuid, part, limit_mib),)
    return allocations_by_card(slices, _specs(need))[uuid]


def _specs(need: PodNeed) -> list[ContainerSpec]:
    return [ContainerSpec(name=part.name, kind=part.kind) for part in need.containers]


def _unfit_alone(cards: Cards, need: PodNeed) -> tuple[Flags, Codes, Mapping[str, Flags]]:
    """Return the rows on which some container does not fit by itself, and why.

    The reasons, [row, card], are those of the first such container; of the last one elsewhere. The
    third is where each container fits by itself, [row, card].
    """
    lacking = np.zeros(len(cards.state), np.bool_)
    reasons, alone = cards.state.copy("K"), {}
    for container in need.containers:
        found = unfit_reasons(cards, need, CardRequest.of(container))
        alone[container.name] = found == USABLE
        np.copyto(reasons, found, where=~lacking[:, np.newaxis])
        lacking |= alone[container.name].sum(1) < container.cards
    return lacking, reasons, alone


def _no_placement(node_info: NodeInfo, reasons: Codes, otherwise: FitReason) -> NoPlacement:
    codes = zip(node_info.cards, reasons[0].tolist(), strict=True)
    refusals = {uuid: why for uuid, code in codes if (why := REASONS[code]) is not None}
    return NoPlacement(
        node=node_info.node.node,
        node_reason=None if len(refusals) == len(node_info.cards) else otherwise,
        refusals=refusals,
        cards=len(node_info.cards),
    )


@dataclass(slots=True, kw_only=True)
class _Chosen:
    """The cards of each container on some rows.

    Attributes:
        columns: by container, [row, one of its cards].
        settled: [row] these are the cards that the pod gets; elsewhere they may not fit together.
        score: [row] of these cards, 0..1.
        avoided: [row] one of them is avoided.
    """

    columns: _Columns
    settled: Flags
    score: _Scores
    avoided: Flags


class _Chooser:
    """Chooses cards for one need on any number of rows, [row, card].

    Attributes:
        linked: some container on several cards is to get neighbouring ones.
        largest_first: the containers in the order in which they get cards.
    """

    def __init__(self, need: PodNeed, strategy: Strategy) -> None:
        self.need = need
        self.scoring = SCORING[need.strategy or strategy]
        self.linked = is_linked(need, strategy=strategy) and any(
            container.cards > 1 for container in need.containers
        )
        self.largest_first: Sequence[ContainerNeed] = sorted(
            need.containers,
            key=lambda part: (part.kind is ContainerKind.INIT, -part.mib, -part.cards),
        )

    def first_choice(self, cards: Cards, alone: Mapping[str, Flags]) -> _Chosen:
        """Return the best cards of each container; elsewhere than where each fits, any cards.

        Args:
            cards: of any nodes.
            alone: where each container fits by itself.
        """
        columns: dict[str, IntArray] = {}
        settled = np.full(len(cards.state), not self.linked)
        for container in self.largest_first:
            fits, key = self.ranked(cards, container, columns, alone=alone[container.name])
            columns[container.name] = _best(key, container.cards)
            if len(self.largest_first) > 1:
                settled &= (fits.sum(1) >= container.cards) & self.fit_together(cards, columns)
        chosen = self.chosen(cards, columns)
        chosen.settled = settled
        if len(self.largest_first) > 1:  # without avoided cards there may be another choice
            chosen.settled &= ~chosen.avoided
        return chosen

    def chosen(self, cards: Cards, columns: _Columns) -> _Chosen:
        """Return a choice of cards with its score: the mean over its cards, by what is left."""
        flags = _flags(cards, columns)
        held = _any(cards, flags)
        left_mib = cards.free_mib - _taken(cards, self.need, flags, "mib")
        # Row by row in memory, so that NumPy sums up one node in the order in which it does many.
        scores = np.ascontiguousarray(self._scores(cards, left_mib) * held)
        mean = scores.sum(1) / np.maximum(held.sum(1), 1)
        avoided: Flags = np.any(held & cards.avoided, axis=1)
        settled: Flags = np.ones(len(cards.state), np.bool_)
        score: _Scores = np.clip(mean, 0.0, 1.0)
        return _Chosen(columns=columns, settled=settled, score=score, avoided=avoided)

    def ranked(
        self,
        cards: Cards,
        container: ContainerNeed,
        before: _Columns,
        *,
        alone: Flags | None = None,
    ) -> tuple[Flags, _Scores]:
        """Return on which cards a container fits beside those *before* it, and how good each is.

        The second is lower for avoided cards than for any other, and infinitely low where the
        container does not fit. *alone* is where it fits by itself, if that is known.
        """
        left = cards
        if before:
            taken = _peak(cards, self.need, _flags(cards, before))
            left = cards.less(taken.mib, taken.cores, taken.slots, taken.limit_mib)
        # An init container runs before the apps, so what they take does not count against it.
        asked = cards if container.kind is ContainerKind.INIT else left
        fits = alone
        if fits is None or asked is not cards:
            fits = unfit_reasons(asked, self.need, CardRequest.of(container)) == USABLE
        score = self._scores(cards, left.free_mib - container.mib)
        if cards.avoided.any():
            score = score - 2.0 * cards.avoided
        return fits, np.where(fits, score, -np.inf)

    def fit_together(self, cards: Cards, columns: _Columns) -> Flags:
        """Return the rows on which all containers that have cards fit on them side by side."""
        flags = _flags(cards, columns)
        fits = unfit_reasons(cards, self.need, _peak(cards, self.need, flags)) == USABLE
        together: Flags = (fits | ~_any(cards, flags)).all(1)
        return together

    def _scores(self, cards: Cards, left_mib: IntArray) -> _Scores:
        """Return each card's score by what is left of it."""
        score = self.scoring.score(left_mib / np.maximum(cards.capacity_mib, 1), cards.heat)
        return coolest_first(score, avoided=cards.avoided, heat=cards.heat)


def _peak(cards: Cards, need: PodNeed, flags: _Flags) -> CardRequest:
    """Return what the containers that have cards take of each card at their peak."""
    mib, cores, slots, limit_mib = (
        _taken(cards, need, flags, amount) for amount in ("mib", "cores", "slots", "limit_mib")
    )
    return CardRequest(mib, cores, slots, limit_mib)


def _taken(cards: Cards, need: PodNeed, flags: _Flags, amount: str) -> IntArray:
    """Return what containers take of each card at their peak: an *amount* of `CardRequest`."""
    parts = [
        (part.kind, flags[part.name] * _amount(cards, part, amount))
        for part in need.containers
        if part.name in flags
    ]
    if len(parts) == 1:
        return parts[0][1]
    return np.zeros(cards.state.shape, np.int64) + pod_resource_sum(parts, larger=np.maximum)


def _amount(cards: Cards, container: ContainerNeed, amount: str) -> IntArray | int:
    asked = CardRequest.of(container)
    if amount == "limit_mib":
        return asked.limits_on(cards)
    found: int = getattr(asked, amount)
    return found


def _best(key: _Scores, count: int) -> IntArray:
    """Return the columns of the *count* greatest keys of each row; of equal ones the first."""
    if count == 1:
        found: IntArray = key.argmax(1)[:, np.newaxis]
        return found
    return np.argsort(-key, axis=1, kind="stable")[:, :count]


def _flags(cards: Cards, columns: _Columns) -> _Flags:
    """Return which cards each container has."""
    rows, found = np.arange(len(cards.state))[:, np.newaxis], {}
    for name, those in columns.items():
        found[name] = np.zeros_like(cards.state, np.bool_)
        found[name][rows, those] = True
    return found


def _any(cards: Cards, flags: _Flags) -> Flags:
    """Return which cards any container has."""
    found = np.zeros_like(cards.state, np.bool_)
    for those in flags.values():
        found |= those
    return found


def _search(cards: Cards, node_info: NodeInfo, chooser: _Chooser) -> _Chosen | FitReason:
    """Return the cards for all containers on one node, or why there is no choice of them."""
    preferred = cards._replace(state=np.where(cards.avoided, np.int8(ABSENT), cards.state))
    by_column = [card_info.card for card_info in node_info.cards.values()]
    spent = False
    for some in (preferred, cards) if cards.avoided.any() else (cards,):
        search = _Search(cards=some, chooser=chooser, by_column=by_column)
        columns, spent = search.run(chooser.largest_first, {}), search.tries_left <= 0
        if columns is not None:
            chosen = chooser.chosen(cards, columns)
            if chooser.linked:
                held = np.flatnonzero(_any(cards, _flags(cards, columns))[0]).tolist()
                closeness = topology.closeness([by_column[column] for column in held])
                chosen.score = (chosen.score + closeness) / 2
            return chosen
    return FitReason.TOO_MANY_TRIES if spent else FitReason.CONTAINERS_CLASH


# All that a rule looks at of a card, and the containers placed on it so far: cards with equal keys
# are interchangeable for the rest of a search.
_EquivalenceKey = tuple[tuple[int, ...], tuple[str, ...]]


@dataclass(slots=True, kw_only=True)
class _Search:
    """Depth-first search for an assignment on one node, best cards first, with a bound on it."""

    cards: Cards
    chooser: _Chooser
    by_column: Sequence[Card]
    tries_left: int = _MAX_TRIES

    def run(self, containers: Sequence[ContainerNeed], chosen: _Columns) -> _Columns | None:
        """Return the columns of all containers, those *chosen* included, or None."""
        if not containers:
            return chosen
        container, rest = containers[0], containers[1:]
        failed: set[tuple[_EquivalenceKey, ...]] = set()
        for columns in self._choices(container, chosen):
            key = tuple(sorted(self._equivalence_key(column, chosen) for column in columns))
            if key in failed:
                continue
            self.tries_left -= 1
            if self.tries_left < 0:
                return None
            trial = {**chosen, container.name: np.array([columns])}
            if self.chooser.fit_together(self.cards, trial)[0]:
                found = self.run(rest, trial)
                if found is not None:
                    return found
            failed.add(key)
        return None

    def _choices(self, container: ContainerNeed, chosen: _Columns) -> Iterator[tuple[int, ...]]:
        fits, key = self.chooser.ranked(self.cards, container, chosen)
        best_first: list[int] = _best(key, len(key[0]))[0, : fits.sum()].tolist()
        if self.chooser.linked and 1 < container.cards < len(best_first):
            column = {self.by_column[at].uuid: at for at in best_first}
            ranked = [self.by_column[at] for at in best_first]
            together = topology.neighbours(ranked, container.cards)
            yield tuple(column[card.uuid] for card in together)
        yield from combinations(best_first, container.cards)

    def _equivalence_key(self, column: int, chosen: _Columns) -> _EquivalenceKey:
        cards = self.cards
        amounts = cards.free_mib, cards.capacity_mib, cards.limits_mib, cards.free_limit_mib
        looked_at = (*amounts, cards.free_cores, cards.free_slots, cards.pods, cards.model)
        here = tuple(name for name, columns in chosen.items() if column in columns[0])
        return tuple(int(array[0, column]) for array in looked_at), here


class CardChooser(Protocol):
    """A policy that chooses cards itself rather than scoring them one by one."""

    def prefer(
        self,
        need: PodNeed,
        host: HostResources,
        node: str,
        *,
        closed: Mapping[CardUuid, str],
    ) -> frozenset[CardUuid] | None:
        """Return the cards to take if the pod fits on them, or None for no preference.

        Args:
            need: what the pod requests of cards.
            host: what it requests of the node besides cards.
            node: the node.
            closed: cards that the pod does not get, each with its node.
        """


Choosers = Mapping[Strategy, CardChooser]
NO_CHOOSERS: Final[Choosers] = MappingProxyType({})


def choose_cards(
    node_info: NodeInfo,
    need: PodNeed,
    host: HostResources,
    *,
    strategy: Strategy,
    choosers: Choosers,
) -> Placement | NoPlacement:
    """Return the cards for a pod on one node, or why it does not fit.

    Args:
        node_info: the node, as the ledger has it now.
        need: what the pod requests of cards.
        host: what it requests of the node besides cards.
        strategy: the cluster's default; a pod's own strategy overrides it.
        choosers: the strategies that choose cards themselves.
    """
    chooser = choosers.get(need.strategy or strategy)
    name = node_info.node.node
    closed = {uuid: name for uuid, card_info in node_info.cards.items() if card_info.cordoned}
    preferred = None if chooser is None else chooser.prefer(need, host, name, closed=closed)
    # A preference may be older than the ledger: place checks it, so that no MiB is given twice.
    others = frozenset(node_info.cards) - (preferred or node_info.cards.keys())
    answer = place(node_info, need, strategy=strategy, exclude=others)
    if isinstance(answer, NoPlacement) and others:
        return place(node_info, need, strategy=strategy)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsOnNode:
    """The cards that a pod gets on a node.

    Attributes:
        placement: the cards.
        held: a Move holds them for the pod.
        move: the Move whose reservation the pod consumes; empty if it consumes none.
    """

    placement: Placement
    held: bool = False
    move: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSelector:
    """Selects the cards of pods on the nodes of the ledger.

    Attributes:
        ledger: who holds what, and what Moves claim.
        strategy: returns the cluster's current default.
        choosers: the strategies that choose cards themselves.
        now: returns the time.
    """

    ledger: Ledger
    strategy: Callable[[], Strategy]
    choosers: Choosers = field(default_factory=lambda: NO_CHOOSERS)
    now: Callable[[], datetime]

    def on_node(self, pod: PodInfo, node: str) -> CardsOnNode | NoPlacement | None:
        """Return the cards for a pod on one node, or why it does not fit.

        What is assumed for the pod itself does not count against it. None if the pod requests no
        card, or the node is not known.
        """
        ledger, strategy, now = self.ledger, self.strategy(), self.now()
        node_info = ledger.node_but(node, pod.record.uid, now=now)
        if pod.need is None or node_info is None:
            return None
        held = place_held(ledger, pod, strategy=strategy, now=now, nodes=(node,))
        if held is not None:
            return held
        answer = choose_cards(
            node_info.with_cordoned(denied_cards(ledger, pod, now=now)),
            pod.need,
            pod.host,
            strategy=strategy,
            choosers=self.choosers,
        )
        return answer if isinstance(answer, NoPlacement) else CardsOnNode(placement=answer)


def reservations_for(ledger: Ledger, pod: PodInfo, *, now: datetime) -> Sequence[Reservation]:
    """Return what is held for a pod: for its controller, and for just what it requests."""
    if pod.owner is None or pod.need is None:
        return ()
    found = ledger.reservations.for_pod(pod.owner[2], pod.record.uid, now=now)
    if not found:
        return ()
    containers = pod.need.containers
    if not containers or any(container.cards != 1 for container in containers):
        return []
    wanted = allocation_on_one_card(pod.need)
    # How much more it may use depends on the card, and is looked at there.
    return [one for one in found if structs.replace(one.allocation, borrow_mib=Mib(0)) == wanted]


def place_held(
    ledger: Ledger, pod: PodInfo, *, strategy: Strategy, now: datetime, nodes: Container[str]
) -> CardsOnNode | None:
    """Return the placement of a pod on cards that a Move holds for it.

    That is the card which is reserved for a replacement, or those kept for a pod that waits. None
    if nothing is held for it, or if it does not fit there: pods may have to leave kept cards still.

    Args:
        ledger: who holds what, and what Moves claim.
        pod: the pod to place.
        strategy: the cluster's default.
        now: the time.
        nodes: the nodes that the pod may go to.
    """
    if pod.need is None:
        return None
    for opened, cards, move in _held_for(ledger, pod, now=now):
        if opened.node.node in nodes:
            others = frozenset(opened.cards) - cards
            answer = place(opened, pod.need, strategy=strategy, exclude=others)
            if isinstance(answer, Placement):
                return CardsOnNode(placement=answer, held=True, move=move)
    return None


def _held_for(
    ledger: Ledger, pod: PodInfo, *, now: datetime
) -> Iterator[tuple[NodeInfo, frozenset[CardUuid], str]]:
    """Yield each node where Moves hold cards for a pod, with these free, the cards, and the Move.

    The name of the Move is empty where the pod consumes no reservation.
    """
    uid = pod.record.uid
    for one in reservations_for(ledger, pod, now=now):
        if (node_info := ledger.node_but(one.node, uid, now=now)) is not None:
            yield node_info.without_reservation(one), frozenset({one.card}), one.move
    for hold in ledger.reservations.holds_for(uid):
        node_info = ledger.node_but(hold.node, uid, now=now)
        if hold.until > now and node_info is not None:
            yield node_info.opened_for(uid), hold.cards, ""


def nodes_for(
    ledger: Ledger, pod: PodInfo, nodes: Mapping[str, NodeInfo], *, now: datetime
) -> dict[str, NodeInfo]:
    """Return nodes with what Moves hold for a pod free, and what they keep it off cordoned."""
    denied, uid = denied_cards(ledger, pod, now=now), pod.record.uid
    found = {name: node.with_cordoned(denied).opened_for(uid) for name, node in nodes.items()}
    for reservation in reservations_for(ledger, pod, now=now):
        if reservation.node in found:
            found[reservation.node] = found[reservation.node].without_reservation(reservation)
    return found


def denied_cards(ledger: Ledger, pod: PodInfo, *, now: datetime) -> Mapping[CardUuid, str]:
    """Return the cards that Moves keep a pod off, and the node of each."""
    return {} if pod.owner is None else ledger.reservations.denied(pod.owner[2], now=now)


def cards_without_host(
    ledger: Ledger,
    pod: PodInfo,
    *,
    host_left: HostLeft,
    now: datetime,
) -> Mapping[CardUuid, str]:
    """Return the cards of nodes whose CPU or memory is kept for other pods, and the node of each.

    As long as pods have to leave such a node still, what gets free there is not for others.

    Args:
        ledger: what Moves keep.
        pod: the pod that asks.
        host_left: what no other pod has requested of a node.
        now: the time.
    """
    kept: dict[str, list[HostResources]] = {}
    for hold in ledger.holds_against(pod.record.uid, now=now):
        kept.setdefault(hold.node, []).append(hold.host)
    if not kept:
        return {}
    found: dict[CardUuid, str] = {}
    for node, hosts in kept.items():
        left, node_info = host_left(node, pod.record.uid), ledger.node(node, now=now)
        if left is None or node_info is None:
            continue
        if (left - sum(hosts, NO_HOST_RESOURCES)).lacks(pod.host):
            found |= dict.fromkeys(node_info.cards, node)
    return found
