"""Reads the controller of a pod: how many pods it should have, and whether it is settled."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fracgpu.disruption.candidates.move_mode import HASH_LABEL
from fracgpu.k8s.workloads.workload import read_deployment, read_statefulset
from fracgpu.state.move_object import OwnerReference
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import (
    DEPLOYMENTS,
    JOBS,
    REPLICASETS,
    REPLICATION_CONTROLLERS,
    STATEFULSETS,
    Kind,
)
from kube.objects import decode_object, encode
from rebalancer.moves.steps.facts import OwnerFacts

_Object = Mapping[str, Any]

OWNER_KINDS: Final = {
    kind.kind: kind for kind in (REPLICASETS, STATEFULSETS, JOBS, REPLICATION_CONTROLLERS)
}
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

    async def with_hash(self, hash_value: str, *, namespace: str) -> OwnerFacts:
        """Return the facts about the ReplicaSet that selects by a hash; not there if none does."""
        listed = await self._client.list(
            REPLICASETS, namespace=namespace, label_selector=f"{HASH_LABEL}={hash_value}"
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
            current = deployment is None or is_current(found, deployment)
            # One that is being scaled has not told its ReplicaSet yet how many pods it wants.
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
            selects_by=selects_by(found),
        )

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


def is_current(replicaset: _Object, deployment: _Object) -> bool:
    """Report whether a ReplicaSet is all that its Deployment wants now, however many pods that is.

    The templates tell at once whether a rollout has begun, the Deployment's status whether it is
    over. Source: EqualIgnoreHash in pkg/controller/deployment/util/deployment_util.go.
    """
    same = _template(replicaset) == _template(deployment)
    return same and read_deployment(encode(deployment)).updated


def selects_by(found: _Object) -> str:
    """Return the ``pod-template-hash`` that a controller selects by; empty without one."""
    selector = (found.get("spec") or {}).get("selector") or {}
    labels = selector.get("matchLabels") or {}
    value = labels.get(HASH_LABEL, "")
    return value if isinstance(value, str) else ""


def _template(found: _Object) -> _Object:
    """Return the pod template without the hash."""
    template = found["spec"]["template"]
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if value}
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k != HASH_LABEL}
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


_READERS: Final[Mapping[str, Callable[[_Object], tuple[int, int]]]] = {
    REPLICASETS.kind: _replicas,
    STATEFULSETS.kind: _replicas,
    REPLICATION_CONTROLLERS.kind: _replicas,
    JOBS.kind: _job,
}
