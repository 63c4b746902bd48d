"""Nodes with shared cards, and pods as the webhook leaves them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fracgpu import names
from fracgpu.cards.annotations import write_cards
from fracgpu.cards.card import Card, CardUuid
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import NODES

Json = dict[str, Any]


def some_cards(
    node: str, *, count: int = 4, mib: int = 24_000, limited: bool = False
) -> tuple[Card, ...]:
    """Return cards whose every MiB is shared; *mib* is a multiple of 80.

    Args:
        node: whose they are.
        count: how many.
        mib: of each.
        limited: the driver limits their containers.
    """
    return tuple(
        Card(
            uuid=CardUuid(f"GPU-{node}-{index}"),
            index=index,
            model="NVIDIA A30",
            total_mib=Mib(mib),
            limits_mib=Mib(mib if limited else 0),
        )
        for index in range(count)
    )


def a_sharing_node(name: str, *, cards: Sequence[Card] | None = None, cpu: str = "64") -> Json:
    """Return a ready node of ours, with its status."""
    here = some_cards(name) if cards is None else cards
    resources = {
        names.GPU_MEM: str(sum(card.capacity_mib for card in here)),
        names.GPU_COUNT: str(len(here)),
        names.GPU_SLOT: str(32 * len(here)),
        "cpu": cpu,
        "memory": "256Gi",
        "pods": "110",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {names.SHARE_LABEL: "true", "kubernetes.io/hostname": name},
            "annotations": {names.NODE_CARDS: write_cards(here)},
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def a_gpu_pod(
    name: str,
    *,
    mib: int = 1000,
    cards: int = 1,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
    owner: str = "",
    **spec: Any,
) -> Json:
    """Return an admitted pod of one container that gets *mib* on each of *cards* cards.

    With *owner* it is controlled by the ReplicaSet of that UID.
    """
    amounts = {names.GPU_MEM: str(mib * cards), names.GPU_SLOT: str(cards)}
    written = {names.MEMORY: f"{mib}Mi", names.CARDS: str(cards), **(annotations or {})}
    container = {
        "name": "train",
        "image": "registry.example/train:1",
        "resources": {"limits": amounts, "requests": amounts},
    }
    metadata: Json = {"name": name, "namespace": namespace, "annotations": written}
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner}
        metadata["ownerReferences"] = [reference | {"controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "schedulerName": names.SCHEDULER_NAME,
            "containers": [container],
            **spec,
        },
    }


def a_bound_gpu_pod(
    name: str,
    *,
    node: str,
    card: int = 0,
    mib: int = 1000,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod as its Binding left it: it holds *mib* of that card of `some_cards`."""
    slices = json.dumps({"train": [{"card": f"GPU-{node}-{card}", "mib": mib}]})
    notes = {names.ASSIGNMENT: slices, **(annotations or {})}
    return a_gpu_pod(name, mib=mib, annotations=notes, nodeName=node, **spec)


def a_binding(
    pod: Json,
    node: str,
    assigned: Mapping[str, Sequence[tuple[CardUuid, int]]],
    *,
    borrow_mib: int = 0,
) -> Json:
    """Return the Binding that the extender writes: (card, MiB) of each slice by container."""
    assignment = {
        container: tuple(
            Slice(card=card, mib=Mib(mib), own_limit_mib=Mib(mib + borrow_mib if borrow_mib else 0))
            for card, mib in parts
        )
        for container, parts in assigned.items()
    }
    metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    notes = {names.ASSIGNMENT: write_assignment(assignment)} if assignment else {}
    target = {"kind": "Node", "name": node}
    return {"metadata": {**metadata, "annotations": notes}, "target": target}


def refused_status(message: str = "0/1 nodes are available") -> Json:
    """Return the status of a pod for which kube-scheduler has found no node."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": "2026-01-05T12:00:00Z",
    }
    return {"phase": "Pending", "conditions": [condition]}


async def register(client: KubeClient, node: Json) -> None:
    """Create a node and its status, as kubelet and our agent do."""
    await client.create(NODES, node)
    name, status = node["metadata"]["name"], node["status"]
    await client.patch(NODES, name, {"status": status}, subresource="status")


def a_workload(kind: str, name: str, pod: Json, **spec: Any) -> Json:
    """Return a Deployment, DaemonSet or ReplicaSet of pods like *pod*."""
    labels = {"app": name}
    metadata = {"labels": labels, "annotations": pod["metadata"]["annotations"]}
    template = {"metadata": metadata, "spec": pod["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }
