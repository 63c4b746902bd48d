"""The steps of an uninstallation: what of ours is in a cluster, and its removal in a safe order.

Nodes come first, because their agents clean up best; then what stands in the way of other writes
(webhooks that fail closed, policies), so that deleting the rest is not blocked by ourselves; the
rights last, because whoever is ending may still need them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fracgpu import names
from fracgpu.cards.node_marks import NodeMarks, marks_of, shares
from fracgpu.state.pod_info import decode_pod_info
from kube.client import KubeClient, PatchType
from kube.errors import Conflict, NotFound
from kube.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    VALIDATING_WEBHOOKS,
    Kind,
)
from kube.objects import decode_object
from process.clock import Clock

OURS: Final = "app.kubernetes.io/part-of=fracgpu"
"""What every object of ``deploy/`` is labelled with."""

HOST_FILES: Final = (
    "/var/run/cdi/fracgpu.io-slot_*.json",
    "/var/lib/fracgpu",
    "/run/fracgpu",
    "/var/lib/kubelet/device-plugins/fracgpu.sock",
)
"""What an agent that could not clean up may have left on its host."""

_AGENT: Final = "app.kubernetes.io/name=fracgpu-deviceplugin"
_IN_THE_WAY: Final = (
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    VALIDATING_POLICY_BINDINGS,
    VALIDATING_POLICIES,
)
_RIGHTS: Final = (ROLE_BINDINGS, ROLES, CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES)
_ELSEWHERE: Final = (CONFIGMAPS, SECRETS, SERVICES, SERVICE_ACCOUNTS)
_KINDS: Final = (*_IN_THE_WAY, *_ELSEWHERE, *_RIGHTS)
_PAUSE_S: Final = 1.0


class StillSharesError(Exception):
    """A single node is to be cleaned that goes on sharing its cards."""


class _Meta(msgspec.Struct):
    name: str
    namespace: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """An object of ours that lies in no namespace of ours."""

    kind: Kind
    name: str
    namespace: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, or the name of an object that has no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPlan:
    """What is to be removed; false where there is nothing.

    Attributes:
        nodes: what stands on them, by name.
        objects: in the order of their removal.
        pods: who still holds cards, as ``namespace/name``; they are left alone.
    """

    nodes: Mapping[str, NodeMarks] = field(default_factory=dict)
    objects: Sequence[FoundObject] = ()
    namespaces: Sequence[str] = ()
    pods: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.objects or self.namespaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What could not be removed in time.

    Attributes:
        nodes: what still stands on them.
        without_agent: nodes whose agent did not clean up, so that files may lie there.
    """

    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    namespaces: Sequence[str] = ()
    without_agent: Sequence[str] = ()

    @property
    def unfinished(self) -> bool:
        return bool(self.nodes or self.namespaces)


async def make_plan(client: KubeClient, *, node: str | None = None) -> RemovalPlan:
    """Look for everything of ours, or only on one *node*.

    Raises:
        KubeError: the API server did not answer.
        StillSharesError: that node goes on sharing.
    """
    if node is not None:
        body = await client.get_object(NODES, node)
        reason = _goes_on_sharing(body)
        if reason:
            raise StillSharesError(reason)
        marks = marks_of(body, peoples_too=True)
        return RemovalPlan(
            nodes={node: marks} if marks else {}, pods=await _holders(client, node=node)
        )
    namespaces = [it.name for it in await _labelled(client, NAMESPACES)]
    objects = [it for kind in _KINDS for it in await _labelled(client, kind)]
    return RemovalPlan(
        nodes={name: marks for name, marks in (await _nodes(client)).items() if marks},
        objects=[it for it in objects if it.namespace not in namespaces],
        namespaces=namespaces,
        pods=await _holders(client),
    )


async def _labelled(client: KubeClient, kind: Kind) -> list[FoundObject]:
    try:
        listed = await client.list(kind, label_selector=OURS)
    except NotFound:  # the cluster serves no such kind
        return []
    metas = [msgspec.json.decode(raw, type=_Object).metadata for raw in listed.items]
    return [FoundObject(kind=kind, name=it.name, namespace=it.namespace) for it in metas]


async def _nodes(client: KubeClient) -> dict[str, NodeMarks]:
    bodies = [decode_object(raw) for raw in (await client.list(NODES)).items]
    return {it["metadata"]["name"]: marks_of(it, peoples_too=True) for it in bodies}


async def _holders(client: KubeClient, *, node: str | None = None) -> list[str]:
    selector = f"spec.nodeName={node}" if node else None
    pods = [
        decode_pod_info(raw) for raw in (await client.list(PODS, field_selector=selector)).items
    ]
    return sorted(it.record.key for it in pods if it.record.live and it.record.assignment)


