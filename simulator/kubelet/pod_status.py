"""One pod as a simulated kubelet decodes it, and its status."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from simulator.kubelet.device_manager import ContainerKey

_TERMINAL: Final = ("Succeeded", "Failed")


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    uid: str
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Resources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str
    restart_policy: str | None = None
    resources: _Resources | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container]
    init_containers: list[_Container] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """One container: its kind, and how much it requests of each device resource."""

    name: str
    init: bool = False
    sidecar: bool = False
    wants: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPod:
    """One pod bound to this node."""

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerPlan, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    ended: bool = False
    terminating: bool = False

    @property
    def listed_containers(self) -> tuple[str, ...]:
        """Return the names of the containers that PodResources lists: all but plain init ones."""
        return tuple(container.name for container in self.containers if not container.init)

    def key(self, container: str) -> ContainerKey:
        return ContainerKey(
            pod_uid=self.uid, namespace=self.namespace, pod=self.name, container=container
        )


def read_kubelet_pod(body: bytes) -> KubeletPod:
    """Decode a pod.

    Raises:
        ValueError: it is not a pod.
    """
    pod = msgspec.json.decode(body, type=_Pod)
    inits = [
        ContainerPlan(
            name=container.name,
            init=container.restart_policy != "Always",
            sidecar=container.restart_policy == "Always",
            wants=_wants(container),
        )
        for container in pod.spec.init_containers or ()
    ]
    apps = [
        ContainerPlan(name=container.name, wants=_wants(container))
        for container in pod.spec.containers
    ]
    return KubeletPod(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        containers=(*inits, *apps),
        annotations=pod.metadata.annotations or {},
        ended=pod.status.phase in _TERMINAL,
        terminating=pod.metadata.deletion_timestamp is not None,
    )


def _wants(container: _Container) -> dict[str, int]:
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
