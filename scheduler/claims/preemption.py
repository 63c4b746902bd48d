"""Who leaves for a pod of higher priority, and from whom its cards are kept until it has them.

kube-scheduler does not preempt for devices. Victims are chosen as by the extender, but none whose
disruption budget forbids it: they are evicted by the Eviction API, which would refuse. First the
pod gets a claim that lists its cards to be; then claims that could be allocated what gets free are
replaced, unless their pods have a higher priority; last the victims are evicted. So nobody is
evicted for nothing, and whoever leads next finds in the claim what is under way.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

import structlog

from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.errors import counted
from fracgpu.placement.outcome import Placement
from fracgpu.placement.preemption import Room
from fracgpu.state.allocation import cards_in
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.pod_info import PodInfo
from kube.errors import Conflict, KubeError, NotFound, TooManyRequests, Unavailable
from process.clock import Clock
from scheduler.claims.cache import ClaimCache, UnboundPod, uid_of
from scheduler.claims.planner import Plan, plan_on
from scheduler.core import SchedulerCore
from scheduler.extender.gangs import GangKey

log = structlog.get_logger()

# Cards that are kept for pods of a priority and those above it. Each open claim below names them
# all, of however many priorities: it has room for about 7,000, and without it is not made.
_MOST_KEPT: Final = 64
_ABOVE_ALL: Final = 2**31  # the highest priority is below it
_SPARED_S: Final = 30.0  # for which a pod that cannot be evicted is no victim
_GIVE_UP_S: Final = 60.0  # after which the rest of the victims is not tried again
_REST_PER_SEARCH: Final = 4.0  # after one in vain: of very many pods that wait, each is looked for
_TAKES_S: Final = 15.0  # for kube-scheduler to allocate what is free; it pauses 10 s at most


class Evictor(Protocol):
    """What is needed of the API server."""

    async def evict(
        self, *, namespace: str, name: str, uid: str, dry_run: bool = False
    ) -> None: ...


class RoomFinder(Protocol):
    """What is needed of :class:`scheduler.extender.preempt.Preemptor`."""

    async def room(
        self,
        pod: PodInfo,
        nodes: Collection[str],
        *,
        spared: Collection[str],
        closed: Callable[[], Collection[CardUuid]],
    ) -> Room | None: ...


@dataclass(slots=True, kw_only=True)
class Kept:
    """Cards that are kept for pods.

    Attributes:
        pods: their UIDs.
        priority: of the pods; who has a higher one may take the cards.
        number: counts up; whatever was planned before has a smaller one.
    """

    pods: frozenset[str]
    priority: int
    cards: frozenset[CardUuid]
    number: int


@dataclass(slots=True, kw_only=True)
class Preemption(Kept):
    """One pod, the cards that are kept for it, and who has to leave them.

    Attributes:
        began_s: when the victims were chosen.
        begun: some victim was evicted.
        evicted: all of them were.
        free_s: when they were gone; None before.
    """

    node: str
    victims: tuple[BoundPod, ...]
    began_s: float
    begun: bool = False
    evicted: bool = False
    free_s: float | None = None

    @property
    def pod(self) -> str:
        """The UID of the pod."""
        (pod,) = self.pods
        return pod


class Preemptions:
    """All preemptions under way, and what is kept for gangs.

    Args:
        api: evicts pods.
        cache: pods and claims as observed.
        core: its ledger counts the kept cards for their pod.
        finder: chooses victims.
        clock: bounds everything.
        leads: whether this replica may evict.
        limit_s: timeout of one request.
        on_evicted: called with each victim once it is evicted, and for whom it was.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        api: Evictor,
        cache: ClaimCache,
        core: SchedulerCore,
        finder: RoomFinder,
        *,
        clock: Clock,
        leads: Callable[[], bool],
        limit_s: float,
        on_evicted: Callable[[BoundPod, Preemption], None] = lambda *_: None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._core = core
        self._finder = finder
        self._clock = clock
        self._leads = leads
        self._limit_s = limit_s
        self._on_evicted = on_evicted
        self._under_way: dict[str, Preemption] = {}
        self._for_gangs: dict[GangKey, Kept] = {}
        self._spared_until_s: dict[str, float] = {}
        self._rest_until_s = 0.0
        self.number = 0

    def adopt(self) -> None:
        """Go on with what the leader before us began, as far as the claims say it."""
        for pod in self._cache.pods.values():
            claim = self._cache.listed_claim_of(pod)
            if claim is None or not claim.cards:
                continue
            nodes = self._cache.nodes_of(claim)
            if len(nodes) != 1:
                continue
            (node,) = nodes
            here = map(self._core.bound_pods.get, self._core.ledger.pods_on(node))
            leaving = tuple(
                other
                for other in here
                if other is not None
                and other.terminating
                and not claim.cards.isdisjoint(other.allocation.by_card)
            )
            gone = claim.freed_on == node and isinstance(
                self._core.cards_on(pod.info, node), Placement
            )
            if leaving or gone:
                self._begin(pod, node, claim.cards, leaving).evicted = True

    async def find(self, pod: UnboundPod, nodes: Collection[str]) -> Plan | None:
        """Choose victims for a pod that fits nowhere, and count their cards for it from now on.

        Returns:
            What its claim is to list; no cards where too many are kept for others already, and
            None where there are no victims.
        """
        priority = pod.info.priority
        held = map(self._core.bound_pods.get, self._core.ledger.observed)
        if not any(other is not None and other.priority < priority for other in held):
            return None
        now_s = self._clock.monotonic()
        if now_s < self._rest_until_s:
            return None
        self._spared_until_s = {
            uid: until_s for uid, until_s in self._spared_until_s.items() if until_s > now_s
        }
        room = await self._finder.room(
            pod.info,
            nodes,
            spared=frozenset(self._spared_until_s),
            closed=lambda: self.kept_from(pod),
        )
        if room is None:
            ended_s = self._clock.monotonic()
            self._rest_until_s = ended_s + (ended_s - now_s) * _REST_PER_SEARCH
        # There must be no await from here on: the cards may be given to another.
        if room is None or uid_of(pod) not in self._cache.pods:
            return None
        choice = room.placement.assignment
        cards = cards_in(choice)
        kept = self.kept_from(pod)
        if len(cards) + len(kept) > _MOST_KEPT:
            why = f"others are preempted for first, {counted(len(kept), 'card')} of theirs"
            return Plan(choice={}, cards=None, why=why)
        self._begin(pod, room.node, cards, room.victims)
        self._cache.assume(pod, room.node, choice, move="")
        leaving = counted(len(room.victims), "pod")
        why = f"{leaving} of lower priority must leave {room.node} first"
        return plan_on(room.node, choice, why=why)

    def keep(self, gang: GangKey, pods: frozenset[str], cards: frozenset[CardUuid]) -> Kept:
        """Keep cards for the pods of a gang, from all others, until :meth:`release`."""
        self.number += 1
        found = Kept(pods=pods, priority=_ABOVE_ALL, cards=cards, number=self.number)
        self._for_gangs[gang] = found
        return found

    def release(self, gang: GangKey) -> None:
        """Keep nothing any more for a gang."""
        self._for_gangs.pop(gang, None)

    def _begin(
        self, pod: UnboundPod, node: str, cards: frozenset[CardUuid], victims: tuple[BoundPod, ...]
    ) -> Preemption:
        self.number += 1
        found = self._under_way[uid_of(pod)] = Preemption(
            pods=frozenset((uid_of(pod),)),
            priority=pod.info.priority,
            node=node,
            cards=cards,
            victims=victims,
            number=self.number,
            began_s=self._clock.monotonic(),
        )
        return found

    def _active(self) -> Iterator[Preemption]:
        for uid, one in tuple(self._under_way.items()):
            pod = self._cache.pods.get(uid)
            claim = None if pod is None else self._cache.claim_of(pod)
            if pod is None or (claim is not None and claim.allocated):
                self.end(uid)
            else:
                yield one

    def end(self, uid: str) -> None:
        """Keep nothing any more for a pod."""
        self._under_way.pop(uid, None)

    def of(self, uid: str, claim: DeviceClaim) -> Preemption | None:
        """Return what is under way for a pod, whose claim lists the cards to be."""
        one = self._under_way.get(uid)
        return one if one is not None and claim.cards == one.cards else None

    def node_of(self, uid: str) -> str:
        """Return the node that others have to leave for a pod; empty without one."""
        one = self._under_way.get(uid)
        return "" if one is None else one.node

    def kept_from(self, pod: UnboundPod) -> frozenset[CardUuid]:
        """Return the cards that are kept for others, whose priority is no lower."""
        return frozenset(card for one in self._against(pod) for card in one.cards)

    def is_threat(self, pod: UnboundPod, claim: DeviceClaim, *, planned: int) -> bool:
        """Report whether a claim may be allocated cards that are kept from its pod.

        Args:
            pod: the pod.
            claim: its claim, which is not allocated.
            planned: the number of the last preemption that its shortlist takes account of.
        """
        if claim.open:
            return not self.kept_from(pod) <= claim.excluded
        cards = claim.cards
        if uid_of(pod) not in self._under_way:
            # Its first cards have room for it, which was counted when the victims were chosen.
            cards -= cards_in(claim.first_choice)
        return any(
            planned < one.number and not cards.isdisjoint(one.cards) for one in self._against(pod)
        )

    def _against(self, pod: UnboundPod) -> Iterator[Kept]:
        uid, priority = uid_of(pod), pod.info.priority
        kept: Iterator[Kept] = chain(self._active(), self._for_gangs.values())
        return (one for one in kept if uid not in one.pods and one.priority >= priority)

    def is_over(self, one: Preemption) -> bool:
        """Report whether the victims are gone, and kube-scheduler has not taken the cards since."""
        now_s = self._clock.monotonic()
        if not one.evicted:
            return now_s - one.began_s > _GIVE_UP_S
        if any(victim.uid in self._core.ledger.observed for victim in one.victims):
            return False
        if one.free_s is None:
            one.free_s = now_s
        return now_s - one.free_s > _TAKES_S

    async def evict(self, one: Preemption) -> bool:
        """Evict the victims, or none if one may not be; report whether to go on with it."""
        for dry_run in (True, False):
            for victim in one.victims:
                now = self._core.bound_pods.get(victim.uid)
                if now is None or now.terminating:
                    continue
                if not dry_run and not self._leads():
                    return True
                try:
                    await self._evict(victim, dry_run=dry_run)
                except KubeError as error:
                    name = f"{victim.namespace}/{victim.name}"
                    log.warning("pod_not_preempted", pod=name, error=str(error))
                    if not _may_change(error):
                        self._spared_until_s[victim.uid] = self._clock.monotonic() + _SPARED_S
                    return one.begun or _may_change(error)
                if not dry_run:
                    one.begun = True
                    self._on_evicted(victim, one)
        one.evicted = True
        return True

    async def _evict(self, victim: BoundPod, *, dry_run: bool) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await self._api.evict(
                    namespace=victim.namespace, name=victim.name, uid=victim.uid, dry_run=dry_run
                )
        except (NotFound, Conflict):
            return  # it is gone
        except TimeoutError:
            why = f"no answer within {self._limit_s:g} s"
            raise Unavailable(
                verb="POST", path="eviction", status=None, reason="", message=why
            ) from None


def _may_change(error: KubeError) -> bool:
    """Report whether an eviction is refused for the moment, not for what protects the pod."""
    busy = isinstance(error, TooManyRequests) and not error.by_disruption_budget
    return busy or error.status is None
