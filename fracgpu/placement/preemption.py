"""Which pods to preempt on a node so that a pod of higher priority fits.

kube-scheduler adds up a node's memory, so it could preempt pods on several cards without making
room on any. Here every victim is needed on a card that the pod gets, or for CPU and memory of the
host. The card with the cheapest victims is taken: fewest violated disruption budgets, then lowest
highest priority, then fewest victims, as kube-scheduler itself chooses between nodes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from math import comb
from operator import itemgetter
from typing import Final

import numpy as np

from fracgpu.k8s.disruption_budget import BudgetIndex
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
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.snapshot import CardInfo, NodeInfo

# Up to this many victims on one card, every combination is tried; beyond, or where there are more
# combinations than that, the largest go first.
_MAX_COMBINED: Final = 3
_MAX_COMBINATIONS: Final = 1_000

# kube-scheduler's own defaults, minCandidateNodesPercentage and minCandidateNodesAbsolute.
_WANTED_PERCENT: Final = 10
_WANTED_AT_LEAST: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionTarget:
    """A node, what it lacks for the preempting pod, and who may have to leave it.

    Attributes:
        node: the node and its cards as they will be once terminating pods are gone.
        missing: CPU, memory and pods that the node lacks now; zero or less if it lacks none.
        potential_victims: the pods of lower priority; no other pod is preempted.
        proposed: UIDs of kube-scheduler's victims; preferred when the host lacks something.
    """

    node: NodeInfo
    missing: HostResources
    potential_victims: Sequence[BoundPod]
    proposed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The pods to preempt, and how many of them violate a disruption budget."""

    uids: tuple[str, ...]
    violations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a pod gets on a node once others have left it."""

    node: str
    victims: tuple[BoundPod, ...]
    placement: Placement


_Victims = Sequence[BoundPod]
_OnCard = tuple[int, _Victims]
# (budget violations, highest priority, number of victims, sum of priorities, sorted UIDs)
_Cost = tuple[int, int, int, int, tuple[str, ...]]
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
    targets: Sequence[PreemptionTarget],
    need: PodNeed,
    *,
    strategy: Strategy,
    budgets: BudgetIndex = _NO_BUDGETS,
) -> Sequence[Victims | None]:
    """Return the victims on each node, or None where no choice of them makes the pod fit.

    None as well where the pod fits already.

    Args:
        targets: the nodes.
        need: what the pod requests of cards.
        strategy: the cluster's default.
        budgets: the disruption budgets.
    """
    if len(need.containers) == 1:
        chosen = _Cards(targets, need, budgets).choose()
    else:
        chosen = [_spared(target, need, strategy) for target in targets]
    found: list[Victims | None] = []
    for target, some in zip(targets, chosen, strict=True):
        complete = () if some is None else _with_host(some, target)
        uids = tuple(victim.uid for victim in _most_important_first(complete))
        violations = budgets.violations(complete)
        found.append(Victims(uids=uids, violations=violations) if uids else None)
    return found


def room_without(
    target: PreemptionTarget,
    need: PodNeed,
    *,
    strategy: Strategy,
    budgets: BudgetIndex = _NO_BUDGETS,
) -> Room | None:
    """Return the victims on a node, and the cards that the pod gets when they are gone.

    None as well where each choice of victims violates a budget.
    """
    (chosen,) = choose_victims((target,), need, strategy=strategy, budgets=budgets)
    if chosen is None or chosen.violations:
        return None
    victims = tuple(pod for pod in target.potential_victims if pod.uid in chosen.uids)
    left = target.node.without_pods(victim.allocation for victim in victims)
    placement = place(left, need, strategy=strategy)
    if not isinstance(placement, Placement):
        return None
    return Room(node=target.node.node.node, victims=victims, placement=placement)


def preemption_cost(victims: Iterable[BoundPod]) -> _Cost:
    """Return what orders nodes by their victims, of which none violates a budget."""
    return _cost(tuple(victims), _NO_BUDGETS)


def _spared(target: PreemptionTarget, need: PodNeed, strategy: Strategy) -> _Victims | None:
    """Return victims that make room for several containers, or None if none do."""

    def fits(victims: _Victims) -> bool:
        left = target.node.without_pods(victim.allocation for victim in victims)
        return isinstance(place(left, need, strategy=strategy), Placement)

    holders = [pod for pod in target.potential_victims if pod.allocation.by_card]
    if fits(()):
        return ()
    return _reprieve(holders, fits) if fits(holders) else None


class _Cards:
    """The cards of some nodes in a line, and who may have to leave each.

    For one container no search is needed: it fits where enough cards have room for it. What has
    room has it still when more pods leave: no rule asks for others on a card.
    """

    def __init__(
        self, targets: Sequence[PreemptionTarget], need: PodNeed, budgets: BudgetIndex
    ) -> None:
        self._targets = targets
        self._need = need
        (container,) = need.containers
        self._wanted, self._asked = container.cards, CardRequest.of(container)
        self._budgets = budgets
        infos: list[CardInfo] = []
        self._of_node: list[range] = []
        for target in targets:
            first = len(infos)
            if node_reason(target.node) is None:
                infos += target.node.cards.values()
            self._of_node.append(range(first, len(infos)))
        self._cards = cards_of(infos).at(0)
        self._uuids = [info.card.uuid for info in infos]
        self._here: list[list[BoundPod]] = [[] for _ in infos]

    def choose(self) -> list[_Victims | None]:
        """Return victims on each node that free as many cards as are wanted, the cheapest."""
        free = {card for card, _ in self._with_room((card, ()) for card in range(len(self._uuids)))}
        lacking = [
            (target, cards)
            for target, cards in zip(self._targets, self._of_node, strict=True)
            if len(free.intersection(cards)) < self._wanted
        ]
        for target, cards in lacking:
            numbers = {self._uuids[card]: card for card in cards}
            for pod in target.potential_victims:
                for uuid in pod.allocation.by_card.keys() & numbers:
                    self._here[numbers[uuid]].append(pod)
        everyone = [(card, self._here[card]) for _, cards in lacking for card in cards]
        helped = {card for card, _ in self._with_room(everyone)}
        nodes = [[card for card in cards if card in helped] for _, cards in lacking]
        cheapest = self._cheapest([cards for cards in nodes if len(cards) >= self._wanted])
        found: list[_Victims | None] = []
        for cards in self._of_node:
            some = sorted((cheapest[card] for card in cards if card in cheapest), key=itemgetter(0))
            union = {pod.uid: pod for _, pods in some[: self._wanted] for pod in pods}
            fits = union or len(free.intersection(cards)) >= self._wanted
            found.append(tuple(union.values()) if fits else None)
        return found

    def _cheapest(self, nodes: Sequence[Sequence[int]]) -> Mapping[int, tuple[_Cost, _Victims]]:
        """Return by card the cheapest victims that make room there, and their cost.

        Cards are left out that are not among the cheapest of their node.
        """
        pools: dict[int, _Victims] = {}
        cards = [card for those in nodes for card in those]
        least = [(card, some) for card in cards for some in self._least_important(card)]
        for card, some in self._with_room(least):
            pools.setdefault(card, some)
        nobody: tuple[_Cost, _Victims] = _cost((), self._budgets), ()
        found = {card: nobody for card, pool in pools.items() if not pool}
        for count in range(1, _MAX_COMBINED + 2):
            sets: list[_OnCard] = []
            large: dict[int, _Victims] = {}
            for card in self._undecided(nodes, pools, found, count):
                combined = self._combinations(card, pools[card], count)
                if combined is None:
                    large[card] = pools[card]
                else:
                    sets += [(card, some) for some in combined]
            for card, some in (*self._with_room(sets), *self._largest(large)):
                cost = _cost(some, self._budgets)
                if card not in found or cost < found[card][0]:
                    found[card] = cost, some
        return found

    def _undecided(
        self,
        nodes: Sequence[Sequence[int]],
        pools: Mapping[int, _Victims],
        found: Mapping[int, tuple[_Cost, _Victims]],
        count: int,
    ) -> Iterator[int]:
        """Yield the cards that may be among the cheapest of their node with *count* victims."""
        for cards in nodes:
            best = sorted(found[card][0] for card in cards if card in found)[: self._wanted]
            for card in cards:
                if card not in found:
                    least = 0, max(pod.priority for pod in pools[card]), count
                    if len(best) < self._wanted or least < best[-1]:
                        yield card

    def _with_room(self, sets: Iterable[_OnCard]) -> list[_OnCard]:
        """Return the sets of victims, each on a card, without whom the container fits there."""
        sets = list(sets)
        if not sets:
            return []
        cards = self._cards.at(np.array([card for card, _ in sets], np.int64))
        uuids = self._uuids
        leaving = [[pod.allocation.by_card[uuids[card]] for pod in some] for card, some in sets]
        fits = unfit_reasons(cards.without(leaving), self._need, self._asked) == USABLE
        return list(compress(sets, fits.tolist()))

    def _least_important(self, card: int) -> Iterator[_Victims]:
        """Yield those of up to each priority, first of those that no budget protects."""
        here = self._here[card]
        yield ()
        for pool in ([pod for pod in here if not self._budgets.violations((pod,))], here):
            for highest in sorted({pod.priority for pod in pool}):
                yield [pod for pod in pool if pod.priority <= highest]

    def _combinations(self, card: int, pods: _Victims, count: int) -> Iterable[_Victims] | None:
        """Return every choice of *count* pods, or None if they are too many to try.

        Of pods that free the same on the card and differ only in name, the first by UID are
        cheapest, so that no others are tried.
        """
        uuid = self._uuids[card]
        counts: Counter[tuple[CardAllocation, int, tuple[str, ...]]] = Counter()
        different: list[BoundPod] = []
        for pod in sorted(pods, key=lambda pod: pod.uid):
            counted = tuple(f"{one.namespace}/{one.name}" for one in self._budgets.of(pod))
            key = pod.allocation.by_card[uuid], pod.priority, counted
            counts[key] += 1
            if counts[key] <= count:
                different.append(pod)
        if count > _MAX_COMBINED or comb(len(different), count) > _MAX_COMBINATIONS:
            return None
        return combinations(different, count)

    def _largest(self, pools: Mapping[int, _Victims]) -> Iterable[_OnCard]:
        """Return the largest pods of each card that make room, less those that are not needed."""
        sets = []
        for card, pods in pools.items():
            uuid = self._uuids[card]
            ordered = sorted(
                pods, key=lambda pod: (-pod.allocation.by_card[uuid].mib, pod.priority, pod.uid)
            )
            sets += [(card, ordered[:count]) for count in range(len(ordered), 0, -1)]
        left = dict(self._with_room(sets))
        order = {card: _most_important_first(pods) for card, pods in left.items()}
        for turn in range(max(map(len, order.values()), default=0)):
            left |= self._with_room(
                (card, [pod for pod in left[card] if pod is not pods[turn]])
                for card, pods in order.items()
                if turn < len(pods)
            )
        return left.items()


def _cost(victims: _Victims, budgets: BudgetIndex) -> _Cost:
    return (
        budgets.violations(victims),
        max((victim.priority for victim in victims), default=0),
        len(victims),
        sum(victim.priority for victim in victims),
        tuple(sorted(victim.uid for victim in victims)),
    )


def _reprieve(victims: _Victims, fits: Callable[[_Victims], bool]) -> _Victims:
    """Return the victims less those that are not needed, sparing the most important first."""
    left = list(victims)
    for victim in _most_important_first(victims):
        rest = [other for other in left if other is not victim]
        if fits(rest):
            left = rest
    return left


def _with_host(chosen: _Victims, target: PreemptionTarget) -> _Victims:
    """Return the victims with those added that free the missing CPU, memory and pods.

    The result is empty if there are no victims, or if all of them do not free enough.
    """
    missing = target.missing

    def lacks(victims: _Victims) -> bool:
        return (
            sum(victim.host.cpu_milli for victim in victims) < missing.cpu_milli
            or sum(victim.host.memory_mib for victim in victims) < missing.memory_mib
            or len(victims) < missing.pods
        )

    if not lacks(chosen):
        return chosen
    extended = list(chosen)
    taken = {victim.uid for victim in chosen}
    others = [pod for pod in target.potential_victims if pod.uid not in taken]
    others.sort(key=lambda pod: (pod.uid not in target.proposed, pod.priority, pod.uid))
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


def _most_important_first(victims: _Victims) -> list[BoundPod]:
    """Return the victims in kube-scheduler's order: higher priority, then earlier start."""
    return sorted(victims, key=lambda victim: (-victim.priority, victim.started or "~", victim.uid))
