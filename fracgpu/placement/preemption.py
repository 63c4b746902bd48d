"""Whom to take off a node so that a more important pod fits: victims that free one card.

kube-scheduler adds up a node's memory, so it would take pods off several cards and free room on
none. Here every victim is needed on the card that the pod gets, or for CPU and memory of the host.
Among cards, the victims decide: no broken budget before any, then the lower highest priority, then
fewer of them, as kube-scheduler itself chooses between nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from fracgpu.cards.card import FULL_CORES, CardUuid
from fracgpu.k8s.disruption_budget import BudgetedPod, PodDisruptionBudget, violations
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.snapshot import CardInfo, NodeInfo

# Of more victims than this on one card, the largest are taken first rather than every set tried.
_MOST_TRIED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PotentialVictim:
    """A pod on the node that may be taken.

    Attributes:
        priority: lower than that of the pod that wants in.
        started: when it started, as the API server writes times.
        host: what it would give back besides cards.
    """

    uid: str
    budgeted: BudgetedPod
    priority: int
    started: str = ""
    host: HostResources
    by_card: Mapping[CardUuid, CardAllocation]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionTarget:
    """What a node would have to find for the pod.

    Attributes:
        node: the node's cards as they will be once pods that are going have gone.
        missing: CPU, memory and pods that the node lacks now; zero or less where it lacks none.
    """

    node: NodeInfo
    missing: HostResources


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The pods to take, and how many of them break a disruption budget."""

    uids: tuple[str, ...]
    violations: int


_Cost = tuple[int, int, int, int, tuple[str, ...]]


def choose_victims(
    room: PreemptionTarget,
    need: PodNeed,
    occupants: Sequence[PotentialVictim],
    *,
    strategy: Strategy,
    budgets: Sequence[PodDisruptionBudget] = (),
    proposed: frozenset[str] = frozenset(),
) -> Victims | None:
    """Choose the victims on one node; None where no choice would let the pod in.

    Args:
        room: the node.
        need: what the pod must be given.
        occupants: pods of lower priority; nobody else is taken.
        strategy: the cluster's default, which says what fits side by side.
        budgets: the disruption budgets.
        proposed: whom kube-scheduler would take; the first to go where the host lacks something.
    """

    def cost(victims: Sequence[PotentialVictim]) -> _Cost:
        return (
            violations([it.budgeted for it in victims], budgets),
            max((it.priority for it in victims), default=0),
            len(victims),
            sum(it.priority for it in victims),
            tuple(sorted(it.uid for it in victims)),
        )

    def fits(victims: Sequence[PotentialVictim]) -> bool:
        return isinstance(place(_without(room.node, victims), need, strategy=strategy), Placement)

    holders = [it for it in occupants if it.by_card]
    if fits(()):
        chosen: Sequence[PotentialVictim] | None = ()
    elif not fits(holders):
        return None
    elif len(need.containers) == 1:
        chosen = _on_cards(room.node, need, holders, cost)
    else:
        chosen = _fewer(holders, fits)
    if chosen is None or not fits(chosen):
        chosen = _fewer(holders, fits)
    complete = _with_host(chosen, occupants, room.missing, proposed)
    if not complete:
        return None
    return Victims(
        uids=tuple(it.uid for it in _most_important_first(complete)),
        violations=violations([it.budgeted for it in complete], budgets),
    )


def _on_cards(
    node_info: NodeInfo,
    need: PodNeed,
    holders: Sequence[PotentialVictim],
    cost: Callable[[Sequence[PotentialVictim]], _Cost],
) -> Sequence[PotentialVictim] | None:
    """Free as many single cards as the one container needs, the cheapest ones."""
    (container,) = need.containers
    alone = replace(need, containers=(replace(container, cards=1),), topology=None)
    found: list[tuple[_Cost, tuple[PotentialVictim, ...]]] = []
    for uuid, card_info in node_info.cards.items():
        here = [it for it in holders if uuid in it.by_card]
        victims = _of_card(node_info, card_info, alone, here, cost)
        if victims is not None:
            found.append((cost(victims), victims))
    if len(found) < container.cards:
        return None
    found.sort(key=lambda it: it[0])
    union = {it.uid: it for _, victims in found[: container.cards] for it in victims}
    return tuple(union.values())


