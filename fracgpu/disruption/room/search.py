"""Which few pods to move so that a waiting pod fits: the cheapest plan that is proven as a whole.

All cards are looked at as columns, and a bound on what a node would cost says which few nodes are
worth a proof. Whether a pod may be moved, and where to, is asked of a `RoomProver`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from itertools import combinations, compress, islice
from typing import Final, Protocol

import numpy as np

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.room.card_table import CardTable, Flags
from fracgpu.placement.fit import CardRequest
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.allocation import CardAllocation

_SIZES: Final = (1, 2, 3)  # of the sets of pods that are moved off one card
_MOST_PER_CARD: Final = _SIZES[-1]
_ROOMY_NODES_TRIED: Final = 32
_PROOFS_IN_VAIN: Final = 32  # and nodes looked at, before the search is given up
_PROOFS: Final = 64  # and nodes, in all if some plan was found
_PODS_WEIGHED: Final = 16  # of one card, the cheapest first
_SETS_WEIGHED: Final = 32  # of pods of one card, of each size, the cheapest first
_WAYS_WEIGHED: Final = 1024  # to free the cards of one node by so many moves


@dataclass(frozen=True, slots=True, kw_only=True)
class MovablePod:
    """A pod that may be moved off a card, what it holds of it, and what moving it costs.

    Attributes:
        owner: no two pods of one owner are moved for one plan.
    """

    uid: str
    owner: str
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
    """The cards of one node that a waiting pod gets, and the moves that free them.

    Attributes:
        taken_mib: what was free of the cards before, and is no more.
    """

    node: str
    cards: tuple[CardUuid, ...]
    moves: tuple[PlannedMove, ...]
    taken_mib: int

    @property
    def cost(self) -> tuple[int, float, int]:
        """What plans are compared by: moves, what the pods lose by a restart, and free memory."""
        return len(self.moves), sum(move.pod.cost for move in self.moves), self.taken_mib


class RoomProver(Protocol):
    """What the search cannot know by itself."""

    def movable(self, card: CardUuid) -> Sequence[MovablePod]:
        """Return the pods of a card that may be moved, the cheapest first."""
        ...

    def fits(self, node: str, cards: Sequence[CardUuid], moved: Sequence[MovablePod]) -> bool:
        """Report whether the waiting pod could start on these cards once *moved* have left."""
        ...

    def targets(
        self, pod: MovablePod, keep_off: frozenset[CardUuid]
    ) -> Iterator[tuple[str, CardUuid]]:
        """Yield the nodes and cards where a pod's replacement can start, the best first.

        Args:
            pod: the pod.
            keep_off: cards that are no target.
        """
        ...

    def fits_beside(self, pod: MovablePod, node: str, before: Sequence[PlannedMove]) -> bool:
        """Report whether a node takes a pod's replacement beside those of *before*."""
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
    most_moves: int,
) -> RoomPlan | None:
    """Return the cheapest plan that makes room for a need, or None.

    The plans of all nodes are compared, by `RoomPlan.cost`. A pod with several containers on cards
    has none.

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
    search = _Search(table, need, prover, suitable=suitable, room=room)
    for node, at_least in _promising(table, container, suitable, room, most_moves=most_moves):
        most = len(search.best.moves) if search.best else most_moves
        if at_least > most or search.over:
            break
        search.look_at(node, most)
    return search.best


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
) -> Iterator[tuple[int, int]]:
    """Yield nodes with a lower bound on the moves of each, by this bound and that on MiB."""
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
    ordered = good[np.lexsort((good, missing[good], total[good]))]
    yield from zip(ordered.tolist(), total[ordered].astype(int).tolist(), strict=True)


# Cards of one node, and the pods that are moved off them.
_Way = tuple[tuple[int, ...], tuple[MovablePod, ...]]
# For each card, by size, the sets of pods that free it.
_Sets = Mapping[int, Mapping[int, Sequence[tuple[MovablePod, ...]]]]


class _Search:
    """The search for the cheapest plan, node by node.

    Args:
        table: every card.
        need: what waits, in one container.
        prover: says which pods may move, and where to.
        suitable: the cards that the waiting pod may get.
        room: those on which it would fit now.

    Attributes:
        best: the cheapest plan so far.
    """

    def __init__(
        self, table: CardTable, need: PodNeed, prover: RoomProver, *, suitable: Flags, room: Flags
    ) -> None:
        (self._container,) = need.containers
        self._table = table
        self._need = need
        self._prover = prover
        self._suitable = suitable
        self._room = room
        self._proofs = 0
        self._stuck: set[str] = set()
        self.best: RoomPlan | None = None

    @property
    def over(self) -> bool:
        """Whether enough was tried."""
        return self._proofs >= (_PROOFS if self.best else _PROOFS_IN_VAIN)

    def look_at(self, node: int, most_moves: int) -> None:
        """Search one node for a plan of at most so many moves that is cheaper than the best."""
        name = self._table.nodes[node]
        numbers = np.flatnonzero(self._suitable & (self._table.node == node)).tolist()
        self._proofs += 1  # so that nodes whose pods may not be moved are not looked at for ever
        sets = self._sets_of(numbers)
        moves = 1
        while moves <= most_moves:
            stuck = len(self._stuck)
            for cards, moved in self._ways(sets, moves):
                cost = moves, sum(pod.cost for pod in moved)
                if self.over or (self.best and cost >= self.best.cost[:2]):
                    return
                self._proofs += 1
                found = self._proven(name, cards, moved)
                if found is not None:
                    self.best = min(self.best or found, found, key=lambda plan: plan.cost)
                    return
                if len(self._stuck) > stuck:
                    break
            if len(self._stuck) > stuck:  # choose again, without that pod
                sets = self._sets_of(numbers)
            else:
                moves += 1

    def _sets_of(self, numbers: Sequence[int]) -> _Sets:
        """Return by which sets of pods each card is freed, by their size; by none if it is free."""
        return {
            number: {0: [()]}
            if self._room[number]
            else {size: found for size in _SIZES if (found := self._sets(number, size))}
            for number in numbers
        }

    def _ways(self, sets: _Sets, moves: int) -> list[_Way]:
        """Return the ways to make room on some of the cards by so many moves, cheapest first."""
        numbers = [number for number, of_card in sets.items() if of_card]
        found = islice(self._combined(numbers, sets, ((), ()), moves), _WAYS_WEIGHED)
        free_mib = self._table.cards.free_mib

        def cost(way: _Way) -> tuple[float, int, list[str]]:
            # Of cards that cost the same, the tightest: whole cards stay for those who need them.
            tightest = int(free_mib[list(way[0])].sum())
            return sum(pod.cost for pod in way[1]), tightest, [pod.uid for pod in way[1]]

        return sorted(found, key=cost)

    def _combined(
        self, numbers: Sequence[int], sets: _Sets, way: _Way, left: int
    ) -> Iterator[_Way]:
        """Yield every way that goes on from *way* with exactly *left* more moves."""
        cards, moved = way
        missing = self._container.cards - len(cards)
        if not missing:
            if not left:
                yield way
            return
        if sum(nsmallest(missing, (min(sets[number]) for number in numbers))) > left:
            return
        owners = {pod.owner for pod in moved}
        for at in range(len(numbers) - missing + 1):
            number, rest = numbers[at], numbers[at + 1 :]
            for size, of_size in sets[number].items():
                for pods in of_size if size <= left else ():
                    if owners.isdisjoint(pod.owner for pod in pods):
                        further = ((*cards, number), (*moved, *pods))
                        yield from self._combined(rest, sets, further, left - size)

    def _sets(self, number: int, size: int) -> list[tuple[MovablePod, ...]]:
        """Return sets of so many pods that free one card, the cheapest first."""
        table = self._table
        pods = self._prover.movable(table.uuids[number])
        pods = [pod for pod in pods if pod.uid not in self._stuck][:_PODS_WEIGHED]
        short_mib = self._container.mib - int(table.cards.free_mib[number])
        if sum(nlargest(size, (pod.allocation.mib for pod in pods))) < short_mib:
            return []
        sets = [
            some for some in combinations(pods, size) if len({one.owner for one in some}) == size
        ]
        asked = CardRequest.of(self._container)
        leaving = [[pod.allocation for pod in some] for some in sets]
        enough = table.has_room_without(number, self._need, asked, leaving)
        return nsmallest(
            _SETS_WEIGHED,
            compress(sets, enough.tolist()),
            key=lambda some: sum(pod.cost for pod in some),
        )

    def _proven(
        self, node: str, cards: Sequence[int], moved: Sequence[MovablePod]
    ) -> RoomPlan | None:
        uuids = tuple(self._table.uuids[number] for number in cards)
        if not self._prover.fits(node, uuids, moved):
            return None
        planned = self._with_targets(moved, frozenset(uuids))
        if planned is None:
            return None
        taken = np.maximum(self._table.cards.free_mib[list(cards)], 0).sum()
        return RoomPlan(node=node, cards=uuids, moves=planned, taken_mib=int(taken))

    def _with_targets(
        self, moved: Sequence[MovablePod], keep_off: frozenset[CardUuid]
    ) -> tuple[PlannedMove, ...] | None:
        """Return the moves with a target for each, or None if there are none for all of them.

        One card takes one pod of a plan: the budgets let a card be a target once in a while.
        """
        options: list[tuple[MovablePod, list[tuple[str, CardUuid]]]] = []
        for pod in sorted(moved, key=lambda pod: (-pod.allocation.mib, pod.uid)):
            # If all pods have targets together, they have them among the best few of each.
            targets = list(islice(self._prover.targets(pod, keep_off), len(moved)))
            if not targets:
                if not any(self._prover.targets(pod, frozenset())):
                    self._stuck.add(pod.uid)
                return None
            options.append((pod, targets))
        return next(self._assigned(options, ()), None)

    def _assigned(
        self,
        options: Sequence[tuple[MovablePod, Sequence[tuple[str, CardUuid]]]],
        before: tuple[PlannedMove, ...],
    ) -> Iterator[tuple[PlannedMove, ...]]:
        """Yield each choice of targets, no card twice, in the order of the options."""
        if len(before) == len(options):
            yield before
            return
        pod, targets = options[len(before)]
        for node, card in targets:
            if any(move.card == card for move in before):
                continue
            beside = [move for move in before if move.node == node]
            if beside and not self._prover.fits_beside(pod, node, beside):
                continue
            move = PlannedMove(pod=pod, node=node, card=card)
            yield from self._assigned(options, (*before, move))