class Removal:
    """Carries out a plan.

    Args:
        client: of an administrator.
        clock: paces the waits.
        say: told each step.
        limit_s: longest wait, for all waits together.
    """

    def __init__(
        self, client: KubeClient, clock: Clock, *, say: Callable[[str], None], limit_s: float
    ) -> None:
        self._client = client
        self._clock = clock
        self._say = say
        self._until_s = clock.monotonic() + limit_s

    async def run(self, plan: RemovalPlan) -> Left:
        """Remove what the plan names, as far as it can be.

        Raises:
            KubeError: the API server refused; what is done is done, and can be done again.
        """
        without_agent = await self._unshare(plan.nodes)
        for name in plan.nodes:
            await self._clean(name)
        await self._delete(it for it in plan.objects if it.kind in _IN_THE_WAY)
        await self._delete(FoundObject(kind=NAMESPACES, name=it) for it in plan.namespaces)
        waiting = await self._wait_gone(plan.namespaces)
        await self._delete(it for it in plan.objects if it.kind not in _IN_THE_WAY)
        left = await self._wait_clean(plan.nodes)
        return Left(nodes=left, namespaces=waiting, without_agent=without_agent)

    async def _unshare(self, nodes: Mapping[str, NodeMarks]) -> list[str]:
        """Take the label from the nodes, and let the agents there clean up and end."""
        if not nodes:
            return []
        agents = await self._agents()
        for name in nodes:
            patch = {"metadata": {"labels": {names.SHARE_LABEL: None}}}
            with suppress(NotFound):  # an autoscaler may have taken the node meanwhile
                await self._client.patch(NODES, name, patch)
        without = sorted(set(nodes) - agents)
        waiting = set(nodes) & agents
        if waiting:
            self._say(f"waiting for the agents of {len(waiting)} nodes to clean up and end")
        while waiting and self._in_time():
            await self._clock.sleep(_PAUSE_S)
            waiting &= await self._agents()
        return sorted({*without, *waiting})

    async def _agents(self) -> set[str]:
        """Name the nodes that have a pod of the agent, ending ones included."""
        listed = await self._client.list(PODS, label_selector=_AGENT)
        return {
            pod.record.node
            for pod in map(decode_pod_info, listed.items)
            if pod.record.node and pod.record.live
        }

    async def _clean(self, name: str) -> NodeMarks:
        """Remove what is left on a node; give what was there."""
        try:
            marks = marks_of(await self._client.get_object(NODES, name), peoples_too=True)
            if marks.resources:
                await self._patch(name, marks.status_patch(), subresource="status")
            if marks.labels or marks.annotations:
                await self._patch(name, marks.metadata_patch())
            if marks.condition:
                how = PatchType.STRATEGIC
                await self._patch(name, marks.condition_patch(), subresource="status", how=how)
        except NotFound:
            return NodeMarks()
        if marks:
            self._say(f"node {name}: removed {', '.join(marks.words)}")
        return marks

    async def _patch(self, name: str, patch: Mapping[str, Any], **how: Any) -> None:
        await self._client.patch(NODES, name, patch, **how)

    async def _delete(self, objects: Iterable[FoundObject]) -> None:
        for it in objects:
            try:
                await self._client.delete(it.kind, it.name, namespace=it.namespace or None)
            except (NotFound, Conflict):  # gone, or a namespace that is ending already
                continue
            self._say(f"deleted {it.kind.kind} {it.key}")

    async def _wait_gone(self, namespaces: Sequence[str]) -> list[str]:
        waiting = list(namespaces)
        while waiting:
            there = {it.name for it in await _labelled(self._client, NAMESPACES)}
            waiting = [it for it in waiting if it in there]
            if not waiting or not self._in_time():
                return waiting
            await self._clock.sleep(_PAUSE_S)
        return []

    async def _wait_clean(self, nodes: Mapping[str, NodeMarks]) -> dict[str, list[str]]:
        """Remove kubelet's count of slots once it is zero; until then it would come back."""
        told = False
        while True:
            left = {}
            for name in nodes:
                words = await self._left_on(name)
                if words:
                    left[name] = words
            if not left or not self._in_time():
                return left
            if not told:
                self._say("waiting for kubelets to let go of the slots, up to five minutes")
                told = True
            await self._clock.sleep(_PAUSE_S)

    async def _left_on(self, name: str) -> list[str]:
        await self._clean(name)
        try:
            node = await self._client.get_object(NODES, name)
        except NotFound:
            return []
        slots = names.GPU_SLOT in (node.get("status", {}).get("capacity") or {})
        words = [*marks_of(node, peoples_too=True).words]
        return [*words, f"capacity {names.GPU_SLOT}"] if slots else words

    def _in_time(self) -> bool:
        return self._clock.monotonic() < self._until_s


def _goes_on_sharing(node: Mapping[str, Any]) -> str:
    """Say why one node must not be cleaned by itself, or an empty text."""
    labels = node.get("metadata", {}).get("labels") or {}
    name = node.get("metadata", {}).get("name", "")
    if not shares(labels):
        return ""
    return (
        f"node {name} carries {names.SHARE_LABEL}=true; first: "
        f"kubectl label node {name} {names.SHARE_LABEL}-"
    )
