"""One pod as a simulated kubelet decodes it, and its status."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deviceplugin.nri.interface import PodSandbox
from fracgpu.k8s.container import ContainerKind, init_container_kind
from fracgpu.k8s.pod import Container, decode_pod
from kube.objects import decode_object
from simulator.kubelet.device_manager import ContainerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReference:
    """A claim of its pod that a container names, and which request of it; empty: all of them."""

    name: str
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """One container: its kind, how much it requests of each device resource, and its claims."""

    name: str
    init: bool = False
    sidecar: bool = False
    wants: Mapping[str, int] = field(default_factory=dict)
    claims: tuple[ClaimReference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPod:
    """One pod bound to this node; *claims* are the names of its claims by its own names."""

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerPlan, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    ended: bool = False
    terminating: bool = False

    @property
    def listed_containers(self) -> tuple[str, ...]:
        """Return the names of the containers that PodResources lists: all but plain init ones."""
        return tuple(container.name for container in self.containers if not container.init)

    @property
    def sandbox(self) -> PodSandbox:
        return PodSandbox(
            id=f"sandbox-{self.uid}",
            uid=self.uid,
            name=self.name,
            namespace=self.namespace,
            annotations=self.annotations,
        )

    def key(self, container: str) -> ContainerKey:
        return ContainerKey(
            pod_uid=self.uid, namespace=self.namespace, pod=self.name, container=container
        )


def read_kubelet_pod(body: bytes) -> KubeletPod:
    """Decode a pod.

    Raises:
        ValueError: it is not a pod.
    """
    pod = decode_pod(body)
    spec = decode_object(body)["spec"]
    references = {
        container["name"]: _references(container)
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    }
    kinds = [
        (init_container_kind(container.restart_policy), container)
        for container in pod.spec.init_containers or ()
    ]
    kinds += [(ContainerKind.APP, container) for container in pod.spec.containers or ()]
    return KubeletPod(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        containers=tuple(
            ContainerPlan(
                name=container.name,
                init=kind is ContainerKind.INIT,
                sidecar=kind is ContainerKind.SIDECAR,
                wants=_wants(container),
                claims=references[container.name],
            )
            for kind, container in kinds
        ),
        annotations=pod.metadata.annotations or {},
        claims={
            claim["name"]: claim["resourceClaimName"]
            for claim in spec.get("resourceClaims") or ()
            if claim.get("resourceClaimName")
        },
        ended=not pod.live,
        terminating=pod.metadata.deletion_timestamp is not None,
    )


def _references(container: Mapping[str, Any]) -> tuple[ClaimReference, ...]:
    return tuple(
        ClaimReference(name=claim["name"], request=claim.get("request", ""))
        for claim in (container.get("resources") or {}).get("claims") or ()
    )


def _wants(container: Container) -> dict[str, int]:
    """Return the limits that may be devices: whole numbers of extended resources."""
    limits = (container.resources.limits if container.resources else None) or {}
    return {
        resource: int(amount)
        for resource, amount in limits.items()
        if "/" in resource and str(amount).isdigit() and int(amount) > 0
    }


def pod_status(
    pod: KubeletPod,
    *,
    phase: str,
    started_at: str,
    states: Mapping[str, Mapping[str, Any]],
    restarts: Mapping[str, int],
) -> dict[str, Any]:
    """Return a pod's status as kubelet writes it; *states* has each container's ``state``."""

    def container(name: str) -> dict[str, Any]:
        state = states.get(name, {"waiting": {"reason": "PodInitializing"}})
        return {
            "name": name,
            "image": "simulated",
            "imageID": "",
            "ready": "running" in state,
            "restartCount": restarts.get(name, 0),
            "state": state,
        }

    running = phase == "Running"
    inits = [container(plan.name) for plan in pod.containers if plan.init or plan.sidecar]
    apps = [container(plan.name) for plan in pod.containers if not plan.init and not plan.sidecar]
    status = {
        "phase": phase,
        "startTime": started_at,
        "conditions": [
            {"type": kind, "status": "True" if holds else "False"}
            for kind, holds in (
                ("PodScheduled", True),
                ("Initialized", running),
                ("ContainersReady", running),
                ("Ready", running),
            )
        ],
        "containerStatuses": apps,
    }
    return status | ({"initContainerStatuses": inits} if inits else {})


def number(text: str | None) -> float | None:
    """Return an annotation's number of 0 or more; None if it is missing or no such number."""
    try:
        value = math.nan if text is None else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
