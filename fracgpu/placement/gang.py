"""Places the pods of a gang: all of them, or none."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import allocations_by_card
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import NodeInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """A pod to place.

    Attributes:
        need: what *pod* requests of cards.
        nodes: those that it may go to, the best first.
        closed: the cards that it is kept off.
    """

    pod: PodInfo
    need: PodNeed
    nodes: tuple[str, ...]
    closed: frozenset[CardUuid] = frozenset()

    @property
    def uid(self) -> str:
        return self.pod.record.uid

    @property
    def kind(self) -> tuple[object, ...]:
        """What decides whether it fits on a node."""
        return self.need, self.pod.host, self.closed

    @property
    def total_mib(self) -> int:
        return sum(container.total_mib for container in self.need.containers)


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Not all pods of a gang fit; *placed* of them would."""

    placed: int


@dataclass(slots=True)
class _Node:
    """A node with what the gang takes of it so far."""

    info: NodeInfo
    left: HostResources | None
    # What did not fit: as the gang only takes more, it does not fit later either.
    full: set[object] = field(default_factory=set)


class GangPlacement:
    """Places the members of a gang one by one, on nodes of which nothing else changes meanwhile.

    Each goes to a node that the gang uses already, if it can.

    Args:
        node: returns a node as it is now, or None if there is no such node.
        left: returns what no pod has requested of a node's CPU and memory; None if that is not
            known.
        strategy: the cluster's default.

    Attributes:
        placed: the cards of each member that fits, by UID.
    """

    def __init__(
        self,
        *,
        node: Callable[[str], NodeInfo | None],
        left: Callable[[str], HostResources | None],
        strategy: Strategy,
    ) -> None:
        self.placed: dict[str, Placement] = {}
        self._node = node
        self._left = left
        self._strategy = strategy
        self._before: dict[str, NodeInfo] = {}
        self._used: dict[str, _Node] = {}
        self._named: dict[int, frozenset[str]] = {}
        # Of equivalent members with the same nodes, how many of those are used or full.
        self._tried: dict[object, int] = {}

    @property
    def stands(self) -> bool:
        """Whether the nodes that the gang would use are still as they were."""
        return all(self._node(name) is info for name, info in self._before.items())

    def add(self, member: GangMember) -> bool:
        """Place a member, whose *nodes* must not change later; return whether it fits."""
        answer = self._on_used_node(member) or self._on_another_node(member)
        if answer is not None:
            self.placed[member.uid] = answer
        return answer is not None

    def _on_used_node(self, member: GangMember) -> Placement | None:
        allowed = self._named.setdefault(id(member.nodes), frozenset())
        if not allowed:
            allowed = self._named[id(member.nodes)] = frozenset(member.nodes)
        for name, there in self._used.items():
            if name in allowed and (answer := _take(member, there, self._strategy)) is not None:
                return answer
        return None

    def _on_another_node(self, member: GangMember) -> Placement | None:
        kind = (*member.kind, id(member.nodes))
        while (at := self._tried.get(kind, 0)) < len(member.nodes):
            name = member.nodes[at]
            self._tried[kind] = at + 1
            info = None if name in self._used else self._node(name)
            if info is None:
                continue
            there = _Node(info, self._left(name))
            if (answer := _take(member, there, self._strategy)) is not None:
                self._before[name] = info
                self._used[name] = there
                return answer
        return None


def in_order(members: Iterable[GangMember]) -> list[GangMember]:
    """Return members in the order in which they are to be placed: the largest first."""
    return sorted(members, key=lambda one: (-one.total_mib, len(one.nodes), one.uid))


def place_gang(
    members: Iterable[GangMember],
    *,
    node: Callable[[str], NodeInfo | None],
    left: Callable[[str], HostResources | None],
    strategy: Strategy,
) -> Mapping[str, Placement] | NoRoom:
    """Return the cards of each member, by UID, or that there is no room for all of them.

    That is exact for pods that are all alike and request one card each; others may wait although
    another order would fit. The other arguments are those of `GangPlacement`.
    """
    found = GangPlacement(node=node, left=left, strategy=strategy)
    fits = [found.add(member) for member in in_order(members)]
    return found.placed if all(fits) else NoRoom(len(found.placed))


def _take(member: GangMember, there: _Node, strategy: Strategy) -> Placement | None:
    """Place a member on a node and count it there; None if it does not fit."""
    kind = member.kind
    if kind in there.full:
        return None
    wanted, left = member.pod.host, there.left
    answer = place(there.info, member.need, strategy=strategy, exclude=member.closed)
    if not isinstance(answer, Placement) or (left is not None and left.lacks(wanted)):
        there.full.add(kind)
        return None
    holds = allocations_by_card(answer.assignment, member.pod.record.containers)
    there.info = there.info.with_allocations(holds, pod_uid=member.uid)
    if left is not None:
        there.left = left - wanted
    return answer
