"""Which pods to preempt on a node so that a pod of higher priority fits.

kube-scheduler adds up a node's memory, so it could preempt pods on several cards without making
room on any. Here every victim is needed on a card that the pod gets, or for CPU and memory of the
host. The card with the cheapest victims is taken: fewest violated disruption budgets, then lowest
highest priority, then fewest victims, as kube-scheduler itself chooses between nodes.
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

# Up to this many victims on one card, every combination is tried; beyond, the largest go first.
_MAX_COMBINED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PotentialVictim:
    """A pod on the node that may be preempted.

    Attributes:
        priority: lower than that of the preempting pod.
        started: when it started (RFC 3339, as the API server writes it).
        host: what it would free besides cards.
    """

    uid: str
    budgeted: BudgetedPod
    priority: int
    started: str = ""
    host: HostResources
    by_card: Mapping[CardUuid, CardAllocation]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionTarget:
    """A node, and what it lacks for the preempting pod.

    Attributes:
        node: the node and its cards as they will be once terminating pods are gone.
        missing: CPU, memory and pods that the node lacks now; zero or less if it lacks none.
    """

    node: NodeInfo
    missing: HostResources


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The pods to preempt, and how many of them violate a disruption budget."""

    uids: tuple[str, ...]
    violations: int


# (budget violations, highest priority, number of victims, sum of priorities, sorted UIDs)
_Cost = tuple[int, int, int, int, tuple[str, ...]]


def choose_victims(
    target: PreemptionTarget,
    need: PodNeed,
    potential_victims: Sequence[PotentialVictim],
    *,
    strategy: Strategy,
    budgets: Sequence[PodDisruptionBudget] = (),
    proposed: frozenset[str] = frozenset(),
) -> Victims | None:
    """Return the victims on one node, or None if no choice of victims makes the pod fit.

    Args:
        target: the node.
        need: what the pod requests of cards.
        potential_victims: the pods of lower priority; no other pod is preempted.
        strategy: the cluster's default.
        budgets: the disruption budgets.
        proposed: UIDs of kube-scheduler's victims; preferred when the host lacks something.
    """

    def cost(victims: Sequence[PotentialVictim]) -> _Cost:
        return (
            violations([victim.budgeted for victim in victims], budgets),
            max((victim.priority for victim in victims), default=0),
            len(victims),
            sum(victim.priority for victim in victims),
            tuple(sorted(victim.uid for victim in victims)),
        )

    def fits(victims: Sequence[PotentialVictim]) -> bool:
        return isinstance(place(_without(target.node, victims), need, strategy=strategy), Placement)

    holders = [pod for pod in potential_victims if pod.by_card]
    if fits(()):
        chosen: Sequence[PotentialVictim] | None = ()
    elif not fits(holders):
        return None
    elif len(need.containers) == 1:
        chosen = _on_cards(target.node, need, holders, cost)
    else:
        chosen = _reprieve(holders, fits)
    if chosen is None or not fits(chosen):
        chosen = _reprieve(holders, fits)
    complete = _with_host(chosen, potential_victims, target.missing, proposed)
    if not complete:
        return None
    return Victims(
        uids=tuple(victim.uid for victim in _most_important_first(complete)),
        violations=violations([victim.budgeted for victim in complete], budgets),
    )


def _on_cards(
    node_info: NodeInfo,
    need: PodNeed,
    holders: Sequence[PotentialVictim],
    cost: Callable[[Sequence[PotentialVictim]], _Cost],
) -> Sequence[PotentialVictim] | None:
    """Return victims that free as many cards as the one container needs, the cheapest cards."""
    (container,) = need.containers
    alone = replace(need, containers=(replace(container, cards=1),), topology=None)
    found: list[tuple[_Cost, tuple[PotentialVictim, ...]]] = []
    for uuid, card_info in node_info.cards.items():
        here = [pod for pod in holders if uuid in pod.by_card]
        victims = _of_card(node_info, card_info, alone, here, cost)
        if victims is not None:
            found.append((cost(victims), victims))
    if len(found) < container.cards:
        return None
    found.sort(key=lambda entry: entry[0])
    union = {victim.uid: victim for _, victims in found[: container.cards] for victim in victims}
    return tuple(union.values())


