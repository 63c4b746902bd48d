"""The resources that the embedded API server always serves, one row each.

Custom resources come from their definitions, see `simulator.apiserver.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource in its only version.

    With ``generation`` a change of the spec increments ``metadata.generation``; with
    ``resets_status`` a create drops the status that was sent. ``schema`` and ``printer_columns``
    are a custom resource's.
    """

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    generation: bool = False
    resets_status: bool = True
    unconditional_update: bool = True
    schema: dict[str, Any] | None = field(default=None, compare=False)
    printer_columns: tuple[dict[str, Any], ...] = field(default=(), compare=False)

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name used in messages and in the store, such as ``deployments.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


def _resource(  # noqa: PLR0913 - a row of the table below
    plural: str,
    kind: str,
    *short_names: str,
    group: str = "",
    namespaced: bool = True,
    subresources: str = "",
    generation: bool = False,
    resets_status: bool = True,
    unconditional_update: bool = True,
) -> Resource:
    return Resource(
        group=group,
        plural=plural,
        kind=kind,
        namespaced=namespaced,
        short_names=short_names,
        subresources=frozenset(subresources.split()),
        generation=generation,
        resets_status=resets_status,
        unconditional_update=unconditional_update,
    )


_ADMISSION: Final = "admissionregistration.k8s.io"
_DEVICES: Final = "resource.k8s.io"
_RBAC: Final = "rbac.authorization.k8s.io"

NAMESPACES: Final = _resource(
    "namespaces", "Namespace", "ns", namespaced=False, subresources="status"
)
NODES: Final = _resource(
    "nodes", "Node", "no", namespaced=False, subresources="status", resets_status=False
)
PODS: Final = _resource(
    "pods", "Pod", "po", subresources="status binding eviction", generation=True
)
EVENTS: Final = _resource("events", "Event", "ev")
DEPLOYMENTS: Final = _resource(
    "deployments", "Deployment", "deploy", group="apps", subresources="status",
    generation=True,
)  # fmt: skip
REPLICASETS: Final = _resource(
    "replicasets", "ReplicaSet", "rs", group="apps", subresources="status", generation=True
)
STATEFULSETS: Final = _resource(
    "statefulsets", "StatefulSet", "sts", group="apps", subresources="status",
    generation=True,
)  # fmt: skip
JOBS: Final = _resource("jobs", "Job", group="batch", subresources="status", generation=True)
PDBS: Final = _resource(
    "poddisruptionbudgets", "PodDisruptionBudget", "pdb", group="policy", subresources="status",
    generation=True, unconditional_update=False,
)  # fmt: skip
MUTATING_WEBHOOKS: Final = _resource(
    "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", group=_ADMISSION,
    namespaced=False, generation=True,
)  # fmt: skip
VALIDATING_WEBHOOKS: Final = _resource(
    "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", group=_ADMISSION,
    namespaced=False, generation=True,
)  # fmt: skip

DEFINITIONS: Final = _resource(
    "customresourcedefinitions", "CustomResourceDefinition", "crd", "crds",
    group="apiextensions.k8s.io", namespaced=False, subresources="status", generation=True,
)  # fmt: skip
RESOURCE_CLAIMS: Final = _resource(
    "resourceclaims", "ResourceClaim", group=_DEVICES, subresources="status"
)
RESOURCE_SLICES: Final = _resource(
    "resourceslices", "ResourceSlice", group=_DEVICES, namespaced=False, generation=True
)
DEVICE_CLASSES: Final = _resource(
    "deviceclasses", "DeviceClass", group=_DEVICES, namespaced=False, generation=True
)
CONFIGMAPS: Final = _resource("configmaps", "ConfigMap", "cm")
SECRETS: Final = _resource("secrets", "Secret")

ALL: Final = (
    NAMESPACES, NODES, PODS, EVENTS, DEPLOYMENTS, REPLICASETS, STATEFULSETS, JOBS,
    PDBS, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS,
    DEFINITIONS,
    RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES,
    CONFIGMAPS,
    SECRETS,
    _resource("services", "Service", "svc", subresources="status"),
    _resource("serviceaccounts", "ServiceAccount", "sa"),
    _resource("resourcequotas", "ResourceQuota", "quota", subresources="status"),
    _resource("persistentvolumeclaims", "PersistentVolumeClaim", "pvc", subresources="status"),
    _resource(
        "persistentvolumes", "PersistentVolume", "pv", namespaced=False, subresources="status"
    ),
    _resource("storageclasses", "StorageClass", "sc", group="storage.k8s.io", namespaced=False),
    _resource(
        "leases", "Lease", group="coordination.k8s.io", unconditional_update=False
    ),
    _resource("endpointslices", "EndpointSlice", group="discovery.k8s.io"),
    _resource("roles", "Role", group=_RBAC),
    _resource("rolebindings", "RoleBinding", group=_RBAC),
    _resource("clusterroles", "ClusterRole", group=_RBAC, namespaced=False),
    _resource("clusterrolebindings", "ClusterRoleBinding", group=_RBAC, namespaced=False),
)  # fmt: skip

_BY_PATH: Final = {
    (resource.group, resource.version, resource.plural): resource for resource in ALL
}


def find(group: str, version: str, plural: str) -> Resource | None:
    """Return the resource served at this path, or None."""
    return _BY_PATH.get((group, version, plural))


def is_served(group: str, version: str) -> bool:
    """Report whether any resource has this group and version."""
    return any(resource.group == group and resource.version == version for resource in ALL)
