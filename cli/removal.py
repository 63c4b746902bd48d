"""Uninstallation: find every object of FracGPU in a cluster and remove it in a safe order.

Nodes come first, because their agents clean up best; then what can refuse other writes (webhooks
that fail closed, policies), so that it does not block the deletion of the rest; then what runs, and
RBAC objects last, because roles that are shutting down still need their permissions. Pods that are
being moved go back to their owners once the rebalancer is gone, which would move them on.

A namespace goes with everything in it only if nothing but FracGPU lives there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from cli.moved_pods import find_moved, give_back
from fracgpu import names
from fracgpu.cards.node_marks import NodeMarks, marks_of, shares
from fracgpu.doctor.scheduling import EXTENDER_LEASE
from fracgpu.errors import counted
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient, PatchType
from kube.errors import Conflict, NotFound
from kube.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    FLOW_SCHEMAS,
    JOBS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PDBS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFULSETS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    VALIDATING_WEBHOOKS,
    Kind,
)
from kube.objects import decode_object, identity
from process.clock import Clock

_OURS: Final = {"app.kubernetes.io/part-of": "fracgpu"}
OURS: Final = "app.kubernetes.io/part-of=fracgpu"
"""The label of every object in ``deploy/``."""

HOST_FILES: Final = (
    "/var/run/cdi/fracgpu.io-slot_*",
    "/var/lib/fracgpu",
    "/run/fracgpu",
    "/var/lib/kubelet/device-plugins/fracgpu*.sock",
)
"""Files that an agent may have left on its host if it could not clean up."""

_LEASES: Final = (names.SCHEDULER_NAME, EXTENDER_LEASE, names.REBALANCER)
"""Those that our roles and kube-scheduler make, without a label."""

_AGENT: Final = "app.kubernetes.io/name=fracgpu-deviceplugin"
_ADMISSION: Final = (
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    VALIDATING_POLICY_BINDINGS,
    VALIDATING_POLICIES,
)
_PROMETHEUS: Final = "monitoring.coreos.com/v1"
_CERT_MANAGER: Final = "cert-manager.io/v1"
_RUNNING: Final = (
    DEPLOYMENTS,
    DAEMONSETS,
    JOBS,
    PDBS,
    NETWORK_POLICIES,
    RESOURCE_QUOTAS,
    Kind(_PROMETHEUS, "podmonitors", "PodMonitor", namespaced=True),
    Kind(_PROMETHEUS, "prometheusrules", "PrometheusRule", namespaced=True),
    Kind(_CERT_MANAGER, "certificates", "Certificate", namespaced=True),
    Kind(_CERT_MANAGER, "issuers", "Issuer", namespaced=True),
)
_RIGHTS: Final = (ROLE_BINDINGS, ROLES, CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES)
_ELSEWHERE: Final = (CONFIGMAPS, SECRETS, SERVICES, SERVICE_ACCOUNTS)
# With the definition go the Moves.
_KINDS: Final = (
    *_ADMISSION,
    *_RUNNING,
    *_ELSEWHERE,
    *_RIGHTS,
    FLOW_SCHEMAS,
    CUSTOM_RESOURCE_DEFINITIONS,
)
# What would be missed if its namespace were deleted.
_LIVES: Final = (
    PODS,
    DEPLOYMENTS,
    STATEFULSETS,
    DAEMONSETS,
    JOBS,
    Kind("batch/v1", "cronjobs", "CronJob", namespaced=True),
    PERSISTENT_VOLUME_CLAIMS,
    SERVICES,
    CONFIGMAPS,
    SECRETS,
    ROLES,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    RESOURCE_QUOTAS,
    NETWORK_POLICIES,
    PDBS,
    Kind("networking.k8s.io/v1", "ingresses", "Ingress", namespaced=True),
    Kind("v1", "limitranges", "LimitRange", namespaced=True),
)
# Kubernetes and OpenShift make these in every namespace, and we our configuration; Helm notes its
# releases.
_EVERYWHERE: Final[Mapping[Kind, tuple[str, ...]]] = {
    CONFIGMAPS: ("kube-root-ca.crt", "openshift-service-ca.crt", names.CONFIG_MAP),
    SERVICE_ACCOUNTS: ("default", "builder", "deployer"),
    ROLE_BINDINGS: ("system:image-pullers", "system:image-builders", "system:deployers"),
}
_NOTED: Final = ("kubernetes.io/service-account-token", "helm.sh/release.v1")
_SLOTS: Final = f"capacity {names.GPU_SLOT}"
_PAUSE_S: Final = 1.0


class StillSharesError(Exception):
    """The node still shares its cards, so it cannot be cleaned by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """An object of FracGPU outside the namespaces that are removed."""

    kind: Kind
    name: str
    namespace: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, or the name of an object that has no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPlan:
    """What is to be removed; false if there is nothing.

    Attributes:
        nodes: labels, annotations and resources to remove, by node.
        counted: further nodes, of which only kubelet's own count of slots is left.
        objects: in the order of their removal.
        namespaces: those that are removed with everything in them.
        shared: what else lives in the other namespaces of ours, by namespace.
        pods: those that still hold cards, as ``namespace/name``; they are not touched.
        moved: those that carry the marks of a move, as ``namespace/name``.
    """

    nodes: Mapping[str, NodeMarks] = field(default_factory=dict)
    counted: Sequence[str] = ()
    objects: Sequence[FoundObject] = ()
    namespaces: Sequence[str] = ()
    shared: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pods: Sequence[str] = ()
    moved: Sequence[str] = ()

    def __bool__(self) -> bool:
        found = (self.nodes, self.counted, self.objects, self.namespaces, self.moved)
        return any(found)

    @property
    def on_nodes(self) -> Mapping[str, Sequence[str]]:
        """What is to be removed from each node, in words."""
        marked = {name: marks.words for name, marks in self.nodes.items()}
        return {**marked, **dict.fromkeys(self.counted, (_SLOTS,))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What could not be removed in time.

    Attributes:
        nodes: what is left, by node.
        without_agent: nodes whose agent did not clean up, so that files may be left there.
        moved: pods that still carry the marks of a move, as ``namespace/name``.
    """

    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    namespaces: Sequence[str] = ()
    without_agent: Sequence[str] = ()
    moved: Sequence[str] = ()

    @property
    def unfinished(self) -> bool:
        return bool(self.nodes or self.namespaces or self.moved)


async def make_plan(
    client: KubeClient, *, node: str | None = None, nodes_only: bool = False
) -> RemovalPlan:
    """Return what there is to remove, or only what is on one *node* or on all.

    Raises:
        KubeError: the API server did not answer.
        StillSharesError: *node* still shares its cards.
    """
    if node is not None:
        body = await client.get_object(NODES, node)
        if shares(body["metadata"].get("labels") or {}):
            raise StillSharesError(
                f"node {node} has the label {names.SHARE_LABEL}=true; remove it first: "
                f"kubectl label node {node} {names.SHARE_LABEL}-"
            )
        return RemovalPlan(**_marked([body]), pods=await find_holders(client, node=node))
    bodies = [decode_object(raw) for raw in (await client.list(NODES)).items]
    if nodes_only:
        return RemovalPlan(nodes=_marked(bodies)["nodes"], pods=await find_holders(client))
    ours = await _namespaces(client)
    shared = {name: others for name in ours if (others := await _others(client, name))}
    namespaces = [name for name in ours if name not in shared]
    objects = [found for kind in _KINDS for found in await _labelled(client, kind)]
    for name in shared:
        objects += await _leases(client, name)
    return RemovalPlan(
        **_marked(bodies),
        objects=[found for found in dict.fromkeys(objects) if found.namespace not in namespaces],
        namespaces=namespaces,
        shared=shared,
        pods=await find_holders(client),
        moved=[pod.record.key for pod in await find_moved(client)],
    )


async def _labelled(client: KubeClient, kind: Kind) -> list[FoundObject]:
    try:
        listed = await client.list(kind, label_selector=OURS)
    except NotFound:  # the cluster serves no such kind
        return []
    metas = [identity(raw) for raw in listed.items]
    return [FoundObject(kind=kind, name=meta.name, namespace=meta.namespace) for meta in metas]


async def _namespaces(client: KubeClient) -> list[str]:
    """Return our namespaces; one that ``helm --create-namespace`` made has no label of ours."""
    everyone = [identity(raw).name for raw in (await client.list(NAMESPACES)).items]
    found = {meta.name for meta in await _labelled(client, NAMESPACES)}
    return sorted(found | ({names.SYSTEM_NAMESPACE} & set(everyone)))


async def _others(client: KubeClient, namespace: str) -> list[str]:
    """Return what lives in a namespace and is not ours."""
    return [
        f"{kind.kind} {body['metadata']['name']}"
        for kind in _LIVES
        for body in await _bodies(client, kind, namespace)
        if not _OURS.items() <= (body["metadata"].get("labels") or {}).items()
        and not (kind in (CONFIGMAPS, SECRETS) and _belongs_to_another(body))
        and body["metadata"]["name"] not in _EVERYWHERE.get(kind, ())
    ]


def _belongs_to_another(body: Mapping[str, Any]) -> bool:
    """Report whether a ConfigMap or Secret goes with another object, or is a note of Helm."""
    return bool(body["metadata"].get("ownerReferences")) or body.get("type") in _NOTED


async def _leases(client: KubeClient, namespace: str) -> list[FoundObject]:
    return [
        FoundObject(kind=LEASES, name=body["metadata"]["name"], namespace=namespace)
        for body in await _bodies(client, LEASES, namespace)
        if body["metadata"]["name"] in _LEASES
    ]


async def _bodies(client: KubeClient, kind: Kind, namespace: str) -> list[Mapping[str, Any]]:
    try:
        return [decode_object(raw) for raw in (await client.list(kind, namespace=namespace)).items]
    except NotFound:  # the cluster serves no such kind
        return []


class _Marked(TypedDict):
    nodes: Mapping[str, NodeMarks]
    counted: Sequence[str]


def _marked(bodies: Iterable[Mapping[str, Any]]) -> _Marked:
    """Return what is on these nodes: our own marks, or kubelet's count of our slots alone."""
    nodes, counted = {}, []
    for body in bodies:
        name = body["metadata"]["name"]
        marks = marks_of(body, include_admin_keys=True)
        if marks:
            nodes[name] = marks
        elif _counts_slots(body):
            counted.append(name)
    return {"nodes": nodes, "counted": counted}


def _counts_slots(node: Mapping[str, Any]) -> bool:
    """Report whether kubelet counts our slots; only their zero is one of our marks."""
    return names.GPU_SLOT in (node.get("status", {}).get("capacity") or {})


async def find_holders(client: KubeClient, *, node: str | None = None) -> list[str]:
    """Return the pods that hold cards, or may, on one node or all."""
    selector = f"spec.nodeName={node}" if node else None
    pods = [
        decode_pod_info(raw) for raw in (await client.list(PODS, field_selector=selector)).items
    ]
    return sorted(pod.record.key for pod in pods if pod.record.live and _holds(pod))


def _holds(pod: PodInfo) -> bool:
    return bool(pod.record.assignment) or bool(pod.device_claim and pod.record.node)


class Removal:
    """Removes what a plan names.

    Args:
        client: with an administrator's permissions.
        clock: paces the waits.
        on_progress: called with a line for each step.
        limit_s: the longest time that all waits together take.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        on_progress: Callable[[str], None],
        limit_s: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._on_progress = on_progress
        self._until_s = clock.monotonic() + limit_s

    async def run(self, plan: RemovalPlan) -> Left:
        """Remove what the plan names; return what is left.

        Raises:
            KubeError: the API server refused; running it again is safe.
        """
        without_agent = (await self.clean_nodes(plan)).without_agent
        for kinds in (_ADMISSION, _RUNNING):
            await self._delete(found for found in plan.objects if found.kind in kinds)
        await self._delete(
            FoundObject(kind=NAMESPACES, name=namespace) for namespace in plan.namespaces
        )
        waiting = await self._wait_gone(plan.namespaces)
        moved = await self._give_back_moved()
        gone = (*_ADMISSION, *_RUNNING)
        await self._delete(found for found in plan.objects if found.kind not in gone)
        left = await self._wait_clean(plan.on_nodes)
        return Left(nodes=left, namespaces=waiting, without_agent=without_agent, moved=moved)

    async def clean_nodes(self, plan: RemovalPlan) -> Left:
        """Remove what is on the plan's nodes, without waiting for kubelet's count of slots.

        Returns the nodes without an agent that cleaned up.

        Raises:
            KubeError: the API server refused; running it again is safe.
        """
        without_agent = await self._unshare(plan.nodes)
        for name in plan.nodes:
            await self._clean(name)
        return Left(without_agent=without_agent)

    async def _unshare(self, nodes: Mapping[str, NodeMarks]) -> list[str]:
        """Remove the label, wait for the agents to clean up; return the nodes where none did."""
        if not nodes:
            return []
        agents = await self._agents()
        for name in nodes:
            patch = {"metadata": {"labels": {names.SHARE_LABEL: None}}}
            with suppress(NotFound):  # an autoscaler may have removed the node meanwhile
                await self._client.patch(NODES, name, patch)
        without = sorted(set(nodes) - agents)
        waiting = set(nodes) & agents
        if waiting:
            self._on_progress(
                f"waiting for the agents of {counted(len(waiting), 'node')} to clean up"
            )
        while waiting and self._in_time():
            await self._clock.sleep(_PAUSE_S)
            waiting &= await self._agents()
        return sorted({*without, *waiting})

    async def _agents(self) -> set[str]:
        """Return the nodes that have a pod of the agent, terminating ones included."""
        listed = await self._client.list(PODS, label_selector=_AGENT)
        return {
            pod.record.node
            for pod in map(decode_pod_info, listed.items)
            if pod.record.node and pod.record.live
        }

    async def _clean(self, name: str) -> None:
        """Remove what is left on a node."""
        try:
            marks = marks_of(await self._client.get_object(NODES, name), include_admin_keys=True)
            if marks.resources:
                await self._client.patch(NODES, name, marks.status_patch(), subresource="status")
            if marks.labels or marks.annotations:
                await self._client.patch(NODES, name, marks.metadata_patch())
            if marks.condition:
                how = PatchType.STRATEGIC
                await self._client.patch(
                    NODES, name, marks.condition_patch(), subresource="status", how=how
                )
        except NotFound:
            return
        if marks:
            self._on_progress(f"node {name}: removed {', '.join(marks.words)}")

    async def _delete(self, objects: Iterable[FoundObject]) -> None:
        for found in objects:
            try:
                await self._client.delete(found.kind, found.name, namespace=found.namespace or None)
            except (NotFound, Conflict):  # already gone, or in a namespace that is terminating
                continue
            self._on_progress(f"deleted {found.kind.kind} {found.key}")

    async def _wait_gone(self, namespaces: Sequence[str]) -> list[str]:
        """Wait until the namespaces and our pods are gone; return the namespaces that are not."""
        while True:
            there = set(await _namespaces(self._client))
            waiting = [name for name in namespaces if name in there]
            running = await _labelled(self._client, PODS)
            if not (waiting or running) or not self._in_time():
                return waiting
            await self._clock.sleep(_PAUSE_S)

    async def _give_back_moved(self) -> list[str]:
        """Give pods that are being moved back to their owners; return those that could not be."""
        while True:
            left = await give_back(self._client, on_progress=self._on_progress)
            if not left or not self._in_time():
                return left
            await self._clock.sleep(_PAUSE_S)

    async def _wait_clean(self, nodes: Iterable[str]) -> dict[str, list[str]]:
        """Clean the nodes until nothing is left; return what is.

        kubelet writes its count of slots again until that count is zero.
        """
        announced = False
        while True:
            left = {}
            for name in nodes:
                words = await self._left_on(name)
                if words:
                    left[name] = words
            if not left or not self._in_time():
                return left
            if not announced:
                self._on_progress("waiting for kubelets to drop the slots, up to five minutes")
                announced = True
            await self._clock.sleep(_PAUSE_S)

    async def _left_on(self, name: str) -> list[str]:
        await self._clean(name)
        try:
            node = await self._client.get_object(NODES, name)
        except NotFound:
            return []
        words = [*marks_of(node, include_admin_keys=True).words]
        return [*words, _SLOTS] if _counts_slots(node) else words

    def _in_time(self) -> bool:
        return self._clock.monotonic() < self._until_s
