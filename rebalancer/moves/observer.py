"""Reads what the next step of a move depends on, from the API server rather than from a cache.

Only candidates for the replacement are looked up in the cache; the one chosen is read again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from fracgpu import names
from fracgpu.device_claims.claim import decode_claim
from fracgpu.device_claims.holders import with_claims
from fracgpu.disruption.candidates import HASH_LABEL, HASH_LABELS, hash_label_of, original_value
from fracgpu.errors import WireError
from fracgpu.k8s.node import decode_node
from fracgpu.k8s.pod import Pod, decode_pod
from fracgpu.k8s.workloads.workload import read_deployment, read_statefulset
from fracgpu.state.allocation import cards_in
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import Move, MovePhase, OwnerReference
from fracgpu.state.node_info import why_no_pod_starts
from fracgpu.state.pod_info import PodInfo, decode_pod_info, pod_info_of
from kube.client import KubeClient
from kube.errors import KubeDecodeError, NotFound
from kube.kinds import (
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    REPLICASETS,
    REPLICATION_CONTROLLERS,
    RESOURCE_CLAIMS,
    STATEFULSETS,
    Kind,
)
from kube.objects import decode_object, encode
from rebalancer.moves.steps import (
    DELETION_COST,
    LOWEST_COST,
    MoveFacts,
    OwnerFacts,
    ReplacementFacts,
    StepContext,
    VictimFacts,
)

# With these reasons time alone does not start a container.
# Source: kubernetes pkg/kubelet/images/types.go, pkg/kubelet/kuberuntime/kuberuntime_container.go.
_STUCK: Final = frozenset(
    {
        *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        # The node agent refuses a start, to kubelet or to the container runtime.
        *("CreateContainerConfigError", "CreateContainerError"),
    }
)
OWNER_KINDS: Final = {
    kind.kind: kind for kind in (REPLICASETS, STATEFULSETS, JOBS, REPLICATION_CONTROLLERS)
}
_Read = TypeVar("_Read")

_UNREAD: Final = MoveFacts(victim=VictimFacts(there=False), owner=OwnerFacts(there=False))


class Observer:
    """Reads the facts of one move."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._owners = Owners(client)

    async def observe(self, move: Move, context: StepContext) -> MoveFacts:
        """Return the facts on which the next step of a move depends.

        Raises:
            KubeError: the API server did not answer.
        """
        if move.phase is MovePhase.VERIFYING:
            return _UNREAD  # only what is measured matters
        spec = move.spec
        pod = await self._pod(spec.pod.namespace, spec.pod.name)
        victim = victim_of(pod, uid=spec.pod.uid)
        owner = await self._owners.read(spec.owner, namespace=spec.pod.namespace)
        owner = replace(owner, others=_others(spec.owner.uid, spec.pod.uid, context))
        if not owner.there:
            value = move.status.released_hash or original_value(victim.hash_label)
            left = orphans_of(context.state.pods.values(), spec.pod.namespace, hash_value=value)
            owner = replace(owner, orphans=any(orphan.uid != spec.pod.uid for orphan in left))
        return MoveFacts(
            victim=victim,
            owner=owner,
            replacement=await self._replacement(move, owner, context),
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
        self, move: Move, owner: OwnerFacts, context: StepContext
    ) -> ReplacementFacts | None:
        found = candidate(move, context.state.pods.values(), wanted=owner.desired)
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
        return replacement_of(await self._with_claim(info, context), stuck=why_stuck(read))

    async def _with_claim(self, pod: PodInfo, context: StepContext) -> PodInfo:
        """Return a pod with the cards that its claim was allocated, if it has one."""
        if not pod.device_claim:
            return pod
        namespace = pod.record.namespace
        try:
            claim = await self._read(
                decode_claim, RESOURCE_CLAIMS, pod.device_claim, namespace=namespace
            )
        except NotFound:
            return pod
        return with_claims((pod,), (claim,), context.nodes.values())[0]

    async def _target_problem(self, node: str) -> str:
        try:
            found = await self._read(decode_node, NODES, node)
        except NotFound:
            return f"node {node} was deleted"
        if found.spec.unschedulable:
            return f"node {node} is cordoned"
        return why_no_pod_starts(found)