def _of_card(
    node_info: NodeInfo,
    card_info: CardInfo,
    need: PodNeed,
    here: Sequence[PotentialVictim],
    cost: Callable[[Sequence[PotentialVictim]], _Cost],
) -> tuple[PotentialVictim, ...] | None:
    """Return the cheapest victims that make one slice fit on one card, or None if none do.

    The result is empty if the slice fits without any victim.
    """
    uuid = card_info.card.uuid
    (container,) = need.containers

    def enough(victims: Sequence[PotentialVictim]) -> bool:
        mib = card_info.free_mib + sum(victim.by_card[uuid].mib for victim in victims)
        cores = (
            FULL_CORES
            - card_info.held_cores
            + sum(victim.by_card[uuid].cores for victim in victims)
        )
        slots = card_info.free_slots + sum(victim.by_card[uuid].slots for victim in victims)
        return container.mib <= mib and container.cores <= cores and slots >= 1

    emptied = card_info
    for pod in here:
        emptied = emptied.without_allocation(pod.by_card[uuid], pod_uid=pod.uid)
    single = NodeInfo(node=replace(node_info.node, cards=(card_info.card,)), cards={uuid: emptied})
    if not isinstance(place(single, need, strategy=Strategy.PACK), Placement):
        return None
    if enough(()):
        return ()
    unprotected = [pod for pod in here if not cost((pod,))[0]]
    for pool in (unprotected, here):
        for highest in sorted({pod.priority for pod in pool}):
            some = [pod for pod in pool if pod.priority <= highest]
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
    for count in range(1, min(_MAX_COMBINED, len(some)) + 1):
        sets = [victims for victims in combinations(some, count) if enough(victims)]
        if sets:
            return min(sets, key=cost)
    largest_first = sorted(some, key=lambda pod: (-pod.by_card[card].mib, pod.priority, pod.uid))
    taken: list[PotentialVictim] = []
    for pod in largest_first:
        if enough(taken):
            break
        taken.append(pod)
    return tuple(_reprieve(taken, enough))


def _reprieve(
    victims: Sequence[PotentialVictim], fits: Callable[[Sequence[PotentialVictim]], bool]
) -> Sequence[PotentialVictim]:
    """Return the victims less those that are not needed, sparing the most important first."""
    left = list(victims)
    for victim in _most_important_first(victims):
        rest = [other for other in left if other is not victim]
        if fits(rest):
            left = rest
    return left


def _with_host(
    chosen: Sequence[PotentialVictim],
    potential_victims: Sequence[PotentialVictim],
    missing: HostResources,
    proposed: frozenset[str],
) -> Sequence[PotentialVictim]:
    """Return the victims with those added that free the missing CPU, memory and pods.

    The result is empty if there are no victims, or if all of them do not free enough.
    """

    def lacks(victims: Sequence[PotentialVictim]) -> bool:
        return (
            sum(victim.host.cpu_milli for victim in victims) < missing.cpu_milli
            or sum(victim.host.memory_mib for victim in victims) < missing.memory_mib
            or len(victims) < missing.pods
        )

    extended = list(chosen)
    others = [pod for pod in potential_victims if pod not in extended]
    others.sort(key=lambda pod: (pod.uid not in proposed, pod.priority, pod.uid))
    for pod in others:
        if not lacks(extended):
            break
        extended.append(pod)
    if lacks(extended):
        return ()
    for victim in _most_important_first([pod for pod in extended if pod not in chosen]):
        rest = [other for other in extended if other is not victim]
        if not lacks(rest):
            extended = rest
    return extended


def _without(node_info: NodeInfo, victims: Sequence[PotentialVictim]) -> NodeInfo:
    for victim in victims:
        node_info = node_info.without_allocations(victim.by_card, pod_uid=victim.uid)
    return node_info


def _most_important_first(victims: Sequence[PotentialVictim]) -> list[PotentialVictim]:
    """Return the victims in kube-scheduler's order: higher priority, then earlier start."""
    return sorted(victims, key=lambda victim: (-victim.priority, victim.started or "~", victim.uid))
