"""The claims that are prepared on this node, and so the cards of its pods."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final

import structlog

from deviceplugin.identity.node_pods import NodePods
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claim import DeviceClaim, assignment_of, decode_claim
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.errors import WireError
from fracgpu.state.allocation import Assignment
from fracgpu.state.pod_info import PodInfo
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.informer import Change, ChangeType
from kube.kinds import RESOURCE_CLAIMS
from process.clock import Clock

log = structlog.get_logger()

_PAUSE_S: Final = 1.0  # after a failure


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
        self._claims: dict[str, DeviceClaim] = {}
        self._pods_of: dict[str, str] = {}  # claim UID by pod UID
        self._cards: Mapping[str, CardUuid] = {}
        self._unread: asyncio.Queue[PodInfo] = asyncio.Queue()
        self._waiting: set[str] = set()  # UIDs of pods
        self._read_of: dict[str, str] = {}  # as _pods_of, of claims that another agent prepared
        self.pods = NodePods(on_change, self._assigned)

    @property
    def claims(self) -> Iterable[DeviceClaim]:
        """Those that are held."""
        return tuple(self._claims.values())

    @property
    def complete(self) -> bool:
        """Whether the claims of all pods that were seen have been read."""
        return not self._waiting

    def observe(self, change: Change[PodInfo]) -> None:
        """Take a change of the informer of pods."""
        pod = change.object
        known = change.uid in self._waiting or change.uid in self._pods_of
        if change.type is ChangeType.DELETED or not pod.record.live:
            self._waiting.discard(change.uid)
        elif pod.device_claim and not known:
            self._waiting.add(change.uid)
            self._unread.put_nowait(pod)
        self.pods.observe(change)
        if change.type is ChangeType.DELETED and (claim := self._read_of.pop(change.uid, "")):
            self.remove(claim)  # whoever was told that it is given back

    def add(self, claim: DeviceClaim, pod: PodInfo) -> None:
        """Count a claim from now on."""
        self._claims[claim.uid] = claim
        self._pods_of[pod.record.uid] = claim.uid
        self._read_of.pop(pod.record.uid, None)
        self.pods.claims_changed()

    def remove(self, uid: str) -> None:
        """Count a claim no more."""
        if self._claims.pop(uid, None) is None:
            return
        self._pods_of = {pod: claim for pod, claim in self._pods_of.items() if claim != uid}
        self.pods.claims_changed()

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
                    self.pods.claims_changed()

    async def _read_all(self) -> None:
        while True:
            pod = await self._unread.get()
            uid = pod.record.uid
            while uid in self._waiting:
                try:
                    await self._read(pod)
                except KubeError as error:
                    log.warning("claim_not_read", pod=pod.record.key, reason=str(error))
                    await self._clock.sleep(_PAUSE_S)
                else:
                    self._waiting.discard(uid)

    async def _read(self, pod: PodInfo) -> None:
        record = pod.record
        try:
            body = await self._client.get(
                RESOURCE_CLAIMS, pod.device_claim, namespace=record.namespace
            )
            claim = decode_claim(body)
        except NotFound:
            return
        except WireError as error:
            log.warning("claim_not_readable", pod=record.key, reason=str(error))
            return
        uid = record.uid
        own = claim.owner is not None and claim.owner.uid == uid
        reserved = [user.uid for user in claim.reserved_for] == [uid]
        # Meanwhile it may have been prepared, or its pod may have ended.
        mine = own and reserved and claim.node == self._node
        if mine and uid in self._waiting and claim.uid not in self._claims:
            self.add(claim, pod)
            self._read_of[uid] = claim.uid

    def _assigned(self, pod: PodInfo) -> Assignment | None:
        claim = self._claims.get(self._pods_of.get(pod.record.uid, ""))
        if claim is None:
            return None
        try:
            return assignment_of(claim, self._cards)
        except WireError as error:
            log.debug("claim_of_unknown_cards", claim=claim.key, reason=str(error))
            return None