def _others(owner_uid: str, pod_uid: str, context: StepContext) -> int:
    return sum(
        pod.info.ready and pod.info.record.live and not pod.info.record.terminating
        for pod in context.state.pods_of(owner_uid)
        if pod.uid != pod_uid
    )


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
        hash_label=pod.labels.get(hash_label_of(pod.labels), ""),
        hash_key=hash_label_of(pod.labels) or HASH_LABEL,
        moved_by=pod.annotations.get(names.MOVED_BY, ""),
        notice=pod.annotations.get(names.NOTICE, ""),
        prepared=pod.annotations.get(names.MOVE_READY) == "true",
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
        and pod.info.labels.get(hash_label_of(pod.info.labels)) == hash_value
    ]


def candidate(move: Move, pods: Iterable[PlacedPod], *, wanted: int) -> PlacedPod | None:
    """Return the pod that takes the place of the moved one, as far as the cache knows.

    The pod that consumed the reservation is the replacement. Until there is one, it may be any pod
    that the controller made since the Move exists: one that is not bound yet may still consume it,
    and one that is bound took another's place while the controller has fewer pods than *wanted*.
    Both times are the API server's, and a cycle lies between the Move and the first disturbance.
    """
    spec = move.spec
    since = move.metadata.creation_timestamp
    known = move.status.replacement.uid if move.status.replacement else ""

    def by_reservation(pod: PlacedPod) -> bool:
        return pod.info.record.move == move.name

    def made_since(pod: PlacedPod) -> bool:
        created = pod.info.created_at
        return since is not None and created is not None and created > since

    others = [
        pod
        for pod in pods
        if pod.owner_uid == spec.owner.uid
        and pod.uid != spec.pod.uid
        and not pod.info.record.terminating
    ]
    complete = len(others) >= wanted
    return min(
        (
            pod
            for pod in others
            if by_reservation(pod) or (made_since(pod) and (complete or not pod.info.record.node))
        ),
        key=lambda pod: (
            not by_reservation(pod),
            bool(pod.info.record.node),
            pod.uid != known,
            pod.info.record.key,
        ),
        default=None,
    )


