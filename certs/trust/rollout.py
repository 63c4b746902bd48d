"""Programs that read the CA bundle only when they start, such as kube-scheduler for its extender.

They are restarted, by an annotation of the pod template that names the authority, as soon as the
bundle that they mount holds a new one, and before that one signs anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from kube.client import PatchType
from kube.errors import NotFound
from kube.kinds import DAEMONSETS, DEPLOYMENTS, Kind

TRUSTS_KEY: Final = "fracgpu.io/trusts"
"""Annotation of a pod template: the fingerprint of the authority that its pods started with."""


class DeploymentClient(Protocol):
    """What restarting needs of ``kube.client.KubeClient``."""

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]: ...

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        how: PatchType = PatchType.MERGE,
    ) -> dict[str, Any]: ...


async def restarted(
    client: DeploymentClient,
    name: str,
    *,
    namespace: str,
    authority: str,
    kind: Kind = DEPLOYMENTS,
) -> bool:
    """Have every pod of the Deployment *name* started with *authority* in reach; tell if so.

    Without such a Deployment nobody has to be restarted.

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
        if told(found) != authority:
            template = {"metadata": {"annotations": {TRUSTS_KEY: authority}}}
            patch = {"spec": {"template": template}}
            await client.patch(kind, name, patch, namespace=namespace)
            return False
    except NotFound:
        return True
    return rolled_out_everywhere(found) if kind == DAEMONSETS else rolled_out(found)


def told(deployment: Mapping[str, Any]) -> str | None:
    """Give the authority that the Deployment's pod template names."""
    annotations = deployment["spec"]["template"].get("metadata", {}).get("annotations") or {}
    authority: str | None = annotations.get(TRUSTS_KEY)
    return authority


def rolled_out(deployment: Mapping[str, Any]) -> bool:
    """Tell whether all pods are of the newest template, and none of an older one is left.

    They need not be ready: of several replicas that elect a leader only one ever is.
    """
    status = deployment.get("status") or {}
    wanted = deployment["spec"].get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return bool(seen and status.get("updatedReplicas", 0) == wanted == status.get("replicas", 0))


def rolled_out_everywhere(daemon_set: Mapping[str, Any]) -> bool:
    """Tell whether each node has a pod of the newest template that is ready.

    Ready they must be: that says that what they look after on their node has started anew.
    """
    status = daemon_set.get("status") or {}
    wanted = status.get("desiredNumberScheduled", 0)
    seen = status.get("observedGeneration", 0) >= daemon_set["metadata"].get("generation", 0)
    counts = [status.get(key, 0) for key in ("updatedNumberScheduled", "numberReady")]
    return bool(seen and counts == [wanted, wanted])
