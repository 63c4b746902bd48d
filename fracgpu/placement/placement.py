"""Which cards of a node a pod gets, or card by card why it gets none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
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

# Several containers on several cards is a small packing problem; past this many tries the answer
# is no, with its own reason, rather than a stalled scheduler. Equal cards are tried once, so what
# people really ask for takes a handful.
_MAX_TRIES: Final = 5_000


# least-waste chooses between nodes by what it knows of all of them; on one node that is known by
# itself, its own rule is the tightest card.
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
    """Choose cards for a pod on one node; the same input always gives the same answer.

    The pod's own strategy, where it names one, beats *strategy*. Cards in *exclude* are treated as
    cordoned. Ties go to the lower index, then the smaller UUID.
    """
    whole = _node_refusal(node_info)
    if whole is not None:
        return NoPlacement(node=node_info.node.node, whole=whole, refusals={})
    scoring = SCORING[need.strategy or strategy]
    linked = is_linked(need, strategy=strategy)
    usable, refusals = _sift(node_info, need, exclude)
    for container in need.containers:
        fitting = [card_info for card_info in usable if _fits(card_info, container) is None]
        if len(fitting) < container.cards:
            refusals.update(
                {load.card.uuid: why for load in usable if (why := _fits(load, container))}
            )
            return _no(node_info, refusals, FitReason.TOO_FEW_CARDS)
    search = _Search(tries_left=_MAX_TRIES, scoring=scoring, linked=linked)
    assignment = search.run(usable, need.containers)
    if assignment is None:
        whole = FitReason.TOO_MANY_TRIES if search.tries_left <= 0 else FitReason.CONTAINERS_CLASH
        return _no(node_info, refusals, whole)
    return Placement(
        node=node_info.node.node,
        assignment=assignment,
        score=_score(node_info, assignment, need, scoring, linked=linked),
    )


def is_linked(need: PodNeed, *, strategy: Strategy) -> bool:
    """Tell whether a container on several cards is to get neighbours."""
    if need.topology is not None:
        return need.topology is Topology.NVLINK
    return SCORING[need.strategy or strategy].LINKED


def score_0_to_10(placement: Placement) -> int:
    """Scale a placement's score to what a scheduler extender may answer."""
    return round(placement.score * MAX_SCORE)


