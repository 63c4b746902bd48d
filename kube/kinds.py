"""The kinds of objects that we use, and their paths in the API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object, as ``kubectl api-resources`` lists it.

    Attributes:
        group_version: ``"v1"`` for the core group, else ``"apps/v1"``.
        plural: the resource in the path, e.g. ``"pods"``.
        kind: the kind in the object, e.g. ``"Pod"``.
        namespaced: whether objects live in a namespace.
    """

    group_version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def qualified_name(self) -> str:
        """The name that ``kubectl -o name`` writes, e.g. ``"deployment.apps"``."""
        group = self.group_version.rpartition("/")[0]
        return self.kind.lower() + (f".{group}" if group else "")

    def path(
        self,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> str:
        """Return the URL path of one object, or of the collection if *name* is None.

        Without *namespace* the collection of a namespaced kind spans all namespaces.

        Raises:
            ValueError: a name without its namespace, a namespace for a cluster-scoped kind, an
                empty name, or a subresource of a collection.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.kind} has no namespace; got {namespace!r}")
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        if name == "" or (name is None and subresource is not None):
            raise ValueError(f"{self.kind} path needs a name; got {name!r}, {subresource!r}")
        prefix = "/api" if "/" not in self.group_version else "/apis"
        parts = [prefix, self.group_version]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


PODS: Final = Kind("v1", "pods", "Pod", namespaced=True)
NODES: Final = Kind("v1", "nodes", "Node", namespaced=False)
NAMESPACES: Final = Kind("v1", "namespaces", "Namespace", namespaced=False)
SECRETS: Final = Kind("v1", "secrets", "Secret", namespaced=True)
CONFIGMAPS: Final = Kind("v1", "configmaps", "ConfigMap", namespaced=True)
EVENTS: Final = Kind("v1", "events", "Event", namespaced=True)
SERVICES: Final = Kind("v1", "services", "Service", namespaced=True)
PERSISTENT_VOLUMES: Final = Kind("v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS: Final = Kind(
    "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True
)
STORAGE_CLASSES: Final = Kind(
    "storage.k8s.io/v1", "storageclasses", "StorageClass", namespaced=False
)
SERVICE_ACCOUNTS: Final = Kind("v1", "serviceaccounts", "ServiceAccount", namespaced=True)
RESOURCE_QUOTAS: Final = Kind("v1", "resourcequotas", "ResourceQuota", namespaced=True)
ENDPOINT_SLICES: Final = Kind(
    "discovery.k8s.io/v1", "endpointslices", "EndpointSlice", namespaced=True
)
LEASES: Final = Kind("coordination.k8s.io/v1", "leases", "Lease", namespaced=True)
REPLICATION_CONTROLLERS: Final = Kind(
    "v1", "replicationcontrollers", "ReplicationController", namespaced=True
)
DEPLOYMENTS: Final = Kind("apps/v1", "deployments", "Deployment", namespaced=True)
REPLICASETS: Final = Kind("apps/v1", "replicasets", "ReplicaSet", namespaced=True)
STATEFULSETS: Final = Kind("apps/v1", "statefulsets", "StatefulSet", namespaced=True)
DAEMONSETS: Final = Kind("apps/v1", "daemonsets", "DaemonSet", namespaced=True)
JOBS: Final = Kind("batch/v1", "jobs", "Job", namespaced=True)
RUNTIME_CLASSES: Final = Kind("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", namespaced=False)
NETWORK_POLICIES: Final = Kind(
    "networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", namespaced=True
)
PDBS: Final = Kind("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True)
MUTATING_WEBHOOKS: Final = Kind(
    "admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS: Final = Kind(
    "admissionregistration.k8s.io/v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_POLICIES: Final = Kind(
    "admissionregistration.k8s.io/v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
VALIDATING_POLICY_BINDINGS: Final = Kind(
    "admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
FLOW_SCHEMAS: Final = Kind(
    "flowcontrol.apiserver.k8s.io/v1", "flowschemas", "FlowSchema", namespaced=False
)
ROLES: Final = Kind("rbac.authorization.k8s.io/v1", "roles", "Role", namespaced=True)
ROLE_BINDINGS: Final = Kind(
    "rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", namespaced=True
)
CLUSTER_ROLES: Final = Kind(
    "rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", namespaced=False
)
CLUSTER_ROLE_BINDINGS: Final = Kind(
    "rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
CUSTOM_RESOURCE_DEFINITIONS: Final = Kind(
    "apiextensions.k8s.io/v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
RESOURCE_CLAIMS: Final = Kind(
    "resource.k8s.io/v1", "resourceclaims", "ResourceClaim", namespaced=True
)
RESOURCE_SLICES: Final = Kind(
    "resource.k8s.io/v1", "resourceslices", "ResourceSlice", namespaced=False
)
DEVICE_CLASSES: Final = Kind("resource.k8s.io/v1", "deviceclasses", "DeviceClass", namespaced=False)
MOVES: Final = Kind("fracgpu.io/v1alpha1", "moves", "Move", namespaced=False)
