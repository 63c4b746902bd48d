"""Finds room for all pods of a gang at once, wherever its pods get their cards from."""

import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final

from fracgpu.placement.gang import GangMember, GangPlacement, NoRoom, in_order, place_gang
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.placement import CardSelector, HostLeft
from fracgpu.placement.preemption import fits_if_emptied
from fracgpu.request.need import Gang, PodNeed
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import NodeInfo, build_node_info
from process.clock import Clock
from scheduler.extender.api import ExtenderArgs
from scheduler.extender.filter import Extender

# How long the room of a gang is held. kube-scheduler tries a pod that was refused often only ten
# seconds later (podMaxBackoffSeconds).
ROOM_S: Final = 30.0
# How long the verdict counts that a gang fits, or not, on nodes without other pods.
_SIZED_S: Final = 60.0
# Each is evaluated on all nodes.
_MOST_KINDS: Final = 8
# So many pods are placed before other requests get their turn.
_AT_ONCE: Final = 16

# How every refusal of a member begins.
_KEPT: Final = "node(s) kept from gang"
_TOO_SMALL: Final = "node(s) too small for gang"
GANG_WORDS: Final = (_KEPT, _TOO_SMALL)


def waits_for(gang: Gang, what: str) -> str:
    """Return in words what a gang waits for."""
    return f"{_KEPT} {gang.name}, which waits for {what}"


def lacks_pods(gang: Gang, *, there: int, gated: int) -> str:
    """Return in words that a gang waits for pods of its own; empty if it does not.

    Args:
        gang: the gang.
        there: how many of its pods could be placed.
        gated: how many more there are, which a scheduling gate keeps back.
    """
    if there >= gang.size:
        return ""
    also = f", and {gated} that are gated" if gated else ""
    return waits_for(gang, f"its pods ({there} of {gang.size} exist{also})")


@dataclass(slots=True)
class GangSize:
    """How a gang is too large for the nodes, if it is, until *until_s*."""

    too_large: str = ""
    until_s: float = -math.inf


class GangRoom:
    """Finds the cards for all pods of a gang, on the cards as they are.

    Args:
        extender: says where one pod fits.
        matrix: the cards.
        cards: selects the cards of a pod on a node.
        host_left: what no other pod has requested of a node's CPU and memory.
        clock: other work gets its turn by it.
    """

    def __init__(
        self,
        extender: Extender,
        matrix: NodeMatrix,
        *,
        cards: CardSelector,
        host_left: HostLeft,
        clock: Clock,
    ) -> None:
        self._extender = extender
        self._matrix = matrix
        self._ledger = matrix.ledger
        self._cards = cards
        self._host_left = host_left
        self._clock = clock

    async def find(
        self,
        gang: Gang,
        pods: Sequence[PodInfo],
        candidates: Mapping[str, tuple[str, ...]],
        size: GangSize,
    ) -> GangPlacement | str:
        """Return cards for all pods, or why they have to wait.

        Other work gets its turn meanwhile, so the answer may not stand any more.

        Args:
            gang: theirs.
            pods: those to place.
            candidates: the nodes that each may go to, by UID; equal ones should be one object.
            size: whether the gang could ever fit; it is looked at once a minute.
        """
        chosen = await self._ranked(pods, candidates)
        if chosen is None:
            return f"{_KEPT} {gang.name}, whose pods differ in more than {_MOST_KINDS} ways"
        now = self._clock.now()
        found = GangPlacement(
            node=lambda name: self._ledger.node(name, now=now),
            left=lambda name: self._host_left(name, ""),
            strategy=self._cards.strategy(),
        )
        fits = [found.add(member) async for member in self._paced(in_order(chosen))]
        return found if all(fits) else await self._no_room(gang, chosen, candidates, size)

    async def _paced(self, members: Iterable[GangMember]) -> AsyncIterator[GangMember]:
        """Yield *members*; other requests get their turn in between."""
        for at, member in enumerate(members):
            if at % _AT_ONCE == _AT_ONCE - 1:
                await self._clock.sleep(0)
            yield member

    async def _ranked(
        self, pods: Sequence[PodInfo], candidates: Mapping[str, tuple[str, ...]]
    ) -> list[GangMember] | None:
        """Return where each pod fits, the best nodes first; None if too many of them differ.

        Equivalent pods are evaluated once, on all nodes that any of them may go to.
        """
        kinds: dict[object, list[GangMember]] = {}
        for pod in pods:
            if pod.need is not None:  # as of every pod that is asked about
                closed = frozenset(self._extender.denied_to(pod))
                nodes = candidates[pod.record.uid]
                member = GangMember(pod=pod, need=pod.need, nodes=nodes, closed=closed)
                kinds.setdefault((*member.kind, pod.tolerations), []).append(member)
        if len(kinds) > _MOST_KINDS:
            return None
        found = []
        for members in kinds.values():
            await self._clock.sleep(0)  # other requests get their turn
            names = _union([one.nodes for one in members])
            ranked = self._extender.ranked(ExtenderArgs(pod=members[0].pod, node_names=names))
            own = {id(one.nodes): one.nodes for one in members}
            for which, nodes in own.items():
                own[which] = ranked if nodes is names else _only(ranked, nodes)
            found += [replace(one, nodes=own[id(one.nodes)]) for one in members]
        return found

    async def _no_room(
        self,
        gang: Gang,
        chosen: Sequence[GangMember],
        candidates: Mapping[str, tuple[str, ...]],
        size: GangSize,
    ) -> str:
        """Return why a gang of which only some pods fit has to wait.

        Whether it could ever fit is looked at once a minute.
        """
        if self._clock.monotonic() >= size.until_s:
            size.until_s = self._clock.monotonic() + _SIZED_S
            size.too_large = ""
            by_need: dict[PodNeed, list[GangMember]] = {}
            for member in chosen:
                by_need.setdefault(member.need, []).append(member)
            for need, equivalent in by_need.items():
                await self._clock.sleep(0)  # other requests get their turn
                nodes = _union([candidates.get(one.uid, ()) for one in equivalent])
                placed = self._placed_if_emptied(need, equivalent, nodes)
                if placed < len(equivalent):
                    size.too_large = (
                        f"{_TOO_SMALL} {gang.name}: even empty they would take only {placed} of "
                        f"{len(equivalent)} of its pods"
                    )
        return size.too_large or waits_for(gang, f"room for all its {gang.size} pods at once")

    def _placed_if_emptied(
        self, need: PodNeed, members: Sequence[GangMember], candidates: tuple[str, ...]
    ) -> int:
        """Return how many of some pods that need the same would fit if no other pod were there."""
        fits = fits_if_emptied(self._matrix, self._matrix.rows_of(candidates), need).tolist()
        nodes = tuple(compress(candidates, fits))
        if len(nodes) >= len(members):
            return len(members)
        answer = place_gang(
            [replace(member, nodes=nodes) for member in members],
            node=self._emptied,
            left=lambda _: None,
            strategy=self._cards.strategy(),
        )
        return answer.placed if isinstance(answer, NoRoom) else len(members)

    def _emptied(self, name: str) -> NodeInfo | None:
        node = self._ledger.nodes.get(name)
        return None if node is None else build_node_info(node, ())


def _union(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    first = lists[0]
    if all(one is first for one in lists):
        return first
    distinct = {id(one): one for one in lists}
    return tuple({name: None for names in distinct.values() for name in names})


def _only(ranked: tuple[str, ...], nodes: tuple[str, ...]) -> tuple[str, ...]:
    allowed = frozenset(nodes)
    return tuple(name for name in ranked if name in allowed)