def _no(
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


def _sift(
    node_info: NodeInfo, need: PodNeed, exclude: frozenset[CardUuid]
) -> tuple[list[CardInfo], dict[CardUuid, FitReason]]:
    usable: list[CardInfo] = []
    refusals: dict[CardUuid, FitReason] = {}
    for uuid, card_info in node_info.cards.items():
        if card_info.card.health is not Health.HEALTHY:
            refusals[uuid] = FitReason.UNHEALTHY
        elif card_info.cordoned or uuid in exclude:
            refusals[uuid] = FitReason.CORDONED
        elif not model_allowed(card_info.card.model, globs=need.models):
            refusals[uuid] = FitReason.WRONG_MODEL
        else:
            usable.append(card_info)
    return usable, refusals


def _fits(card_info: CardInfo, need: ContainerNeed) -> FitReason | None:
    if (
        need.share is not None
        and share_of(need.share, capacity_mib=card_info.card.capacity_mib) != need.mib
    ):
        return FitReason.WRONG_CLASS
    if need.mib > card_info.free_mib:
        return FitReason.TOO_LITTLE_FREE
    if need.cores > FULL_CORES - card_info.held_cores:
        return FitReason.TOO_FEW_CORES
    if card_info.free_slots < 1:
        return FitReason.NO_FREE_SLOT
    return None


def _left(card_info: CardInfo, mib: int) -> float:
    return (card_info.free_mib - mib) / max(1, card_info.card.capacity_mib)


@dataclass(slots=True)
class _Search:
    """Depth-first search for an assignment, best cards first, with a bound on its length."""

    tries_left: int
    scoring: Scoring
    linked: bool

    def run(self, loads: Sequence[CardInfo], needs: Sequence[ContainerNeed]) -> Assignment | None:
        specs = [ContainerSpec(name=it.name, kind=it.kind) for it in needs]
        hungry_first = sorted(
            needs, key=lambda it: (it.kind is ContainerKind.INIT, -it.mib, -it.cards)
        )
        found = self._extend(loads, hungry_first, specs, {})
        if found is None:
            return None
        return {it.name: found[it.name] for it in needs}

    def _extend(
        self,
        loads: Sequence[CardInfo],
        needs: Sequence[ContainerNeed],
        specs: Sequence[ContainerSpec],
        chosen: Mapping[str, tuple[Slice, ...]],
    ) -> Assignment | None:
        if not needs:
            return chosen
        need, rest = needs[0], needs[1:]
        failed: set[tuple[_Likeness, ...]] = set()
        for cards in self._choices(loads, need, specs, chosen):
            likeness = tuple(sorted(_likeness(card_info, chosen) for card_info in cards))
            if likeness in failed:
                continue
            self.tries_left -= 1
            if self.tries_left < 0:
                return None
            slices = tuple(
                Slice(card=load.card.uuid, mib=need.mib, cores=need.cores) for load in cards
            )
            trial = {**chosen, need.name: slices}
            if _all_fit(loads, allocations_by_card(trial, specs)):
                found = self._extend(loads, rest, specs, trial)
                if found is not None:
                    return found
            failed.add(likeness)
        return None

    def _choices(
        self,
        loads: Sequence[CardInfo],
        need: ContainerNeed,
        specs: Sequence[ContainerSpec],
        chosen: Mapping[str, tuple[Slice, ...]],
    ) -> Iterator[tuple[CardInfo, ...]]:
        held = allocations_by_card(chosen, specs)
        ranked = []
        for card_info in loads:
            now = _with(card_info, held)
            # An init container runs before the apps, so what they take does not count against it.
            if _fits(card_info if need.kind is ContainerKind.INIT else now, need) is None:
                worse = -self.scoring.score(_left(now, need.mib), card_info.heat)
                ranked.append(((worse, card_info.card.index, card_info.card.uuid), card_info))
        ranked.sort(key=lambda it: it[0])
        best_first = [load for _, load in ranked]
        if self.linked and 1 < need.cards < len(best_first):
            yield _neighbours(best_first, need.cards)
        yield from combinations(best_first, need.cards)


def _neighbours(ranked: Sequence[CardInfo], count: int) -> tuple[CardInfo, ...]:
    by_uuid = {card_info.card.uuid: card_info for card_info in ranked}
    cards = topology.neighbours([load.card for load in ranked], count)
    return tuple(by_uuid[card.uuid] for card in cards)


# Cards that are equal in this are interchangeable for the rest of a search.
_Likeness = tuple[int, int, int, int, tuple[str, ...]]


def _likeness(card_info: CardInfo, chosen: Mapping[str, tuple[Slice, ...]]) -> _Likeness:
    uuid = card_info.card.uuid
    here = tuple(name for name in chosen if any(it.card == uuid for it in chosen[name]))
    return (
        card_info.free_mib,
        card_info.held_cores,
        card_info.free_slots,
        card_info.card.capacity_mib,
        here,
    )


def _with(card_info: CardInfo, held: Mapping[CardUuid, CardAllocation]) -> CardInfo:
    allocation = held.get(card_info.card.uuid)
    return card_info if allocation is None else card_info.plus(allocation, pod_uid="")


def _all_fit(loads: Sequence[CardInfo], held: Mapping[CardUuid, CardAllocation]) -> bool:
    by_uuid = {card_info.card.uuid: card_info for card_info in loads}
    return all(
        allocation.mib <= by_uuid[uuid].free_mib
        and allocation.cores <= FULL_CORES - by_uuid[uuid].held_cores
        and allocation.slots <= by_uuid[uuid].free_slots
        for uuid, allocation in held.items()
    )


def _score(
    node_info: NodeInfo, assignment: Assignment, need: PodNeed, scoring: Scoring, *, linked: bool
) -> float:
    specs = [ContainerSpec(name=it.name, kind=it.kind) for it in need.containers]
    held = allocations_by_card(assignment, specs)
    total = 0.0
    for uuid, allocation in held.items():
        total += scoring.score(
            _left(node_info.cards[uuid], allocation.mib), node_info.cards[uuid].heat
        )
    score = total / len(held)
    if linked and any(it.cards > 1 for it in need.containers):
        score = (score + topology.closeness([node_info.cards[uuid].card for uuid in held])) / 2
    return min(1.0, max(0.0, score))
