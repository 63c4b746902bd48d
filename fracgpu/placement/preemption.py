"""Which pods to preempt on a node so that a pod of higher priority fits.

kube-scheduler adds up a node's memory, so it could preempt pods on several cards without making
room on any. Here every victim is needed on a card that the pod gets, or for CPU and memory of the
host. The card with the cheapest victims is taken: fewest violated disruption budgets, then lowest
highest priority, then fewest victims, as kube-scheduler itself chooses between nodes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, compress
from math import comb
from types import MappingProxyType
from typing import Final

import numpy as np
from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.disruption_budget import BudgetedPod, BudgetIndex
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.fit import (
    SHARES,
    USABLE,
    CardRequest,
    Flags,
    IntArray,
    cards_of,
    node_reason,
    suits,
    unfit_reasons,
)
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.snapshot import CardInfo, NodeInfo
from fracgpu.units import Mib

# Up to this many victims on one card, every combination is tried; beyond, or where there are more
# combinations than that, the largest go first.
_MAX_COMBINED: Final = 3
_MAX_COMBINATIONS: Final = 1_000

# kube-scheduler's own defaults, minCandidateNodesPercentage and minCandidateNodesAbsolute.
_WANTED_PERCENT: Final = 10
_WANTED_AT_LEAST: Final = 100


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
_Fits = Callable[[Sequence[PotentialVictim]], bool]
_NO_BUDGETS: Final = BudgetIndex()


class CandidateCount:
    """Whether enough nodes have been found where preemption helps, by kube-scheduler's own rule.

    It stops looking once a tenth of the nodes, and no fewer than a hundred, are found, if at least
    one of them violates no disruption budget. Source: DryRunPreemption in
    pkg/scheduler/framework/preemption/preemption.go, and calculateNumCandidates in
    pkg/scheduler/framework/plugins/defaultpreemption/default_preemption.go.

    Args:
        nodes: how many nodes kube-scheduler asks about.
    """

    def __init__(self, nodes: int) -> None:
        self._wanted = max(nodes * _WANTED_PERCENT // 100, _WANTED_AT_LEAST)
        self._found = 0
        self._unviolating = False

    def add(self, victims: Victims) -> None:
        """Count a node with its victims."""
        self._found += 1
        self._unviolating |= not victims.violations

    @property
    def enough(self) -> bool:
        return self._unviolating and self._found >= self._wanted


def fits_if_emptied(matrix: NodeMatrix, rows: IntArray, need: PodNeed) -> Flags:
    """Return whether each row has cards that would do for each container if nothing held them.

    Where it has not, no preemption helps; where it has, one may.
    """
    helps: Flags = matrix.node_state[rows] == SHARES
    cards = matrix.cards(rows)
    for container in need.containers:
        helps &= suits(cards, need, CardRequest.of(container)).sum(1) >= container.cards
    return helps


def choose_victims(
    target: PreemptionTarget,
    need: PodNeed,
    potential_victims: Sequence[PotentialVictim],
    *,
    strategy: Strategy,
    budgets: BudgetIndex = _NO_BUDGETS,
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
    cards = _Cards(target.node, need) if len(need.containers) == 1 else None

    def fits_together(victims: Sequence[PotentialVictim]) -> bool:
        return isinstance(place(_without(target.node, victims), need, strategy=strategy), Placement)

    fits = fits_together if cards is None else cards.fit
    holders = [pod for pod in potential_victims if pod.by_card]
    if fits(()):
        chosen: Sequence[PotentialVictim] | None = ()
    elif not fits(holders):
        return None
    elif cards is not None:
        chosen = _on_cards(cards, holders, budgets)
    else:
        chosen = _reprieve(holders, fits)
    if chosen is None or not fits(chosen):
        chosen = _reprieve(holders, fits)
    complete = _with_host(chosen, potential_victims, target.missing, proposed)
    if not complete:
        return None
    return Victims(
        uids=tuple(victim.uid for victim in _most_important_first(complete)),
        violations=budgets.violations(victim.budgeted for victim in complete),
    )


class _Cards:
    """The cards of one node that a pod's only container may have.

    For one container no search is needed: it fits if enough cards have room for it.
    """

    def __init__(self, node_info: NodeInfo, need: PodNeed) -> None:
        self._need = need
        (self.container,) = need.containers
        self._asked = CardRequest.of(self.container)
        self._cards = cards_of(node_info.cards.values())
        open_to = suits(self._cards, need, self._asked)[0] & (node_reason(node_info) is None)
        self.columns: Mapping[CardUuid, int] = {
            uuid: column for column, uuid in enumerate(node_info.cards) if open_to[column]
        }

    def fit(self, victims: Sequence[PotentialVictim]) -> bool:
        """Report whether the container fits without the victims."""
        freed = _by_card(victims)
        sets = [freed.get(uuid, ()) for uuid in self.columns]
        fitting = self._room(tuple(self.columns), sets)
        return int(np.count_nonzero(fitting)) >= self.container.cards

    def has_room(self, uuid: CardUuid, sets: Sequence[Sequence[PotentialVictim]]) -> Flags:
        """Return for each set of victims whether it makes the container fit on one card."""
        return self._room([uuid] * len(sets), sets)

    def _room(self, uuids: Sequence[CardUuid], sets: Sequence[Sequence[PotentialVictim]]) -> Flags:
        columns = np.array([self.columns[uuid] for uuid in uuids], np.int64)
        cards = self._cards.at((np.zeros_like(columns), columns))
        leaving = [
            [victim.by_card[uuid] for victim in victims]
            for uuid, victims in zip(uuids, sets, strict=True)
        ]
        found: Flags = unfit_reasons(cards.without(leaving), self._need, self._asked) == USABLE
        return found


def _by_card(
    pods: Sequence[PotentialVictim],
) -> Mapping[CardUuid, Sequence[PotentialVictim]]:
    found: dict[CardUuid, list[PotentialVictim]] = {}
    for pod in pods:
        for uuid in pod.by_card:
            found.setdefault(uuid, []).append(pod)
    return found


def _cost(victims: Sequence[PotentialVictim], budgets: BudgetIndex) -> _Cost:
    return (
        budgets.violations(victim.budgeted for victim in victims),
        max((victim.priority for victim in victims), default=0),
        len(victims),
        sum(victim.priority for victim in victims),
        tuple(sorted(victim.uid for victim in victims)),
    )


def _on_cards(
    cards: _Cards, holders: Sequence[PotentialVictim], budgets: BudgetIndex
) -> Sequence[PotentialVictim] | None:
    """Return victims that free as many cards as the one container needs, the cheapest cards."""
    by_card = _by_card(holders)
    found: list[tuple[_Cost, tuple[PotentialVictim, ...]]] = []
    for uuid in cards.columns:
        victims = _of_card(cards, uuid, by_card.get(uuid, ()), budgets)
        if victims is not None:
            found.append((_cost(victims, budgets), victims))
    if len(found) < cards.container.cards:
        return None
    found.sort(key=lambda entry: entry[0])
    cheapest = found[: cards.container.cards]
    union = {victim.uid: victim for _, victims in cheapest for victim in victims}
    return tuple(union.values())


def _of_card(
    cards: _Cards, uuid: CardUuid, here: Sequence[PotentialVictim], budgets: BudgetIndex
) -> tuple[PotentialVictim, ...] | None:
    """Return the cheapest victims that make one slice fit on one card, or None if none do.

    The result is empty if the slice fits without any victim.
    """
    unprotected = [pod for pod in here if not budgets.violations((pod.budgeted,))]
    sets: list[Sequence[PotentialVictim]] = [()]
    for pool in (unprotected, here):
        highest = sorted({pod.priority for pod in pool})
        sets += [[pod for pod in pool if pod.priority <= priority] for priority in highest]
    enough = np.flatnonzero(cards.has_room(uuid, sets))
    if not len(enough):
        return None
    some = sets[int(enough[0])]
    return _fewest(cards, uuid, some, budgets) if some else ()


def _fewest(
    cards: _Cards, uuid: CardUuid, some: Sequence[PotentialVictim], budgets: BudgetIndex
) -> tuple[PotentialVictim, ...]:
    for count in range(1, min(_MAX_COMBINED, len(some)) + 1):
        different = _first_of_equals(some, count, budgets, card=uuid)
        if comb(len(different), count) > _MAX_COMBINATIONS:
            break
        sets = list(combinations(different, count))
        if enough := list(compress(sets, cards.has_room(uuid, sets).tolist())):
            return min(enough, key=lambda victims: _cost(victims, budgets))
    largest_first = sorted(some, key=lambda pod: (-pod.by_card[uuid].mib, pod.priority, pod.uid))
    first = [largest_first[:count] for count in range(len(largest_first) + 1)]
    taken = first[int(cards.has_room(uuid, first).argmax())]

    def is_enough(victims: Sequence[PotentialVictim]) -> bool:
        return bool(cards.has_room(uuid, (victims,))[0])

    return tuple(_reprieve(taken, is_enough))


def _first_of_equals(
    pods: Sequence[PotentialVictim], count: int, budgets: BudgetIndex, *, card: CardUuid
) -> Sequence[PotentialVictim]:
    """Return the pods less those that are never in the cheapest set of *count*.

    Of pods that free the same on the card and differ only in name, the first by UID are cheapest.
    """
    counts: Counter[tuple[CardAllocation, int, tuple[str, ...]]] = Counter()
    found: list[PotentialVictim] = []
    for pod in sorted(pods, key=lambda pod: pod.uid):
        counted = tuple(f"{one.namespace}/{one.name}" for one in budgets.of(pod.budgeted))
        key = pod.by_card[card], pod.priority, counted
        counts[key] += 1
        if counts[key] <= count:
            found.append(pod)
    return found


def _reprieve(victims: Sequence[PotentialVictim], fits: _Fits) -> Sequence[PotentialVictim]:
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

    if not lacks(chosen):
        return chosen
    extended = list(chosen)
    taken = {victim.uid for victim in chosen}
    others = [pod for pod in potential_victims if pod.uid not in taken]
    others.sort(key=lambda pod: (pod.uid not in proposed, pod.priority, pod.uid))
    for pod in others:
        if not lacks(extended):
            break
        extended.append(pod)
    if lacks(extended):
        return ()
    for victim in _most_important_first([pod for pod in extended if pod.uid not in taken]):
        rest = [other for other in extended if other is not victim]
        if not lacks(rest):
            extended = rest
    return extended


def _without(node_info: NodeInfo, victims: Sequence[PotentialVictim]) -> NodeInfo:
    cards = dict(node_info.cards)
    for uuid, here in _by_card(victims).items():
        if uuid in cards:
            cards[uuid] = _card_without(cards[uuid], uuid, here)
    return replace(node_info, cards=MappingProxyType(cards))


def _card_without(
    card_info: CardInfo, uuid: CardUuid, victims: Sequence[PotentialVictim]
) -> CardInfo:
    freed = [victim.by_card[uuid] for victim in victims]
    total = CardAllocation(
        mib=Mib(sum(held.mib for held in freed)),
        cores=sum(held.cores for held in freed),
        slots=sum(held.slots for held in freed),
    )
    left = card_info.without_allocation(total, pod_uid="")
    gone = {victim.uid for victim in victims}
    return structs.replace(left, pods=tuple(uid for uid in card_info.pods if uid not in gone))


def _most_important_first(victims: Sequence[PotentialVictim]) -> list[PotentialVictim]:
    """Return the victims in kube-scheduler's order: higher priority, then earlier start."""
    return sorted(victims, key=lambda victim: (-victim.priority, victim.started or "~", victim.uid))
