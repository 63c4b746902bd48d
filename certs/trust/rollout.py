"""Restarts programs that read the CA bundle only when they start, such as kube-scheduler.

An annotation of the pod template names the authority. It is changed as soon as the mounted bundle
contains a new authority, and before that authority signs anything. The first authority is named by
the workload's own annotation, which replaces no pod.
"""

from collections.abc import Mapping
from typing import Any, Final

from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import DAEMONSETS, DEPLOYMENTS, Kind

TRUSTS_KEY: Final = "fracgpu.io/trusts"
"""Annotation with the fingerprint of the authority that pods started with: of their template, or of
a Deployment that was never restarted for an authority."""


async def restarted(
    client: KubeClient,
    name: str,
    *,
    namespace: str,
    authority: str,
    kind: Kind = DEPLOYMENTS,
) -> bool:
    """Restart the pods of *name* if they started before *authority*; report whether that is done.

    True if *name* does not exist, because then nothing has to be restarted.

    Args:
        client: reaches the API server.
        name: of the Deployment, or of a DaemonSet.
        namespace: where it is.
        kind: which of the two it is.
        authority: fingerprint of the authority, already in the bundle that the pods mount.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    try:
        found = await client.get_object(kind, name, namespace=namespace)
        if named_authority(found) != authority:
            template = {"metadata": {"annotations": {TRUSTS_KEY: authority}}}
            patch = {"spec": {"template": template}}
            await client.patch(kind, name, patch, namespace=namespace)
            return False
    except NotFound:
        return True
    return rolled_out_everywhere(found) if kind == DAEMONSETS else rolled_out(found)


async def name_first_authority(
    client: KubeClient, name: str, *, namespace: str, authority: str
) -> None:
    """Record that the pods of the Deployment *name* will start with *authority*.

    Call it before the Secret that they mount exists: without the Secret no pod starts. Does nothing
    if an authority is named already, or if a pod is ready, which has started with another one.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    try:
        found = await client.get_object(DEPLOYMENTS, name, namespace=namespace)
        ready = (found.get("status") or {}).get("readyReplicas", 0)
        if named_authority(found) is None and not ready:
            patch = {"metadata": {"annotations": {TRUSTS_KEY: authority}}}
            await client.patch(DEPLOYMENTS, name, patch, namespace=namespace)
    except NotFound:
        return


def named_authority(workload: Mapping[str, Any]) -> str | None:
    """Return the authority that the workload's pod template names, or else its own, or None."""
    for metadata in (workload["spec"]["template"].get("metadata") or {}, workload["metadata"]):
        authority: str | None = (metadata.get("annotations") or {}).get(TRUSTS_KEY)
        if authority is not None:
            return authority
    return None


def rolled_out(deployment: Mapping[str, Any]) -> bool:
    """Report whether all pods are of the newest template, and no older one is left.

    They need not be ready: of replicas that elect a leader, only one may ever be.
    """
    status = deployment.get("status") or {}
    wanted = deployment["spec"].get("replicas", 1)
    observed = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return bool(
        observed and status.get("updatedReplicas", 0) == wanted == status.get("replicas", 0)
    )


def rolled_out_everywhere(daemon_set: Mapping[str, Any]) -> bool:
    """Report whether each node has a ready pod of the newest template.

    A ready pod shows that the program on its node has been restarted.
    """
    status = daemon_set.get("status") or {}
    wanted = status.get("desiredNumberScheduled", 0)
    observed = status.get("observedGeneration", 0) >= daemon_set["metadata"].get("generation", 0)
    counts = [status.get(key, 0) for key in ("updatedNumberScheduled", "numberReady")]
    return bool(observed and counts == [wanted, wanted])
