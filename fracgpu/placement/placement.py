"""Which cards of a node a pod gets, or card by card why it gets none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Final

from fracgpu.cards.card import FULL_CORES, CardUuid, Health
from fracgpu.cards.card_class import model_allowed
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.placement.outcome import FitReason, NoPlacement, Placement
from fracgpu.placement.policies import load_aware, pack, spread, topology
from fracgpu.placement.policies.scoring import Scoring
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy, Topology
from fracgpu.state.allocation import Assignment, CardAllocation, Slice, allocations_by_card
from fracgpu.state.snapshot import CardInfo, NodeInfo
from fracgpu.units import share_of

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


def place(
    node_info: NodeInfo,
    need: PodNeed,
    *,
    strategy: Strategy,
    exclude: frozenset[CardUuid] = frozenset(),
) -> Placement | NoPlacement:
    """Return the cards for a pod on one node; the same input always gives the same answer.

    The pod's own strategy, if it names one, overrides *strategy*. Cards in *exclude* are treated as
    cordoned. Avoided cards are taken only if the pod does not fit on the others. Ties go to the
    lower index, then the smaller UUID.
    """
    whole = _node_refusal(node_info)
    if whole is not None:
        return NoPlacement(node=node_info.node.node, whole=whole, refusals={})
    scoring = SCORING[need.strategy or strategy]
    linked = is_linked(need, strategy=strategy)
    usable, refusals = _usable_cards(node_info, need, exclude)
    fitting: Sequence[CardInfo] = ()
    for container in need.containers:
        fitting = [card_info for card_info in usable if _unfit_reason(card_info, container) is None]
        if len(fitting) < container.cards:
            refusals.update(
                {
                    card_info.card.uuid: why
                    for card_info in usable
                    if (why := _unfit_reason(card_info, container))
                }
            )
            return _no_placement(node_info, refusals, FitReason.TOO_FEW_CARDS)
    if len(need.containers) == 1 and not linked:  # nearly every pod: there is nothing to search
        return _place_one(node_info, fitting, need.containers[0], scoring)
    preferred = [card_info for card_info in usable if not card_info.avoided]
    search = _Search(tries_left=_MAX_TRIES, scoring=scoring, linked=linked)
    assignment = search.run(preferred, need.containers)
    avoided = assignment is None and len(preferred) < len(usable)
    if avoided:
        search = _Search(tries_left=_MAX_TRIES, scoring=scoring, linked=linked)
        assignment = search.run(usable, need.containers)
    if assignment is None:
        whole = FitReason.TOO_MANY_TRIES if search.tries_left <= 0 else FitReason.CONTAINERS_CLASH
        return _no_placement(node_info, refusals, whole)
    return Placement(
        node=node_info.node.node,
        assignment=assignment,
        score=_score(node_info, assignment, need, scoring, linked=linked),
        avoided=avoided,
    )


def _place_one(
    node_info: NodeInfo,
    fitting: Sequence[CardInfo],
    container: ContainerNeed,
    scoring: Scoring,
) -> Placement:
    """Return the best cards for a single container, of those that fit: what a search would find."""
    ranked = []
    for card_info in fitting:
        score, card = (
            scoring.score(_left_ratio(card_info, container.mib), card_info.heat),
            card_info.card,
        )
        ranked.append(((card_info.avoided, -score, card.index, card.uuid), score, card_info))
    best = sorted(ranked, key=itemgetter(0))[: container.cards]
    total = 0.0
    for _, score, _ in best:
        total += score
    return Placement(
        node=node_info.node.node,
        assignment={
            container.name: tuple(
                Slice(card=card_info.card.uuid, mib=container.mib, cores=container.cores)
                for _, _, card_info in best
            )
        },
        score=min(1.0, max(0.0, total / len(best))),
        avoided=any(card_info.avoided for _, _, card_info in best),
    )


def cards_open_to(
    node_info: NodeInfo, need: PodNeed, container: ContainerNeed
) -> Sequence[CardInfo]:
    """Return the cards that a container of the pod may have, however much is held on them."""
    if _node_refusal(node_info) is not None:
        return ()
    usable, _ = _usable_cards(node_info, need, frozenset())
    return [card_info for card_info in usable if not _is_other_class(card_info, container)]


def is_linked(need: PodNeed, *, strategy: Strategy) -> bool:
    """Report whether a container on several cards is to get neighbouring ones."""
    if need.topology is not None:
        return need.topology is Topology.NVLINK
    return SCORING[need.strategy or strategy].LINKED


def _no_placement(
    node_info: NodeInfo, refusals: dict[CardUuid, FitReason], otherwise: FitReason
) -> NoPlacement:
    every = len(refusals) == len(node_info.cards)
    return NoPlacement(
        node=node_info.node.node,
        whole=None if every else otherwise,
        refusals=refusals,
        cards=len(node_info.cards),
    )


def _node_refusal(node_info: NodeInfo) -> FitReason | None:
    if not node_info.node.shared:
        return FitReason.NOT_SHARED
    if not node_info.node.schedulable:
        return FitReason.UNSCHEDULABLE
    if node_info.node.problem:
        return FitReason.UNREADABLE
    if not node_info.cards:
        return FitReason.NO_INVENTORY
    return None


def _usable_cards(
    node_info: NodeInfo, need: PodNeed, exclude: frozenset[CardUuid]
) -> tuple[list[CardInfo], dict[CardUuid, FitReason]]:
    usable: list[CardInfo] = []
    refusals: dict[CardUuid, FitReason] = {}
    for uuid, card_info in node_info.cards.items():
        if card_info.card.health is not Health.HEALTHY:
            refusals[uuid] = FitReason.UNHEALTHY
        elif card_info.cordoned or card_info.kept_for or uuid in exclude:
            refusals[uuid] = FitReason.CORDONED
        elif not model_allowed(card_info.card.model, globs=need.models):
            refusals[uuid] = FitReason.WRONG_MODEL
        else:
            usable.append(card_info)
    return usable, refusals


def _unfit_reason(card_info: CardInfo, need: ContainerNeed) -> FitReason | None:
    if _is_other_class(card_info, need):
        return FitReason.WRONG_CLASS
    if need.mib > card_info.free_mib:
        return FitReason.TOO_LITTLE_FREE
    if need.cores > FULL_CORES - card_info.held_cores:
        return FitReason.TOO_FEW_CORES
    if card_info.free_slots < 1:
        return FitReason.NO_FREE_SLOT
    return None


def _is_other_class(card_info: CardInfo, need: ContainerNeed) -> bool:
    capacity_mib = card_info.card.capacity_mib
    return need.share is not None and share_of(need.share, capacity_mib=capacity_mib) != need.mib


def _left_ratio(card_info: CardInfo, mib: int) -> float:
    return (card_info.free_mib - mib) / max(1, card_info.card.capacity_mib)


@dataclass(slots=True)
class _Search:
    """Depth-first search for an assignment, best cards first, with a bound on its length."""

    tries_left: int
    scoring: Scoring
    linked: bool

    def run(
        self, card_infos: Sequence[CardInfo], needs: Sequence[ContainerNeed]
    ) -> Assignment | None:
        specs = [ContainerSpec(name=need.name, kind=need.kind) for need in needs]
        largest_first = sorted(
            needs, key=lambda need: (need.kind is ContainerKind.INIT, -need.mib, -need.cards)
        )
        found = self._extend(card_infos, largest_first, specs, {})
        if found is None:
            return None
        return {need.name: found[need.name] for need in needs}

    def _extend(
        self,
        card_infos: Sequence[CardInfo],
        needs: Sequence[ContainerNeed],
        specs: Sequence[ContainerSpec],
        chosen: Mapping[str, tuple[Slice, ...]],
    ) -> Assignment | None:
        if not needs:
            return chosen
        need, rest = needs[0], needs[1:]
        failed: set[tuple[_EquivalenceKey, ...]] = set()
        for cards in self._choices(card_infos, need, specs, chosen):
            key = tuple(sorted(_equivalence_key(card_info, chosen) for card_info in cards))
            if key in failed:
                continue
            self.tries_left -= 1
            if self.tries_left < 0:
                return None
            slices = tuple(
                Slice(card=card_info.card.uuid, mib=need.mib, cores=need.cores)
                for card_info in cards
            )
            trial = {**chosen, need.name: slices}
            if _all_fit(card_infos, allocations_by_card(trial, specs)):
                found = self._extend(card_infos, rest, specs, trial)
                if found is not None:
                    return found
            failed.add(key)
        return None

    def _choices(
        self,
        card_infos: Sequence[CardInfo],
        need: ContainerNeed,
        specs: Sequence[ContainerSpec],
        chosen: Mapping[str, tuple[Slice, ...]],
    ) -> Iterator[tuple[CardInfo, ...]]:
        held = allocations_by_card(chosen, specs)
        ranked = []
        for card_info in card_infos:
            with_chosen = _with(card_info, held)
            # An init container runs before the apps, so what they take does not count against it.
            if (
                _unfit_reason(card_info if need.kind is ContainerKind.INIT else with_chosen, need)
                is None
            ):
                negated_score = -self.scoring.score(
                    _left_ratio(with_chosen, need.mib), card_info.heat
                )
                card = card_info.card
                key = (card_info.avoided, negated_score, card.index, card.uuid)
                ranked.append((key, card_info))
        ranked.sort(key=lambda entry: entry[0])
        best_first = [card_info for _, card_info in ranked]
        if self.linked and 1 < need.cards < len(best_first):
            yield _neighbours(best_first, need.cards)
        yield from combinations(best_first, need.cards)


def _neighbours(ranked: Sequence[CardInfo], count: int) -> tuple[CardInfo, ...]:
    by_uuid = {card_info.card.uuid: card_info for card_info in ranked}
    cards = topology.neighbours([card_info.card for card_info in ranked], count)
    return tuple(by_uuid[card.uuid] for card in cards)


# (free MiB, held cores, free slots, capacity MiB, containers placed here so far): cards with equal
# keys are interchangeable for the rest of a search.
_EquivalenceKey = tuple[int, int, int, int, tuple[str, ...]]


def _equivalence_key(
    card_info: CardInfo, chosen: Mapping[str, tuple[Slice, ...]]
) -> _EquivalenceKey:
    uuid = card_info.card.uuid
    here = tuple(name for name in chosen if any(part.card == uuid for part in chosen[name]))
    return (
        card_info.free_mib,
        card_info.held_cores,
        card_info.free_slots,
        card_info.card.capacity_mib,
        here,
    )


def _with(card_info: CardInfo, held: Mapping[CardUuid, CardAllocation]) -> CardInfo:
    allocation = held.get(card_info.card.uuid)
    return card_info if allocation is None else card_info.with_allocation(allocation, pod_uid="")


def _all_fit(card_infos: Sequence[CardInfo], held: Mapping[CardUuid, CardAllocation]) -> bool:
    by_uuid = {card_info.card.uuid: card_info for card_info in card_infos}
    return all(
        allocation.mib <= by_uuid[uuid].free_mib
        and allocation.cores <= FULL_CORES - by_uuid[uuid].held_cores
        and allocation.slots <= by_uuid[uuid].free_slots
        for uuid, allocation in held.items()
    )


def _score(
    node_info: NodeInfo, assignment: Assignment, need: PodNeed, scoring: Scoring, *, linked: bool
) -> float:
    specs = [
        ContainerSpec(name=container.name, kind=container.kind) for container in need.containers
    ]
    held = allocations_by_card(assignment, specs)
    total = 0.0
    for uuid, allocation in held.items():
        total += scoring.score(
            _left_ratio(node_info.cards[uuid], allocation.mib), node_info.cards[uuid].heat
        )
    score = total / len(held)
    if linked and any(container.cards > 1 for container in need.containers):
        score = (score + topology.closeness([node_info.cards[uuid].card for uuid in held])) / 2
    return min(1.0, max(0.0, score))


def allocation_on_one_card(need: PodNeed) -> CardAllocation:
    """Return what a pod holds whose containers all have one card."""
    card = CardUuid("")
    slices = {
        part.name: (Slice(card=card, mib=part.mib, cores=part.cores),) for part in need.containers
    }
    specs = [ContainerSpec(name=part.name, kind=part.kind) for part in need.containers]
    return allocations_by_card(slices, specs)[card]
