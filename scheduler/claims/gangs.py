"""Withholds the claims of a gang until cards for all its pods are held at once.

kube-scheduler allocates one claim after the other, so that

1. no pod of a gang gets a claim until as many exist as the gang has, and all fit. Then the room is
   held in one step, as where kube-scheduler asks us, and its cards are kept from everybody else;
2. claims of others that could be allocated these cards are replaced first;
3. then all claims are written, each with the cards that were found for its pod.

Once kube-scheduler has allocated one of them, the gang is placed: what is left of it keeps its room
for the rest of the time, and is placed pod by pod after that, like the replacement of a pod that
has failed. If none was allocated in time, all claims are deleted again. What claims there are says
how far a gang has come, so that whoever leads next completes it, or gives back what nobody uses.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import structlog

from fracgpu.cards.card import CardUuid
from fracgpu.placement.gang import GangPlacement
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import denied_cards, place
from fracgpu.state.allocation import cards_in
from process.clock import Clock
from scheduler.claims.cache import ClaimCache, UnboundPod, uid_of
from scheduler.claims.planner import ClaimPlanner, Plan, plan_on, why_no_claim
from scheduler.claims.preemption import Kept, Preemptions
from scheduler.claims.quota import ClaimQuota
from scheduler.core import SchedulerCore
from scheduler.extender.gang_room import ROOM_S, GangSize, lacks_pods, waits_for
from scheduler.extender.gangs import GangKey, key_of

log = structlog.get_logger()

# Between two tries to find room, which each of its pods and each change may ask for.
_PAUSE_S: Final = 1.0
# After a room that kube-scheduler did not use; others may be placed meanwhile.
_REST_S: Final = 10.0
_MOST_TRIES: Final = 3  # to find room that stands, at once
_LOOK_S: Final = 0.25  # between two looks whether others' claims are replaced
# The pods of a gang are created one after the other: who waits is told once no more come.
_SETTLED_S: Final = 0.4


class Because(Enum):
    """What a gang waits for."""

    PODS = auto()
    ROOM = auto()
    QUOTA = auto()


@dataclass(frozen=True, slots=True)
class Withheld:
    """No claim is made for a pod now; *why* is empty where that is over in a moment."""

    why: str = ""
    because: Because = Because.ROOM


@dataclass(slots=True, kw_only=True)
class _Room:
    """The cards that are held for a gang.

    Attributes:
        plans: what the claims of its pods are to list that have not been written yet.
        kept: the cards, and the pods.
        look_s: when it is looked at next whether others' claims are replaced.
        open: they are, and the claims may be written.
    """

    plans: dict[str, Plan]
    kept: Kept
    until_s: float
    look_s: float = 0.0
    open: bool = False


@dataclass(slots=True)
class _Gang:
    """What was done for a gang.

    Attributes:
        searching: room is being looked for.
        refused: after which change there was none, and the answer.
        again_s: when it is looked for again.
        size: whether it could ever fit.
        known: how many of its pods there were when they were counted last.
        settled_s: when those who wait for the others are told; None once they are.
    """

    room: _Room | None = None
    searching: bool = False
    refused: tuple[int, Withheld] = (-1, Withheld())
    again_s: float = 0.0
    size: GangSize = field(default_factory=GangSize)
    known: int = 0
    settled_s: float | None = None


class ClaimGangs:
    """The gangs whose pods have claims.

    Args:
        core: knows the pods of each gang, finds room and counts it.
        cache: pods and claims as observed.
        planner: says where a pod may run.
        preemptions: keeps the cards from others.
        quota: says which claims may be made.
        clock: bounds the waits.
        on_due: called with the UID of a pod for whose claim something may have to be done.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        core: SchedulerCore,
        cache: ClaimCache,
        planner: ClaimPlanner,
        preemptions: Preemptions,
        quota: ClaimQuota,
        *,
        clock: Clock,
        on_due: Callable[[str], None],
    ) -> None:
        self._core = core
        self._cache = cache
        self._planner = planner
        self._preemptions = preemptions
        self._quota = quota
        self._clock = clock
        self._on_due = on_due
        self._gangs: dict[GangKey, _Gang] = {}

    async def adopt(self) -> None:
        """Hold the room of gangs that the leader before us has written some claims of."""
        keys = {key for pod in self._cache.pods.values() if (key := key_of(pod.info)) is not None}
        for key in keys:
            for _ in range(_MOST_TRIES):
                listed = self._listed(key)
                if not listed and not self._is_placed(key):
                    break
                gang = self._gangs.setdefault(key, _Gang())
                why_not = await self._search(key, gang, listed)
                if why_not is None or why_not.why:
                    break

    # -- one pod ---------------------------------------------------------------------------------

    async def place(
        self, pod: UnboundPod, threats: Callable[[Kept], list[str]]
    ) -> Plan | Withheld | None:
        """Return what the claim of a pod is to list, or why it has none.

        None for a pod that is placed by itself: it is of no gang, or its gang is placed.

        Args:
            pod: the pod, which has no claim.
            threats: returns the pods whose claims may be allocated cards that are kept from them.
        """
        key = key_of(pod.info)
        if key is None:
            return None
        gang = self._gangs.setdefault(key, _Gang())
        room = gang.room
        if room is not None and uid_of(pod) in room.kept.pods:
            return self._place_in(key, room, pod, threats)
        if self._is_placed(key):
            return None
        withheld = self._why_not_searched(key, gang) or await self._search(key, gang, {})
        room = gang.room
        if withheld is not None or room is None or uid_of(pod) not in room.kept.pods:
            return withheld or Withheld()
        return self._place_in(key, room, pod, threats)

    def _why_not_searched(self, key: GangKey, gang: _Gang) -> Withheld | None:
        size = key[1].size
        if gang.room is not None:
            return Withheld(waits_for(key[1], f"{size} others of its pods to be placed"))
        there = len(self._there(key))
        gated = sum(pod.gated for pod in self._core.gangs.pending(key).values())
        if lacks := lacks_pods(key[1], there=there, gated=gated):
            return self._lacks_pods(gang, there, lacks)
        if gang.searching:
            return Withheld()
        as_of, why_not = gang.refused
        waits = as_of == self._core.changes.count or self._clock.monotonic() < gang.again_s
        return why_not if waits else None

    def _place_in(
        self, key: GangKey, room: _Room, pod: UnboundPod, threats: Callable[[Kept], list[str]]
    ) -> Plan | Withheld | None:
        """Return what a claim is to list of the room; None if the pod has had its claim of it."""
        plan = room.plans.get(uid_of(pod))
        if plan is None or room.open:
            return plan
        now_s = self._clock.monotonic()
        if now_s < room.look_s:
            return Withheld()
        room.look_s = now_s + _LOOK_S
        others = threats(room.kept)
        self._note_all(others)
        if others:
            return Withheld()
        if not self._stands(room):
            self._give_up(key, "somebody else was allocated its cards")
            return Withheld()
        room.open = True
        self._note_all(room.plans)
        return plan

    def _stands(self, room: _Room) -> bool:
        """Report whether each claim of a room can be allocated beside the others."""
        ledger, now, strategy = self._core.ledger, self._core.cards.now(), self._core.cards.strategy
        for uid, plan in room.plans.items():
            pod = self._cache.pods.get(uid)
            node = ledger.node_but(plan.nodes[0], uid, now=now)
            if pod is None or pod.info.need is None or node is None:
                return False
            answer = place(
                node.with_cordoned(denied_cards(ledger, pod.info, now=now)),
                pod.info.need,
                strategy=strategy(),
                exclude=frozenset(node.cards) - cards_in(plan.choice),
            )
            if not isinstance(answer, Placement):
                return False
        return True

    def is_to_be_listed(self, pod: UnboundPod) -> bool:
        """Report whether an open claim would place a pod without the others of its gang."""
        key = key_of(pod.info)
        return key is not None and not self._is_placed(key)

    def is_held(self, uid: str) -> bool:
        """Report whether a pod has its place in the room of its gang, and no claim yet."""
        pod = self._cache.pods.get(uid)
        key = None if pod is None else key_of(pod.info)
        gang = None if key is None else self._gangs.get(key)
        return gang is not None and gang.room is not None and uid in gang.room.plans

    def gives_back(self, pod: UnboundPod) -> bool:
        """Report whether the claim of a pod, which is not allocated, is of a gang without room."""
        key = key_of(pod.info)
        if key is None or self._is_placed(key):
            return False
        gang = self._gangs.get(key) or _Gang()
        holds = gang.room is not None and uid_of(pod) in gang.room.kept.pods
        return not holds and not gang.searching

    def written(self, pod: UnboundPod) -> None:
        """Take note that a pod has its claim: whatever becomes of that, it is placed by itself."""
        key = key_of(pod.info)
        gang = None if key is None else self._gangs.get(key)
        if gang is not None and gang.room is not None:
            gang.room.plans.pop(uid_of(pod), None)

    def give_up(self, pod: UnboundPod, why: str) -> None:
        """End the room of a gang, of which a pod cannot use its part."""
        key = key_of(pod.info)
        if key is not None:
            self._give_up(key, f"pod {pod.info.record.key}: {why}", rest_s=_REST_S)

    # -- afterwards ------------------------------------------------------------------------------

    def tick(self, *, leads: bool) -> None:
        """End the rooms whose time is over, and have pods looked at that are due."""
        now_s = self._clock.monotonic()
        for key, gang in tuple(self._gangs.items()):
            room = gang.room
            if room is not None:
                self._tick_room(key, room, now_s, leads=leads)
            elif gang.settled_s is not None and gang.settled_s <= now_s:
                gang.settled_s = None
                self._note_all(self._core.gangs.pending(key))
            elif not self._core.gangs.pending(key) and not gang.searching:
                del self._gangs[key]

    def _tick_room(self, key: GangKey, room: _Room, now_s: float, *, leads: bool) -> None:
        placed, pods = self._is_placed(key), room.kept.pods
        bound, pending = self._core.gangs.bound(key), self._core.gangs.pending(key)
        if not leads:
            self._give_up(key, "another replica leads")
        elif all(uid in bound or uid not in pending or self._is_allocated(uid) for uid in pods):
            self._give_up(key, "")
        elif not placed and not pods <= pending.keys():
            self._give_up(key, "one of its pods is gone")
        elif room.until_s <= now_s:
            self._give_up(key, "its pods did not all get a node in time", rest_s=_REST_S)
        elif not room.open and room.look_s <= now_s:
            self._note_all(room.plans)

    def _give_up(self, key: GangKey, why: str, *, rest_s: float = 0.0) -> None:
        gang = self._gangs[key]
        room, gang.room = gang.room, None
        if room is None:
            return
        self._preemptions.release(key)
        for uid in room.plans:
            pod = self._cache.pods.get(uid)
            if pod is not None and self._cache.claim_of(pod) is None:
                self._cache.forget(uid)
                self._quota.release(pod)
        if rest_s and not self._is_placed(key):
            gang.again_s = self._clock.monotonic() + rest_s
            gang.refused = (-1, Withheld(waits_for(key[1], f"another try: {why}")))
        if why:
            log.info("gang_room_given_up", namespace=key[0], gang=str(key[1]), reason=why)
        self._note_all(self._core.gangs.pending(key))

    def _note_all(self, uids: Iterable[str]) -> None:
        for uid in tuple(uids):
            self._on_due(uid)

    # -- room ------------------------------------------------------------------------------------

    def _lacks_pods(self, gang: _Gang, there: int, why: str) -> Withheld:
        if there != gang.known:
            gang.known = there
            gang.settled_s = self._clock.monotonic() + _SETTLED_S
        return Withheld() if gang.settled_s is not None else Withheld(why, Because.PODS)

    async def _search(
        self, key: GangKey, gang: _Gang, listed: Mapping[str, UnboundPod]
    ) -> Withheld | None:
        """Hold room for the pods of a gang without a claim, or return why there is none.

        Args:
            key: the gang.
            gang: what was done for it.
            listed: those of its pods that have one from the leader before us.
        """
        size = key[1].size - len(listed) - len(self._placed(key))
        there = self._there(key)
        pods = {uid: there[uid] for uid in sorted(there)[: max(size, 0)]}
        if not pods and not listed:
            return None
        gang.searching = True
        try:
            found = await self._core.gang_room.find(
                key[1],
                [pod.info for pod in pods.values()],
                self._candidates(pods),
                gang.size,
            )
        finally:
            gang.searching = False
        # There must be no await from here until the room is held.
        if isinstance(found, str):
            return self._refuse(key, gang, Withheld(found))
        there = self._there(key)
        if not found.stands or gang.room is not None or not pods.keys() <= there.keys():
            self._note_all(pods)
            return Withheld()
        why = self._quota.admit(*pods.values())
        if why:
            many = f"for the {len(pods)} pods of gang {key[1].name} together: {why}"
            return self._refuse(key, gang, Withheld(many, Because.QUOTA))
        self._hold(key, gang, {**pods, **listed}, found)
        return None

    def _refuse(self, key: GangKey, gang: _Gang, why: Withheld) -> Withheld:
        gang.refused = (self._core.changes.count, why)
        gang.again_s = self._clock.monotonic() + _PAUSE_S
        self._note_all(self._core.gangs.pending(key))
        return why

    def _candidates(self, pods: Mapping[str, UnboundPod]) -> dict[str, tuple[str, ...]]:
        """Return where each pod may run; equal ones are one object."""
        known: dict[tuple[str, ...], tuple[str, ...]] = {}
        found = {}
        for uid, pod in pods.items():
            nodes = tuple(map(sys.intern, self._planner.candidates(pod)))
            found[uid] = known.setdefault(nodes, nodes)
        return found

    def _hold(
        self, key: GangKey, gang: _Gang, pods: Mapping[str, UnboundPod], found: GangPlacement
    ) -> None:
        plans: dict[str, Plan] = {}
        cards: set[CardUuid] = set()
        for uid, pod in pods.items():
            placement = found.placed.get(uid)
            if placement is not None:
                plans[uid] = plan_on(placement.node, placement.assignment)
                self._cache.assume(pod, placement.node, placement.assignment)
                cards |= cards_in(placement.assignment)
            else:
                claim = self._cache.claim_of(pod)
                cards |= claim.cards if claim is not None else set()
        kept = self._preemptions.keep(key, frozenset(pods), frozenset(cards))
        gang.room = _Room(plans=plans, kept=kept, until_s=self._clock.monotonic() + ROOM_S)
        self._note_all(pods)
        log.info("gang_room_held", namespace=key[0], gang=str(key[1]))

    # -- pods ------------------------------------------------------------------------------------

    def _pending(self, key: GangKey) -> Iterator[tuple[str, UnboundPod]]:
        for uid in self._core.gangs.pending(key):
            pod = self._cache.pods.get(uid)
            if pod is not None:
                yield uid, pod

    def _there(self, key: GangKey) -> dict[str, UnboundPod]:
        """Return the pods of a gang that could be given a claim, and have none."""
        return {
            uid: pod
            for uid, pod in self._pending(key)
            if self._cache.claim_of(pod) is None
            and not pod.info.gated
            and not why_no_claim(pod.info)
        }

    def _listed(self, key: GangKey) -> dict[str, UnboundPod]:
        """Return the pods of a gang that have a claim of ours which is not allocated."""
        return {
            uid: pod
            for uid, pod in self._pending(key)
            if self._cache.listed_claim_of(pod) is not None
        }

    def _placed(self, key: GangKey) -> Set[str]:
        allocated = {uid for uid, _ in self._pending(key) if self._is_allocated(uid)}
        return self._core.gangs.bound(key) | allocated

    def _is_placed(self, key: GangKey) -> bool:
        return bool(self._placed(key))

    def _is_allocated(self, uid: str) -> bool:
        pod = self._cache.pods.get(uid)
        claim = None if pod is None else self._cache.own_claim_of(pod)
        return claim is not None and claim.allocated
