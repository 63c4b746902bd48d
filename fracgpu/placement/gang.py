"""Places the pods of a gang: all of them, or none."""

from collections.abc import Callable, Mapping, Sequence
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
    nodes: Sequence[str]
    closed: frozenset[CardUuid] = frozenset()

    @property
    def uid(self) -> str:
        return self.pod.record.uid

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


def place_gang(
    members: Sequence[GangMember],
    *,
    node: Callable[[str], NodeInfo | None],
    left: Callable[[str], HostResources | None],
    strategy: Strategy,
) -> Mapping[str, Placement] | NoRoom:
    """Return the cards of each member, by UID, or that there is no room for all of them.

    The largest come first, and each goes to a node that the gang uses already, if it can. That is
    exact for pods that are all alike and request one card each; others may wait although another
    order would fit.

    Args:
        members: the pods.
        node: returns a node as it is now, or None if there is no such node.
        left: returns what no pod has requested of a node's CPU and memory; None if that is not
            known.
        strategy: the cluster's default.
    """
    used: dict[str, _Node] = {}
    tried: dict[object, int] = {}  # how many of the nodes of equivalent pods are used or full
    found: dict[str, Placement] = {}
    for member in sorted(members, key=lambda one: (-one.total_mib, len(one.nodes), one.uid)):
        answer = _place(member, used, tried, node=node, left=left, strategy=strategy)
        if answer is not None:
            found[member.uid] = answer
    return found if len(found) == len(members) else NoRoom(len(found))


def _place(
    member: GangMember,
    used: dict[str, _Node],
    tried: dict[object, int],
    *,
    node: Callable[[str], NodeInfo | None],
    left: Callable[[str], HostResources | None],
    strategy: Strategy,
) -> Placement | None:
    kind = (member.need, member.pod.host, member.closed)
    allowed = set(member.nodes)
    for name, there in used.items():
        if name in allowed and (answer := _take(member, there, kind, strategy)) is not None:
            return answer
    of_kind = (kind, id(member.nodes))
    while (at := tried.get(of_kind, 0)) < len(member.nodes):
        name = member.nodes[at]
        tried[of_kind] = at + 1
        info = None if name in used else node(name)
        if info is None:
            continue
        there = _Node(info, left(name))
        if (answer := _take(member, there, kind, strategy)) is not None:
            used[name] = there
            return answer
    return None


def _take(member: GangMember, there: _Node, kind: object, strategy: Strategy) -> Placement | None:
    """Place a member on a node and count it there; None if it does not fit."""
    if kind in there.full:
        return None
    wanted, left = member.pod.host, there.left
    answer = place(there.info, member.need, strategy=strategy, exclude=member.closed)
    if not isinstance(answer, Placement) or (left is not None and _lacks(left, wanted)):
        there.full.add(kind)
        return None
    holds = allocations_by_card(answer.assignment, member.pod.record.containers)
    there.info = there.info.with_allocations(holds, pod_uid=member.uid)
    if left is not None:
        there.left = HostResources(
            cpu_milli=left.cpu_milli - wanted.cpu_milli,
            memory_mib=left.memory_mib - wanted.memory_mib,
        )
    return answer


def _lacks(left: HostResources, wanted: HostResources) -> bool:
    return wanted.cpu_milli > max(left.cpu_milli, 0) or wanted.memory_mib > max(left.memory_mib, 0)
