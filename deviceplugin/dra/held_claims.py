"""The claims that are prepared on this node, and so the cards of its pods."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog

from deviceplugin.identity.node_pods import NodePods
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claim import DeviceClaim, assignment_of, decode_claim
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.device_claims.preparation import why_not_its
from fracgpu.errors import WireError
from fracgpu.state.allocation import Assignment
from fracgpu.state.claim_use import ClaimUse
from fracgpu.state.pod_info import PodInfo
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.informer import Change, ChangeType
from kube.kinds import RESOURCE_CLAIMS
from process.clock import Clock

log = structlog.get_logger()

_PAUSE_S: Final = 1.0  # after a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """A claim, its pod, and which request each container has.

    Attributes:
        prepared: by this agent, and not by one before it.
    """

    claim: DeviceClaim
    pod: str
    use: ClaimUse
    prepared: bool = True


class HeldClaims:
    """Keeps what this node's pods hold, from their claims as the API server has them.

    An agent that starts reads the claims of the pods that are here already. Claims do not change
    once a pod is bound, so each is read once; those that are prepared meanwhile are added.

    Args:
        node: this node's name.
        client: reads claims.
        tracker: the node's inventory.
        clock: paces repeats.
        on_change: called after each change of the pods.
    """

    def __init__(
        self,
        *,
        node: str,
        client: KubeClient,
        tracker: InventoryTracker,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._node = node
        self._client = client
        self._tracker = tracker
        self._clock = clock
        self._held: dict[str, HeldClaim] = {}  # by the claim's UID
        self._cards: Mapping[str, CardUuid] = {}
        self._unread: asyncio.Queue[PodInfo] = asyncio.Queue()
        self._waiting: set[str] = set()  # UIDs of pods
        self._read: set[str] = set()
        self._complete = False
        self.pods = NodePods(on_change, self._assigned)

    @property
    def claims(self) -> Iterable[DeviceClaim]:
        """Those that are held."""
        return tuple(each.claim for each in self._held.values())

    @property
    def all(self) -> Iterable[HeldClaim]:
        """Those that are held, with their pods."""
        return tuple(self._held.values())

    def has(self, uid: str) -> bool:
        """Report whether a claim is held."""
        return uid in self._held

    @property
    def complete(self) -> bool:
        """Whether the claims of all pods that were here first have been read; stays True then.

        To be asked only once the pods have been listed.
        """
        self._complete = self._complete or not self._waiting
        return self._complete

    @property
    def settled(self) -> Mapping[str, PodInfo]:
        """The pods of which it is known what they hold; in any thread."""
        return {uid: pod for uid, pod in self.pods.by_uid.items() if uid not in self._waiting}

    def observe(self, change: Change[PodInfo]) -> None:
        """Take a change of the informer of pods."""
        pod, uid = change.object, change.uid
        if change.type is ChangeType.DELETED or not pod.record.live:
            self._waiting.discard(uid)
        elif pod.has_device_claims and uid not in self._waiting | self._read:
            self._waiting.add(uid)
            self._unread.put_nowait(pod)
        self.pods.observe(change)
        if change.type is ChangeType.DELETED:
            self._read.discard(uid)
            # Kubelet may have told an agent before this one that they are given back.
            for each in [one for one in self._held.values() if one.pod == uid and not one.prepared]:
                self.remove(each.claim.uid)

    @property
    def any(self) -> bool:
        """Whether some claim is held, or may be."""
        return bool(self._held or self._waiting)

    def of_pod(self, uid: str) -> Iterable[DeviceClaim]:
        """Return the claims that a pod holds."""
        return [each.claim for each in self._held.values() if each.pod == uid]

    def add(self, held: HeldClaim) -> None:
        """Count a claim from now on; with it is known what its pod holds."""
        self._held[held.claim.uid] = held
        self._done(held.pod)
        self.pods.claims_changed([held.pod])

    def remove(self, uid: str) -> None:
        """Count a claim no more."""
        held = self._held.pop(uid, None)
        if held is not None:
            self.pods.claims_changed([held.pod])

    async def run(self) -> None:
        """Read the claims of pods that were here before, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_cards(), name="follow_cards")
            group.create_task(self._read_all(), name="read_claims")

    async def _follow_cards(self) -> None:
        """Learn which devices are cards; one that vanishes stays known."""
        async with aclosing(self._tracker.changes()) as changes:
            async for inventory in changes:
                known = {**self._cards, **cards_by_device(inventory.by_uuid())}
                if known != self._cards:
                    self._cards = known
                    self.pods.claims_changed(self.pods.by_uid)

    async def _read_all(self) -> None:
        while True:
            pod = await self._unread.get()
            uid = pod.record.uid
            while uid in self._waiting:
                try:
                    await self._read_claims(pod)
                except KubeError as error:
                    log.warning("claim_not_read", pod=pod.record.key, reason=str(error))
                    await self._clock.sleep(_PAUSE_S)
                except WireError as error:
                    log.warning("claim_not_readable", pod=pod.record.key, reason=str(error))
                    self._done(uid)
                else:
                    self._done(uid)

    def _done(self, uid: str) -> None:
        if uid in self._waiting:
            self._read.add(uid)
        self._waiting.discard(uid)

    async def _read_claims(self, pod: PodInfo) -> None:
        uid = pod.record.uid
        for name, use in pod.claim_uses.items():
            try:
                body = await self._client.get(RESOURCE_CLAIMS, name, namespace=pod.record.namespace)
            except NotFound:  # somebody took its finalizer; the pod may have others
                continue
            claim = decode_claim(body)
            reserved = any(user.uid == uid for user in claim.reserved_for)
            mine = reserved and not why_not_its(claim, pod) and claim.node == self._node
            # Meanwhile it may have been prepared, or its pod may have ended.
            if mine and uid in self._waiting and claim.uid not in self._held:
                self.add(HeldClaim(claim=claim, pod=uid, use=use, prepared=False))

    def _assigned(self, pod: PodInfo) -> Assignment | None:
        held = [each for each in self._held.values() if each.pod == pod.record.uid]
        if not held:
            return None
        try:
            return {
                container: slices
                for each in held
                for container, slices in each.use.assigned(
                    assignment_of(each.claim, self._cards)
                ).items()
            }
        except WireError as error:
            log.debug("claim_of_unknown_cards", pod=pod.record.key, reason=str(error))
            return None
