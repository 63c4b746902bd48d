"""Which few pods to move so that a waiting pod fits: the cheapest plan that is proven as a whole.

All cards are looked at as columns, and a bound on what a node would cost says which few nodes are
worth a proof. Whether a pod may be moved, and where to, is asked of a `RoomProver`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, compress
from typing import Final, Protocol

import numpy as np

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.room.card_table import CardTable, Flags
from fracgpu.placement.fit import CardRequest
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import CardAllocation

MOST_MOVES: Final = 3  # of one plan, unless the administrator allows more
_MOST_PER_CARD: Final = 3
_NODES_TRIED: Final = 8
_ROOMY_NODES_TRIED: Final = 32
_PLANS_TRIED: Final = 8  # on one node: each excludes the pod for which the one before had no target
_PODS_WEIGHED: Final = 16  # of one card, the cheapest first


@dataclass(frozen=True, slots=True, kw_only=True)
class MovablePod:
    """A pod that may be moved off a card, what it holds of it, and what moving it costs."""

    uid: str
    card: CardUuid
    allocation: CardAllocation
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """One pod with the card that its replacement gets."""

    pod: MovablePod
    node: str
    card: CardUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomPlan:
    """The cards of one node that a waiting pod gets, and the moves that free them."""

    node: str
    cards: tuple[CardUuid, ...]
    moves: tuple[PlannedMove, ...]


class RoomProver(Protocol):
    """What the search cannot know by itself."""

    def movable(self, card: CardUuid) -> Sequence[MovablePod]:
        """Return the pods of a card that may be moved, the cheapest first."""
        ...

    def fits(self, node: str, cards: Sequence[CardUuid], moved: Sequence[MovablePod]) -> bool:
        """Report whether the waiting pod could start on these cards once *moved* have left."""
        ...

    def target(
        self, pod: MovablePod, before: Sequence[PlannedMove], keep_off: frozenset[CardUuid]
    ) -> tuple[str, CardUuid] | None:
        """Return the node and card where a pod's replacement can start.

        None if there is none, or if the pod may not be moved after those before it.

        Args:
            pod: the pod.
            before: the moves of the same plan whose targets are known.
            keep_off: cards that are no target.
        """
        ...


def single_container(need: PodNeed) -> ContainerNeed | None:
    """Return the one container that asks for cards; None if there are several."""
    return need.containers[0] if len(need.containers) == 1 else None


def find_room(
    table: CardTable,
    need: PodNeed,
    prover: RoomProver,
    *,
    cards: Flags,
    most_moves: int = MOST_MOVES,
) -> RoomPlan | None:
    """Return the cheapest plan that makes room for a need, or None.

    Fewest moves first, then least MiB to free. A pod with several containers on cards has none.

    Args:
        table: every card.
        need: what waits.
        prover: says which pods may move, and where to.
        cards: those that the waiting pod may get, in the table's order.
        most_moves: at most so many, and of one card at most three.
    """
    container = single_container(need)
    if container is None:
        return None
    suitable = table.suits(need, container) & table.open
    # Scattered room is what moves bring together; they make none.
    if int(np.maximum(table.cards.free_mib, 0)[suitable].sum()) < container.total_mib:
        return None
    suitable &= cards
    room = table.has_room(need, CardRequest.of(container))
    if _fits_already(table, container, prover, suitable & room):
        return None
    for node in _promising(table, container, suitable, room, most_moves=most_moves):
        numbers = np.flatnonzero(suitable & (table.node == node)).tolist()
        choices = {
            number: _Choice(table, number, need, prover, most=min(most_moves, _MOST_PER_CARD))
            for number in numbers
            if not room[number]
        }
        count = container.cards
        plan = _on_node(table, prover, numbers, choices, count=count, most_moves=most_moves)
        if plan is not None:
            return plan
    return None


def _fits_already(
    table: CardTable, container: ContainerNeed, prover: RoomProver, room: Flags
) -> bool:
    """Report whether the pod could start without any move; then it waits for something else."""
    enough = np.flatnonzero(np.bincount(table.node[room]) >= container.cards)
    for node in enough[:_ROOMY_NODES_TRIED].tolist():
        numbers = np.flatnonzero(room & (table.node == node))[: container.cards].tolist()
        if prover.fits(table.nodes[node], [table.uuids[number] for number in numbers], ()):
            return True
    return False


def _promising(
    table: CardTable, container: ContainerNeed, suitable: Flags, room: Flags, *, most_moves: int
) -> Iterator[int]:
    """Yield the nodes with the lowest bounds on moves and MiB, the lowest first."""
    cards = table.cards
    short_mib = np.where(room, 0, np.maximum(container.mib - cards.free_mib, 0))
    entire = cards.capacity_mib == container.mib
    moves = np.where(room, 0, np.where(entire, cards.pods, np.minimum(cards.pods, 1)))
    # No pod to move and no room: what is missing there is held by nobody whom we know.
    most_of_card = min(most_moves, _MOST_PER_CARD)
    worth = np.flatnonzero(suitable & (room | (cards.pods > 0)) & (moves <= most_of_card))
    order = worth[np.lexsort((short_mib[worth], moves[worth], table.node[worth]))]
    of_node = table.node[order]
    if not len(of_node):
        return
    begins = np.r_[0, np.flatnonzero(np.diff(of_node)) + 1]
    rank = np.arange(len(of_node)) - np.repeat(begins, np.diff(np.r_[begins, len(of_node)]))
    chosen = order[rank < container.cards]
    size = len(table.nodes)
    count = np.bincount(table.node[chosen], minlength=size)
    total = np.bincount(table.node[chosen], weights=moves[chosen], minlength=size)
    missing = np.bincount(table.node[chosen], weights=short_mib[chosen], minlength=size)
    good = np.flatnonzero((count == container.cards) & (total <= most_moves) & (total >= 1))
    yield from good[np.lexsort((good, missing[good], total[good]))][:_NODES_TRIED].tolist()


def _on_node(
    table: CardTable,
    prover: RoomProver,
    numbers: Sequence[int],
    choices: Mapping[int, "_Choice"],
    *,
    count: int,
    most_moves: int,
) -> RoomPlan | None:
    name = table.nodes[int(table.node[numbers[0]])]
    for _ in range(_PLANS_TRIED):
        found = _cheapest_cards(table, choices, numbers, count=count, most_moves=most_moves)
        if found is None:
            return None
        cards, moved = found
        if not prover.fits(name, cards, moved):
            return None
        answer = _with_targets(prover, cards, moved)
        if not isinstance(answer, MovablePod):
            return RoomPlan(node=name, cards=cards, moves=answer)
        choices[table.index[answer.card]].exclude(answer)
    return None


def _with_targets(
    prover: RoomProver, cards: tuple[CardUuid, ...], moved: Sequence[MovablePod]
) -> tuple[PlannedMove, ...] | MovablePod:
    """Return the moves with their targets, or the first pod that has none."""
    planned: list[PlannedMove] = []
    keep_off = frozenset(cards)
    for pod in sorted(moved, key=lambda pod: (-pod.allocation.mib, pod.uid)):
        target = prover.target(pod, planned, keep_off)
        if target is None:
            return pod
        planned.append(PlannedMove(pod=pod, node=target[0], card=target[1]))
    return tuple(planned)


class _Choice:
    """The pods of one card from which to choose those that are moved off it."""

    def __init__(
        self, table: CardTable, number: int, need: PodNeed, prover: RoomProver, *, most: int
    ) -> None:
        (container,) = need.containers
        self._movable = list(prover.movable(table.uuids[number])[:_PODS_WEIGHED])
        self._short_mib = container.mib - int(table.cards.free_mib[number])
        self._frees = partial(table.has_room_without, number, need, CardRequest.of(container))
        self._most = most
        self.pods = self._fewest()

    def exclude(self, pod: MovablePod) -> None:
        """Choose without a pod."""
        self._movable.remove(pod)
        self.pods = self._fewest()

    def _fewest(self) -> tuple[MovablePod, ...] | None:
        """Return the fewest pods that free what is missing, the cheapest together, or None."""
        largest = sorted((pod.allocation.mib for pod in self._movable), reverse=True)
        for size in range(1, min(self._most, len(largest)) + 1):
            if sum(largest[:size]) < self._short_mib:
                continue
            sets = list(combinations(self._movable, size))
            enough = self._frees([[pod.allocation for pod in pods] for pods in sets])
            found = min(
                compress(sets, enough.tolist()),
                key=lambda pods: (sum(pod.cost for pod in pods), [pod.uid for pod in pods]),
                default=None,
            )
            if found is not None:
                return found
        return None


def _cheapest_cards(
    table: CardTable,
    choices: Mapping[int, _Choice],
    numbers: Sequence[int],
    *,
    count: int,
    most_moves: int,
) -> tuple[tuple[CardUuid, ...], tuple[MovablePod, ...]] | None:
    """Return the *count* cards that are cheapest to free, and the pods to move off them."""
    options: list[tuple[tuple[int, float, int, int], int, tuple[MovablePod, ...]]] = []
    for number in numbers:
        pods = choices[number].pods if number in choices else ()
        if pods is not None:
            # Of cards that cost the same, the tightest: whole cards stay for those who need them.
            key = (
                len(pods),
                sum(pod.cost for pod in pods),
                int(table.cards.free_mib[number]),
                number,
            )
            options.append((key, number, pods))
    best = sorted(options, key=lambda option: option[0])[:count]
    moved = tuple(pod for _, _, pods in best for pod in pods)
    if len(best) < count or not 1 <= len(moved) <= most_moves:
        return None
    return tuple(table.uuids[number] for _, number, _ in best), moved