def _of_card(
    node_info: NodeInfo,
    card_info: CardInfo,
    need: PodNeed,
    here: Sequence[PotentialVictim],
    cost: Callable[[Sequence[PotentialVictim]], _Cost],
) -> tuple[PotentialVictim, ...] | None:
    """Find the cheapest victims that make one slice fit on one card; none if it fits anyway."""
    uuid = card_info.card.uuid
    (container,) = need.containers

    def enough(victims: Sequence[PotentialVictim]) -> bool:
        mib = card_info.free_mib + sum(it.by_card[uuid].mib for it in victims)
        cores = FULL_CORES - card_info.held_cores + sum(it.by_card[uuid].cores for it in victims)
        slots = card_info.free_slots + sum(it.by_card[uuid].slots for it in victims)
        return container.mib <= mib and container.cores <= cores and slots >= 1

    emptied = card_info
    for it in here:
        emptied = emptied.minus(it.by_card[uuid], pod_uid=it.uid)
    single = NodeInfo(node=replace(node_info.node, cards=(card_info.card,)), cards={uuid: emptied})
    if not isinstance(place(single, need, strategy=Strategy.PACK), Placement):
        return None
    if enough(()):
        return ()
    unprotected = [it for it in here if not cost((it,))[0]]
    for pool in (unprotected, here):
        for highest in sorted({it.priority for it in pool}):
            some = [it for it in pool if it.priority <= highest]
            if enough(some):
                return _fewest(some, enough, cost, card=uuid)
    return None


def _fewest(
    some: Sequence[PotentialVictim],
    enough: Callable[[Sequence[PotentialVictim]], bool],
    cost: Callable[[Sequence[PotentialVictim]], _Cost],
    *,
    card: CardUuid,
) -> tuple[PotentialVictim, ...]:
    for count in range(1, min(_MOST_TRIED, len(some)) + 1):
        sets = [victims for victims in combinations(some, count) if enough(victims)]
        if sets:
            return min(sets, key=cost)
    largest_first = sorted(some, key=lambda it: (-it.by_card[card].mib, it.priority, it.uid))
    taken: list[PotentialVictim] = []
    for it in largest_first:
        if enough(taken):
            break
        taken.append(it)
    return tuple(_fewer(taken, enough))


def _fewer(
    victims: Sequence[PotentialVictim], fits: Callable[[Sequence[PotentialVictim]], bool]
) -> Sequence[PotentialVictim]:
    """Let go of whom it works without, the most important first."""
    left = list(victims)
    for it in _most_important_first(victims):
        rest = [other for other in left if other is not it]
        if fits(rest):
            left = rest
    return left


def _with_host(
    chosen: Sequence[PotentialVictim],
    occupants: Sequence[PotentialVictim],
    missing: HostResources,
    proposed: frozenset[str],
) -> Sequence[PotentialVictim]:
    """Add whom it takes for CPU, memory and places; empty where that is nobody or not enough."""

    def lacks(victims: Sequence[PotentialVictim]) -> bool:
        return (
            sum(it.host.cpu_milli for it in victims) < missing.cpu_milli
            or sum(it.host.memory_mib for it in victims) < missing.memory_mib
            or len(victims) < missing.pods
        )

    more = list(chosen)
    others = [it for it in occupants if it not in more]
    others.sort(key=lambda it: (it.uid not in proposed, it.priority, it.uid))
    for it in others:
        if not lacks(more):
            break
        more.append(it)
    if lacks(more):
        return ()
    for it in _most_important_first([it for it in more if it not in chosen]):
        rest = [other for other in more if other is not it]
        if not lacks(rest):
            more = rest
    return more


def _without(node_info: NodeInfo, victims: Sequence[PotentialVictim]) -> NodeInfo:
    for it in victims:
        node_info = node_info.minus(it.by_card, pod_uid=it.uid)
    return node_info


def _most_important_first(victims: Sequence[PotentialVictim]) -> list[PotentialVictim]:
    """Order as kube-scheduler does: higher priority first, then whoever runs longest."""
    return sorted(victims, key=lambda it: (-it.priority, it.started or "~", it.uid))
