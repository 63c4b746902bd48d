"""Reads what the next step of a move depends on, from the API server rather than from a cache.

Only candidates for the replacement are looked up in the cache; the one chosen is read again.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates.move_mode import HASH_LABEL, original_value
from fracgpu.errors import WireError
from fracgpu.k8s.node import decode_node
from fracgpu.k8s.pod import Pod, decode_pod
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import MovePhase
from fracgpu.state.node_info import why_no_pod_starts
from fracgpu.state.pod_info import PodInfo, decode_pod_info, pod_info_of
from kube.client import KubeClient
from kube.errors import KubeDecodeError, NotFound
from kube.kinds import NODES, PODS, Kind
from rebalancer.moves.owners import Owners
from rebalancer.moves.record import MoveRecord
from rebalancer.moves.steps.facts import (
    DELETION_COST,
    LOWEST_COST,
    MoveFacts,
    OwnerFacts,
    ReplacementFacts,
    VictimFacts,
)
from rebalancer.moves.steps.step import StepContext

# With these reasons time alone does not start a container.
# Source: kubernetes pkg/kubelet/images/types.go, pkg/kubelet/kuberuntime/kuberuntime_container.go.
_STUCK: Final = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
)
_Read = TypeVar("_Read")

_UNREAD: Final = MoveFacts(victim=VictimFacts(there=False), owner=OwnerFacts(there=False))


class Observer:
    """Reads the facts of one move."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._owners = Owners(client)

    async def observe(self, record: MoveRecord, context: StepContext) -> MoveFacts:
        """Return the facts on which the next step of a move depends.

        Raises:
            KubeError: the API server did not answer.
        """
        if record.phase is MovePhase.VERIFYING:
            return _UNREAD  # only what is measured matters
        spec = record.spec
        pod = await self._pod(spec.pod.namespace, spec.pod.name)
        victim = victim_of(pod, uid=spec.pod.uid)
        owner = await self._owners.read(spec.owner, namespace=spec.pod.namespace)
        if not owner.there:
            value = record.status.released_hash or original_value(victim.hash_label)
            left = orphans_of(context.state.pods.values(), spec.pod.namespace, hash_value=value)
            owner = replace(owner, orphans=any(orphan.uid != spec.pod.uid for orphan in left))
        return MoveFacts(
            victim=victim,
            owner=owner,
            replacement=await self._replacement(record, context.state.pods.values()),
            target_problem=await self._target_problem(spec.target.node),
        )

    async def _pod(self, namespace: str, name: str) -> PodInfo | None:
        try:
            return await self._read(decode_pod_info, PODS, name, namespace=namespace)
        except NotFound:
            return None

    async def _read(
        self,
        decode: Callable[[bytes], _Read],
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
    ) -> _Read:
        """Return an object; one that cannot be decoded is an error of the API server's."""
        body = await self._client.get(kind, name, namespace=namespace)
        try:
            return decode(body)
        except WireError as error:
            raise KubeDecodeError(
                verb="get", path=name, status=200, reason="NotTheObjectPromised", message=str(error)
            ) from error

    async def _replacement(
        self, record: MoveRecord, pods: Iterable[PlacedPod]
    ) -> ReplacementFacts | None:
        found = candidate(record, pods)
        if found is None:
            return None
        pod = found.info.record
        try:
            read = await self._read(decode_pod, PODS, pod.name, namespace=pod.namespace)
            info = pod_info_of(read)
        except (NotFound, KubeDecodeError, WireError):
            return None
        if info.record.uid != pod.uid or info.record.terminating or not info.record.live:
            return None
        return replacement_of(info, record, stuck=why_stuck(read))

    async def _target_problem(self, node: str) -> str:
        try:
            found = await self._read(decode_node, NODES, node)
        except NotFound:
            return f"node {node} was deleted"
        if found.spec.unschedulable:
            return f"node {node} is cordoned"
        return why_no_pod_starts(found)


def victim_of(pod: PodInfo | None, *, uid: str) -> VictimFacts:
    """Return the facts about the pod with a UID, given the pod that now has its name."""
    if pod is None:
        return VictimFacts(there=False, why_gone="there is no such pod")
    record = pod.record
    if record.uid != uid:
        return VictimFacts(there=False, why_gone=f"{record.key} is another pod now")
    if record.terminating or not record.live:
        return VictimFacts(there=False, why_gone="it is terminating or has ended")
    return VictimFacts(
        there=True,
        running=pod.phase == "Running",
        controller_uid=pod.owner[2] if pod.owner else "",
        hash_label=pod.labels.get(HASH_LABEL, ""),
        moved_by=pod.annotations.get(names.MOVED_BY, ""),
        notice=pod.annotations.get(names.NOTICE, ""),
        version=record.resource_version,
    )


def orphans_of(pods: Iterable[PlacedPod], namespace: str, *, hash_value: str) -> list[PlacedPod]:
    """Return the pods without a controller that a ReplicaSet with this hash would select."""
    return [
        pod
        for pod in pods
        if pod.info.record.namespace == namespace
        and not pod.info.owner
        and not pod.info.record.terminating
        and hash_value
        and pod.info.labels.get(HASH_LABEL) == hash_value
    ]


def candidate(record: MoveRecord, pods: Iterable[PlacedPod]) -> PlacedPod | None:
    """Return the pod that takes the place of the moved one, as far as the cache knows.

    The pod that consumed the reservation is the replacement. Until there is one, it may be any pod
    that the controller made since the Move exists: one that is not bound yet may still consume it.
    Both times are the API server's, and a cycle lies between the Move and the first disturbance.
    """
    spec = record.spec
    since = record.object.metadata.creation_timestamp
    known = record.status.replacement.uid if record.status.replacement else ""

    def by_reservation(pod: PlacedPod) -> bool:
        return pod.info.annotations.get(names.MOVE) == record.id

    def made_since(pod: PlacedPod) -> bool:
        created = pod.info.created_at
        return since is not None and created is not None and created > since

    found = [
        pod
        for pod in pods
        if pod.owner_uid == spec.owner.uid
        and pod.uid != spec.pod.uid
        and not pod.info.record.terminating
        and (by_reservation(pod) or made_since(pod))
    ]
    return min(
        found,
        key=lambda pod: (
            not by_reservation(pod),
            bool(pod.info.record.node),
            pod.uid != known,
            pod.info.record.key,
        ),
        default=None,
    )


def replacement_of(pod: PodInfo, record: MoveRecord, *, stuck: str) -> ReplacementFacts:
    """Return the facts about a replacement."""
    assignment = pod.record.assignment or {}
    cards = {part.card for slices in assignment.values() for part in slices}
    # With several cards the target counts only if it is the only one, as it was for the pod.
    card: CardUuid | None = cards.pop() if len(cards) == 1 else None
    return ReplacementFacts(
        name=pod.record.name,
        uid=pod.record.uid,
        node=pod.record.node,
        card=card,
        ready=pod.ready and pod.phase == "Running",
        by_reservation=pod.annotations.get(names.MOVE) == record.id,
        stuck=stuck,
        demoted=pod.annotations.get(DELETION_COST) == LOWEST_COST,
        version=pod.record.resource_version,
    )


def why_stuck(pod: Pod) -> str:
    """Return the container of a pod that time alone does not start, and why; empty if none."""
    for container in pod.status.of_containers:
        waiting = container.state.waiting if container.state else None
        if waiting is not None and waiting.reason in _STUCK:
            return f"container {container.name}: {waiting.reason}: {waiting.message}".rstrip(": ")
    return ""
