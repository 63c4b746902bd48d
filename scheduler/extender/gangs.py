"""Keeps the pods of a gang waiting until all of them can be bound together.

The annotation ``fracgpu.io/gang: NAME/SIZE`` names the gang. kube-scheduler places one pod after
the other, so that

1. filter refuses the members until SIZE of them exist, kube-scheduler has asked about each, and
   there is room for all of them. Then the entire room is assumed in one step; no gang ever holds a
   part of it, and so no two can wait for each other;
2. filter gives each member its place in that room, and those refused before are marked, so that
   kube-scheduler tries them again;
3. bind waits until all members have come that far. Only then their Bindings are written, so that a
   gang of which kube-scheduler itself refuses a member is not bound in part either.

A gang that does not come together in time gives up the entire room. Once it has been bound, its
pods are placed like any other, such as the replacement of one that has failed.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import CardSelector, CardsOnNode
from fracgpu.request.language import parse_gang
from fracgpu.request.need import Gang
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from kube.errors import KubeError
from kube.informer import Change, ChangeType
from process.clock import Clock, wait_at_most
from scheduler.cache.change_signal import ChangeSignal
from scheduler.cache.event_handlers import AnyPod
from scheduler.cache.pod_marker import PodMarker
from scheduler.extender.api import ExtenderArgs, FilterResult
from scheduler.extender.filter import Extender
from scheduler.extender.gang_room import ROOM_S, GangRoom, GangSize, lacks_pods, waits_for
from scheduler.extender.pod_groups import PodGroups

log = structlog.get_logger()

# How long bind waits for the other members; below httpTimeout in kube-scheduler's configuration.
GATHER_S: Final = 7.0
_TICK_S: Final = 1.0
# Sets of candidates that are remembered.
_MOST_CANDIDATES: Final = 16
# How long a pod that kube-scheduler asked about before the watch showed it is remembered. It asks
# about every pod again within five minutes (podMaxInUnschedulablePodsDuration); later it is gone.
_EARLY_S: Final = 600.0
GangKey = tuple[str, Gang]  # the namespace, and the gang


@dataclass(slots=True)
class _Room:
    """What is held for a gang.

    Attributes:
        here: those whose Bindings wait for the others.
        why_not: why they are not written; empty if they are; None while that is open.
    """

    members: frozenset[str]
    until_s: float
    here: set[str] = field(default_factory=set)
    why_not: str | None = None
    decided: asyncio.Event = field(default_factory=asyncio.Event)

    def decide(self, why_not: str) -> None:
        self.why_not = why_not
        self.decided.set()


@dataclass(slots=True)
class _Members:
    """The pods of a gang.

    Attributes:
        asked: the candidates of each pending member when kube-scheduler last asked about it; equal
            ones are one object.
        refused: after which change there was no room, and the answer.
        size: whether it could ever fit.
    """

    pending: dict[str, PodInfo] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    asked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    room: _Room | None = None
    refused: tuple[int, str] = (-1, "")
    size: GangSize = field(default_factory=GangSize)

    def may_be_alone(self, uid: str) -> bool:
        """Report whether a member is placed like any other pod: the gang is bound, or about to."""
        room = self.room
        opened = room is not None and room.why_not == "" and uid in room.members
        return opened or bool(self.bound)

    def tidy(self) -> bool:
        """Drop a room whose members are all bound or gone; return whether nothing is left."""
        room = self.room
        if room is not None and room.why_not == "" and room.members.isdisjoint(self.pending):
            self.room = None
        return not self.pending and not self.bound and self.room is None


class Gangs:
    """The gangs of the cluster, and the room that is held for them.

    Args:
        extender: says where one pod fits.
        ledger: what each pod holds, or is about to.
        finder: finds the room.
        cards: selects the cards of a pod on a node.
        changes: counts pod and node events.
        clock: bounds the waits.

    Attributes:
        of_pod: the gang of each pod that has one, by its UID.
        pod_groups: the pods that kube-scheduler itself places together.
    """

    def __init__(
        self,
        extender: Extender,
        ledger: Ledger,
        finder: GangRoom,
        *,
        cards: CardSelector,
        changes: ChangeSignal,
        clock: Clock,
    ) -> None:
        self._extender = extender
        self._ledger = ledger
        self._finder = finder
        self._cards = cards
        self._changes = changes
        self._clock = clock
        self._gangs: dict[GangKey, _Members] = {}
        self.of_pod: dict[str, GangKey] = {}
        self.pod_groups = PodGroups(cards, clock=clock)
        self._candidates: dict[frozenset[str], tuple[str, ...]] = {}
        self._early: dict[str, float] = {}  # when it was last asked about; the latest last
        self._to_wake: dict[str, PodInfo] = {}
        self._work = asyncio.Event()

    # -- events --------------------------------------------------------------------------------

    def pod_changed(self, change: Change[AnyPod]) -> None:
        """Take note of a pod of a gang."""
        self.pod_groups.pod_changed(change)
        pod, uid = change.object, change.uid
        gone = change.type is ChangeType.DELETED
        key = None if gone else key_of(pod)
        before = self.of_pod.get(uid)
        if before is not None and before != key:
            self._forget(uid, before)
        if key is not None:
            self._see(uid, key, pod)
        if uid in self._early:
            del self._early[uid]
            if isinstance(pod, PodInfo) and not gone:
                self._to_wake[uid] = pod
                self._work.set()

    def _see(self, uid: str, key: GangKey, pod: AnyPod) -> None:
        self.of_pod[uid] = key
        members = self._gangs.setdefault(key, _Members())
        if isinstance(pod, PodInfo):
            members.pending[uid] = pod
            return
        members.pending.pop(uid, None)
        members.asked.pop(uid, None)
        members.bound.add(uid)
        members.tidy()

    def _forget(self, uid: str, key: GangKey) -> None:
        members = self._gangs[key]
        del self.of_pod[uid]
        members.bound.discard(uid)
        members.asked.pop(uid, None)
        lost = members.pending.pop(uid, None)
        if lost is not None and members.room is not None and uid in members.room.members:
            self._give_up(key, f"pod {lost.record.key} is gone")
        if members.tidy():
            self._gangs.pop(key, None)

    def pending(self, key: GangKey) -> Mapping[str, PodInfo]:
        """Return the pods of a gang that have no node, by UID."""
        members = self._gangs.get(key)
        return {} if members is None else members.pending

    def bound(self, key: GangKey) -> Set[str]:
        """Return the pods of a gang that have a node, and will keep it, by UID."""
        members = self._gangs.get(key)
        return frozenset() if members is None else members.bound

    # -- filter --------------------------------------------------------------------------------

    def waits(self, pod: PodInfo) -> bool:
        """Report whether a pod is of a gang that has not been bound yet, or of a PodGroup."""
        if pod.pod_group:
            return True
        key, uid = key_of(pod), pod.record.uid
        return key is not None and not self._gangs.get(key, _Members()).may_be_alone(uid)

    async def filter(self, args: ExtenderArgs) -> FilterResult | None:
        """Return the answer about a member of a gang.

        None about any other pod, and about those that may be placed by themselves.
        """
        pod, uid = args.pod, args.pod.record.uid
        key = key_of(pod)
        if key is None or pod.need is None:
            return None
        if self._gangs.get(key, _Members()).may_be_alone(uid):
            return None
        if self.of_pod.get(uid) != key:
            return self._too_early(key, args)
        return await self._filter_member(key, args)

    async def _filter_member(self, key: GangKey, args: ExtenderArgs) -> FilterResult:
        uid, members, (_, gang) = args.pod.record.uid, self._gangs[key], key
        members.asked[uid] = self._shared(args.node_names)
        room = members.room
        if room is not None:
            if uid in room.members:
                return self._place_in(key, args)
            return _refusal(args, waits_for(gang, f"{gang.size} others of its pods to be placed"))
        gated = sum(pod.gated for pod in members.pending.values())
        if lacks := lacks_pods(gang, there=len(members.pending) - gated, gated=gated):
            return _refusal(args, lacks)
        if len(members.asked) < gang.size:
            return _refusal(args, waits_for(gang, f"the first try of each of its {gang.size} pods"))
        as_of, why_not = members.refused
        if as_of == self._changes.count:
            return _refusal(args, why_not)
        return await self._find_room(key, args)

    def _too_early(self, key: GangKey, args: ExtenderArgs) -> FilterResult:
        """Refuse a pod that is not observed yet, or was deleted a moment ago."""
        uid = args.pod.record.uid
        self._early.pop(uid, None)
        self._early[uid] = self._clock.monotonic()
        return _refusal(args, waits_for(key[1], "the extender to observe the pod"))

    def _shared(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the candidates, as one object for all pods that have the same.

        kube-scheduler finds them in another order each time.
        """
        key = frozenset(nodes)
        known = self._candidates.pop(key, None) or tuple(map(sys.intern, nodes))
        self._candidates[key] = known  # the latest last
        if len(self._candidates) > _MOST_CANDIDATES:
            del self._candidates[next(iter(self._candidates))]
        return known

    async def _find_room(self, key: GangKey, args: ExtenderArgs) -> FilterResult:
        members, (_, gang) = self._gangs[key], key
        asking = args.pod.record.uid
        uids = sorted(members.asked, key=lambda uid: (uid != asking, uid))[: gang.size]
        pods = [members.pending[uid] for uid in uids]
        found = await self._finder.find(gang, pods, members.asked, members.size)
        if isinstance(found, str):
            members.refused = (self._changes.count, found)
            return _refusal(args, found)
        # There must be no await from here until the room is assumed.
        placed = not self._ledger.assumed.keys().isdisjoint(uids)  # an answer may have been lost
        there = self._gangs.get(key) is members and members.asked.keys() >= set(uids)
        if placed or members.room is not None or not there or not found.stands:
            self._to_wake[asking] = args.pod
            return _refusal(args, waits_for(gang, "its pods to be placed"))
        self._hold(key, pods, found.placed)
        return FilterResult(passed=(found.placed[asking].node,))

    def _hold(self, key: GangKey, pods: Sequence[PodInfo], found: Mapping[str, Placement]) -> None:
        members = self._gangs[key]
        room = _Room(frozenset(found), self._clock.monotonic() + ROOM_S)
        members.room = room
        for pod in pods:
            self._assume(pod, found[pod.record.uid])
            self._to_wake[pod.record.uid] = pod
        self._work.set()
        log.info("gang_room_held", namespace=key[0], gang=str(key[1]))

    def _assume(self, pod: PodInfo, placement: Placement) -> None:
        self._ledger.assume(
            pod.record,
            node=placement.node,
            assignment=placement.assignment,
            until=self._clock.now() + timedelta(seconds=ROOM_S + 2 * _TICK_S),
            gang=True,
            host=pod.host,
        )

    def _place_in(self, key: GangKey, args: ExtenderArgs) -> FilterResult:
        """Return the place of a member: the one that is held, or another if it cannot go there."""
        pod, uid = args.pod, args.pod.record.uid
        self._to_wake.pop(uid, None)
        held = self._ledger.assumed.get(uid)
        if held is not None and held.allocation.node in args.node_names:
            return FilterResult(passed=(held.allocation.node,))
        self._ledger.forget(uid)
        best = self._extender.ranked(args)
        answer = self._cards.on_node(pod, best[0]) if best else None
        if isinstance(answer, CardsOnNode):
            self._assume(pod, answer.placement)
            return FilterResult(passed=(best[0],))
        why_not = f"none of the nodes that pod {pod.record.key} may go to has room any more"
        self._give_up(key, why_not)
        return _refusal(args, waits_for(key[1], f"room for all its {key[1].size} pods at once"))

    # -- bind ----------------------------------------------------------------------------------

    async def gather(self, uid: str) -> str:
        """Wait until every member of the pod's gang is to be bound; return why not, or nothing."""
        key = self.of_pod.get(uid)
        if key is None or self._gangs[key].may_be_alone(uid):
            return ""
        gang, room = key[1], self._gangs[key].room
        if room is None or uid not in room.members:
            return f"the room that was held for gang {gang.name} has been given up"
        room.here.add(uid)
        if room.here == room.members:
            self._open(key, room)
        try:
            await wait_at_most(self._clock, room.decided, limit_s=GATHER_S)
        finally:
            room.here.discard(uid)
        if room.why_not is None:
            return f"not all {gang.size} pods of gang {gang.name} have a node yet"
        return room.why_not

    def _open(self, key: GangKey, room: _Room) -> None:
        """Let the Bindings be written if all of them still can be."""
        pending, assumed = self._gangs[key].pending, self._ledger.assumed
        for uid in room.members:
            held = assumed.get(uid)
            answer = held and self._cards.on_node(pending[uid], held.allocation.node)
            if not isinstance(answer, CardsOnNode):
                self._give_up(key, f"pod {pending[uid].record.key} has no card any more")
                return
        room.decide("")
        log.info("gang_gathered", namespace=key[0], gang=str(key[1]))

    # -- afterwards ----------------------------------------------------------------------------

    async def run(self, marker: PodMarker) -> None:
        """Until cancelled, drop rooms whose time is over, and have members tried again."""
        while True:
            await wait_at_most(self._clock, self._work, limit_s=_TICK_S)
            self._work.clear()
            self.expire()
            while self._to_wake:
                _, pod = self._to_wake.popitem()
                await _wake(marker, pod)

    def expire(self) -> None:
        """Drop rooms and early pods whose time is over."""
        now_s = self._clock.monotonic()
        while self._early and (oldest := next(iter(self._early.items())))[1] + _EARLY_S <= now_s:
            del self._early[oldest[0]]
        for key, members in tuple(self._gangs.items()):
            room = members.room
            if room is not None and room.until_s <= now_s:
                # Who did not come is first to be tried again: kube-scheduler may not let it.
                for uid in room.members - room.here if room.why_not is None else ():
                    members.asked.pop(uid, None)
                self._give_up(key, "its pods did not all get a node in time")

    def _give_up(self, key: GangKey, why_not: str) -> None:
        members = self._gangs[key]
        room, members.room = members.room, None
        if room is None:
            return
        for uid in room.members:
            self._to_wake.pop(uid, None)
            held = self._ledger.assumed.get(uid)
            if held is not None and held.gang:
                self._ledger.forget(uid)
        if room.why_not is None:
            room.decide(f"the room of gang {key[1].name} is given up: {why_not}")
            log.info("gang_room_given_up", namespace=key[0], gang=str(key[1]), reason=why_not)
        if members.tidy():
            self._gangs.pop(key, None)


async def _wake(marker: PodMarker, pod: PodInfo) -> None:
    try:
        await marker.mark(pod.record)
    except (KubeError, TimeoutError, ValueError) as error:
        log.warning("pod_not_woken", pod=pod.record.key, error=str(error))


def key_of(pod: AnyPod) -> GangKey | None:
    """Return the gang of a pod that is pending, or bound and alive."""
    if isinstance(pod, PodInfo):
        return (pod.record.namespace, pod.gang) if pod.gang is not None and pod.pending else None
    if not pod.gang or not pod.live or pod.terminating:
        return None
    try:
        gang = parse_gang({names.GANG: pod.gang})
    except RequestError:
        return None
    return None if gang is None else (pod.namespace, gang)


def _refusal(args: ExtenderArgs, why: str) -> FilterResult:
    """Refuse all nodes, and as hopeless for preemption: it would make room for one pod alone."""
    return FilterResult(unresolvable=dict.fromkeys(args.node_names, why))
