"""Counts claims in the ledger: what was allocated, and of what was not the first choice.

A pod holds what its claim was allocated, and nothing else of it says so. The events of a pod, its
claim and its node come in any order.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.device_claims.holders import ClaimHolders
from fracgpu.device_claims.quota import ClaimedMemory
from fracgpu.k8s.node_affinity import NodeRules
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.k8s.scheduling.objects import SchedulingNode
from fracgpu.state.allocation import Assignment
from fracgpu.state.bound_pod import BoundPod, decode_bound_pod
from fracgpu.state.ledger import discard
from fracgpu.state.node_info import ObservedNode
from fracgpu.state.pod_info import PodInfo, pod_info_of
from fracgpu.state.reservation import MoveClaims
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from scheduler.cache.event_handlers import AnyPod
from scheduler.core import SchedulerCore

_FOREVER: Final = datetime.max.replace(tzinfo=UTC)
_T = TypeVar("_T")

_NO_CARDS: Final[Mapping[str, CardUuid]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnboundPod:
    """A pod without a node.

    Attributes:
        rules: the nodes that it selects and tolerates.
    """

    info: PodInfo
    rules: NodeRules


ObservedPod = BoundPod | UnboundPod


def decode_observed_pod(body: bytes) -> ObservedPod:
    """Decode a pod for an informer.

    Raises:
        WireError: the body is no pod.
    """
    bound = decode_bound_pod(body)
    if bound is not None:
        return bound
    pod = decode_pod(body)
    return UnboundPod(info=pod_info_of(pod), rules=scheduling_constraints_of(pod).node)


def any_pod(pod: ObservedPod) -> AnyPod:
    """Return a pod as those know it who know nothing of claims."""
    return pod if isinstance(pod, BoundPod) else pod.info


def uid_of(pod: ObservedPod) -> str:
    """Return the UID of a pod."""
    return pod.uid if isinstance(pod, BoundPod) else pod.info.record.uid


class ClaimCache:
    """Joins pods, claims and nodes, and keeps the core's ledger up to date.

    Args:
        core: its handlers are told of pods and nodes, and its ledger of claims.
        on_pod: called with each change of a pod, as the core is told of it.
        on_due: called with the UID of a pod for whose claim something may have to be done.
        assignments: whether pods without a claim hold what they were assigned, by the extender.

    Attributes:
        pods: the pending pods that name a claim of ours, by UID.
        claims: all claims by ``namespace/name``.
        memory: what they count of the quotas.
        nodes: what kube-scheduler reads of each node.
    """

    def __init__(
        self,
        core: SchedulerCore,
        *,
        on_pod: Callable[[Change[AnyPod]], None] = lambda _: None,
        on_due: Callable[[str], None] = lambda _: None,
        assignments: bool = False,
    ) -> None:
        self._core = core
        self._assignments = assignments
        self._on_pod = on_pod
        self._on_due = on_due
        self.pods: dict[str, UnboundPod] = {}
        self.claims: dict[str, DeviceClaim] = {}
        self.memory = ClaimedMemory()
        self.nodes: dict[str, SchedulingNode] = {}
        self._why: dict[str, str] = {}
        self._naming: dict[str, set[str]] = {}  # UIDs of pods, by the claim's key
        self._holders = ClaimHolders(self._namespace_of, attrgetter("holder"))
        self._devices: dict[str, Mapping[str, CardUuid]] = {}
        self._node_of: dict[CardUuid, str] = {}

    def claim_of(self, pod: UnboundPod) -> DeviceClaim | None:
        """Return the claim that a pod names, whoever made it; None if there is none."""
        return self.claims.get(pod.info.claim_key)

    def own_claim_of(self, pod: UnboundPod) -> DeviceClaim | None:
        """Return the claim that a pod names, if we made it for this pod; else None."""
        claim = self.claim_of(pod)
        return claim if claim is not None and claim.holder == uid_of(pod) else None

    def listed_claim_of(self, pod: UnboundPod) -> DeviceClaim | None:
        """Return a pod's own claim while kube-scheduler may still allocate it; else None."""
        claim = self.own_claim_of(pod)
        return None if claim is None or claim.allocated or claim.terminating else claim

    @property
    def holders(self) -> Iterable[BoundPod]:
        """What holds cards by a claim, each as a pod, for the comparison with the ledger."""
        for uid, (claim, *_) in self._holders.counted():
            allocation = self._holders.allocation(uid, self._devices_of)
            yield BoundPod(namespace=claim.namespace, name=claim.name, allocation=allocation)

    def holds(self, uid: str) -> bool:
        """Report whether a claim is counted under a UID."""
        return bool(self._holders.of(uid))

    # -- changes ---------------------------------------------------------------------------------

    def pod_changed(self, change: Change[ObservedPod]) -> None:
        """Record a pod: it holds what its claim says, whatever its own annotations do."""
        pod, touched = change.object, self._holders.touched(change.uid)
        if isinstance(pod, BoundPod):
            self._forget_pending(change.uid)
            known: AnyPod = pod
            allocation = self._holders.allocation(
                pod.uid, self._devices_of, node=pod.node, namespace=pod.namespace
            )
            if not self._assignments or allocation.by_card:
                known = msgspec.structs.replace(pod, allocation=allocation)
            if change.type is not ChangeType.DELETED:
                touched -= {pod.uid}  # what it holds is said already
        else:
            self._pending_changed(change, pod)
            known = self._explained(pod.info)
        joined = _of(change, known)
        self._core.handlers.pod_changed(joined)
        self._on_pod(joined)
        # What it holds counts until its claim is gone as well, as kube-scheduler counts it.
        self._recount(touched)
        if change.uid in self.pods and not self.holds(change.uid):
            self._on_due(change.uid)

    def claim_changed(self, change: Change[DeviceClaim]) -> None:
        """Record a claim."""
        claim = change.object
        deleted = change.type is ChangeType.DELETED
        if deleted:
            self.claims.pop(claim.key, None)
        else:
            self.claims[claim.key] = claim
        self.memory.observe(claim, gone=deleted)
        self._recount(self._holders.observe(claim, gone=deleted))
        for uid in tuple(self._naming.get(claim.key, ())):
            self.count_first_choice(uid)
            self._on_due(uid)
        self._core.changes.notify(claim.holder)

    def node_changed(self, change: Change[ObservedNode]) -> None:
        """Record a node, and count the claims on it anew if its cards have changed."""
        name, node = change.key.name, change.object
        gone = change.type is ChangeType.DELETED
        if gone:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = node.scheduling
        self._core.handlers.node_changed(_of(change, node.cards))
        devices = {} if gone else cards_by_device(card.uuid for card in node.cards.cards)
        before = self._devices.get(name, _NO_CARDS)
        if devices == before:
            return
        for card in before.values():
            if self._node_of.get(card) == name:  # and has not turned up in another node since
                del self._node_of[card]
        self._devices[name] = devices
        self._node_of.update(dict.fromkeys(devices.values(), name))
        self._recount(self._holders.on_node(name))

    def move_changed(self, change: Change[MoveClaims]) -> None:
        """Record what a Move claims, and look at the pods that it holds cards for."""
        self._core.handlers.move_changed(change)
        reservation, hold = change.object.reservation, change.object.hold
        owner = reservation.owner_uid if reservation is not None else ""
        for uid, pod in tuple(self.pods.items()):
            of_owner = pod.info.owner is not None and pod.info.owner[2] == owner
            if of_owner or (hold is not None and hold.pod_uid == uid):
                self._on_due(uid)

    def explain(self, pod: UnboundPod, why: str) -> None:
        """Have people told why no card fits a pod, of which kube-scheduler only says that."""
        record = pod.info.record
        if self._why.get(record.uid) == why or record.uid not in self.pods:
            return
        self._why[record.uid] = why
        self._on_pod(
            Change(
                type=ChangeType.MODIFIED,
                key=ObjectKey(record.namespace, record.name),
                uid=record.uid,
                resource_version=record.resource_version,
                object=self._explained(pod.info),
            )
        )

    def is_explained(self, uid: str) -> bool:
        """Report whether it was said why no card fits a pod."""
        return uid in self._why

    def _explained(self, info: PodInfo) -> PodInfo:
        why = self._why.get(info.record.uid)
        # Of a pod of a gang that has no claim yet kube-scheduler says nothing.
        if why is None or (info.unschedulable_since is None and info.gang is None):
            return info
        return replace(info, unschedulable_why=f"{info.unschedulable_why} {why}".strip())

    # -- counting --------------------------------------------------------------------------------

    def count_first_choice(self, uid: str) -> None:
        """Count the claim of a pending pod as if it was allocated its first cards, till it is.

        kube-scheduler may take others of the list; that is observed as soon as it has.
        """
        pod = self.pods.get(uid)
        claim = None if pod is None else self.listed_claim_of(pod)
        if pod is None or claim is None:
            return
        choice = claim.first_choice
        cards = [part.card for parts in choice.values() for part in parts]
        node = self._node_of.get(cards[0], "") if cards else ""
        if node:
            self.assume(pod, node, choice, move=claim.move)
        else:
            self._core.ledger.forget(uid)

    def assume(self, pod: UnboundPod, node: str, choice: Assignment, *, move: str = "") -> None:
        """Count cards for a pod that it has not been allocated yet."""
        record = replace(pod.info.record, by_claim=True)
        self._core.ledger.assume(
            record, node=node, assignment=choice, until=_FOREVER, move=move, host=pod.info.host
        )

    def forget(self, uid: str) -> None:
        """Count nothing any more that a pod was not allocated."""
        self._core.ledger.forget(uid)

    def nodes_of(self, claim: DeviceClaim) -> set[str]:
        """Return the nodes of the cards that a claim lists."""
        listed = (self._node_of.get(card) for request in claim.requests for card in request.cards)
        return {node for node in listed if node is not None}

    def _pending_changed(self, change: Change[ObservedPod], pod: UnboundPod) -> None:
        if change.type is ChangeType.DELETED or not pod.info.pending or not pod.info.claim_key:
            self._forget_pending(change.uid)
        else:
            self.pods[change.uid] = pod
            self._naming.setdefault(pod.info.claim_key, set()).add(change.uid)

    def _forget_pending(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        self._why.pop(uid, None)
        if pod is None:
            return
        key = pod.info.claim_key
        discard(self._naming, key, uid)
        if key not in self._naming:
            self.memory.end_promise(key)
        self._core.ledger.forget(uid)

    def _recount(self, uids: Iterable[str]) -> None:
        """Count what claims hold under these UIDs."""
        for uid in uids:
            allocation = self._holders.allocation(uid, self._devices_of)
            self._core.ledger.observe(allocation)
            bound = self._core.bound_pods.get(uid)
            if bound is not None and allocation.node:
                self._core.bound_pods.put(msgspec.structs.replace(bound, allocation=allocation))

    def _namespace_of(self, uid: str) -> str | None:
        bound, pending = self._core.bound_pods.get(uid), self.pods.get(uid)
        if bound is not None:
            return bound.namespace
        return None if pending is None else pending.info.record.namespace

    def _devices_of(self, node: str) -> Mapping[str, CardUuid]:
        return self._devices.get(node, _NO_CARDS)


def _of(change: Change[Any], what: _T) -> Change[_T]:
    """Return a change of the same object, as *what*."""
    return Change(
        type=change.type,
        key=change.key,
        uid=change.uid,
        resource_version=change.resource_version,
        object=what,
    )