def replacement_of(pod: PodInfo, *, stuck: str) -> ReplacementFacts:
    """Return the facts about a replacement."""
    cards = cards_in(pod.record.assignment or {})
    # With several cards the target counts only if it is the only one, as it was for the pod.
    card = next(iter(cards)) if len(cards) == 1 else None
    return ReplacementFacts(
        name=pod.record.name,
        uid=pod.record.uid,
        node=pod.record.node,
        card=card,
        ready=pod.ready and pod.phase == "Running",
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


_Object = Mapping[str, Any]

_GONE: Final = OwnerFacts(there=False)


class Owners:
    """Reads controllers of pods from the API server."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def read(self, owner: OwnerReference, *, namespace: str) -> OwnerFacts:
        """Return the facts about one very controller.

        Raises:
            KubeError: the API server did not answer.
        """
        kind = OWNER_KINDS.get(owner.kind)
        found = await self._fetch(kind, owner.name, namespace) if kind else None
        if found is None or found["metadata"].get("uid") != owner.uid:
            return _GONE
        return await self.facts(found, kind=owner.kind)

    async def with_hash(
        self, hash_value: str, *, namespace: str, key: str = HASH_LABEL
    ) -> OwnerFacts:
        """Return the facts about the ReplicaSet that selects by a hash; not there if none does."""
        listed = await self._client.list(
            REPLICASETS, namespace=namespace, label_selector=f"{key}={hash_value}"
        )
        for raw in listed.items:
            found = decode_object(bytes(raw))
            if selects_by(found) == hash_value:
                return await self.facts(found, kind=REPLICASETS.kind)
        return _GONE

    async def facts(self, found: _Object, *, kind: str) -> OwnerFacts:
        """Return the facts in a controller's object, and in its Deployment if it has one."""
        if "deletionTimestamp" in found["metadata"]:
            return _GONE
        current, observed = True, is_observed(found)
        if kind == REPLICASETS.kind:
            deployment = await self._deployment_of(found)
            current = is_current(found, deployment) if deployment else await self._is_alone(found)
            # One that is being scaled has not said yet how many pods its ReplicaSet should have.
            observed = observed and (deployment is None or is_observed(deployment))
        if kind == STATEFULSETS.kind:
            current = read_statefulset(encode(found)).updated
        read = _READERS[kind]
        desired, ready = read(found)
        return OwnerFacts(
            there=True,
            observed=observed,
            desired=desired,
            ready=ready,
            current=current,
            failure=_failure(found),
            fragile=kind == JOBS.kind and not has_retry(found),
            selects_by=selects_by(found),
        )

    async def _is_alone(self, replicaset: _Object) -> bool:
        """Report whether no other ReplicaSet of its owner has pods, as during an Argo rollout."""
        metadata = replicaset["metadata"]
        owners = {each["uid"] for each in metadata.get("ownerReferences") or ()}
        if not owners:
            return True
        listed = await self._client.list(REPLICASETS, namespace=metadata["namespace"])
        for other in (decode_object(bytes(raw)) for raw in listed.items):
            references = other["metadata"].get("ownerReferences") or ()
            sibling = any(each["uid"] in owners for each in references)
            if sibling and other["metadata"]["uid"] != metadata["uid"] and any(_pods_of(other)):
                return False
        return True

    async def _deployment_of(self, replicaset: _Object) -> _Object | None:
        for reference in replicaset["metadata"].get("ownerReferences") or ():
            if reference.get("controller") and reference["kind"] == DEPLOYMENTS.kind:
                name, namespace = reference["name"], replicaset["metadata"]["namespace"]
                found = await self._fetch(DEPLOYMENTS, name, namespace)
                if found is not None and found["metadata"].get("uid") == reference["uid"]:
                    return found
        return None

    async def _fetch(self, kind: Kind, name: str, namespace: str) -> dict[str, Any] | None:
        try:
            return await self._client.get_object(kind, name, namespace=namespace)
        except NotFound:
            return None


def _pods_of(found: _Object) -> tuple[int, int]:
    """Return how many pods a ReplicaSet should have, and has."""
    desired, _ = _replicas(found)
    return desired, (found.get("status") or {}).get("replicas", 0)


def is_current(replicaset: _Object, deployment: _Object) -> bool:
    """Report whether a ReplicaSet is all that its Deployment wants now, however many pods that is.

    The templates tell at once whether a rollout has begun, the Deployment's status whether it is
    over. Source: EqualIgnoreHash in pkg/controller/deployment/util/deployment_util.go.
    """
    same = _template(replicaset) == _template(deployment)
    return same and read_deployment(encode(deployment)).updated


def selects_by(found: _Object) -> str:
    """Return the hash of the template that a controller selects by; empty without one."""
    selector = (found.get("spec") or {}).get("selector") or {}
    labels = selector.get("matchLabels") or {}
    value = labels.get(hash_label_of(labels), "")
    return value if isinstance(value, str) else ""


def _template(found: _Object) -> _Object:
    """Return the pod template without the hash."""
    template = found["spec"]["template"]
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if value}
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k not in HASH_LABELS}
    return {**template, "metadata": {**metadata, "labels": labels}}


def is_observed(found: _Object) -> bool:
    """Report whether a controller's status is of its current spec."""
    generation = found["metadata"].get("generation", 0)
    observed = (found.get("status") or {}).get("observedGeneration", generation)
    return bool(observed >= generation)


def _failure(found: _Object) -> str:
    for condition in (found.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _replicas(found: _Object) -> tuple[int, int]:
    desired = found["spec"].get("replicas")
    return (1 if desired is None else desired), (found.get("status") or {}).get("readyReplicas", 0)


def _job(found: _Object) -> tuple[int, int]:
    spec, status = found["spec"], found.get("status") or {}
    over = any(
        condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    parallel = spec.get("parallelism", 1)
    left = spec.get("completions", parallel) - status.get("succeeded", 0)
    return (0 if over or spec.get("suspend") else max(0, min(parallel, left))), status.get(
        "ready", 0
    )


def has_retry(job: _Object) -> bool:
    """Report whether a Job goes on although one of its pods is evicted, which counts as a failure.

    Unless a rule of its policy says otherwise; which exit codes the pod will have is not known. Of
    a limit for each index all failures count.
    """
    spec, failed = job["spec"], (job.get("status") or {}).get("failed", 0)
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        if any(one["type"] == "DisruptionTarget" for one in rule.get("onPodConditions") or ()):
            if rule["action"] != "Count":
                return bool(rule["action"] == "Ignore")
            break
    limit = spec.get("backoffLimitPerIndex", spec.get("backoffLimit", 6))
    return bool(failed < limit)


_READERS: Final[Mapping[str, Callable[[_Object], tuple[int, int]]]] = {
    REPLICASETS.kind: _replicas,
    STATEFULSETS.kind: _replicas,
    REPLICATION_CONTROLLERS.kind: _replicas,
    JOBS.kind: _job,
}
