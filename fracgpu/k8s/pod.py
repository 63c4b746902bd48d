"""A pod's JSON, decoded once: the union of what this project reads of it.

Two decoders stand beside this one, for a reason: that of bound pods, which skips most of this and
of which a scheduler needs 100,000 (`fracgpu.state.bound_pod`), and that of admission, which is
strict and keeps the order of fields (`webhook.admission.review`).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from fracgpu.errors import decode_wire
from fracgpu.k8s.container import ContainerKind, ContainerSpec, init_container_kind

_ENDED: Final = ("Succeeded", "Failed")

LIVE_PODS: Final = ",".join(f"status.phase!={phase}" for phase in _ENDED)
"""The field selector of the pods that have not ended."""

Amounts = Mapping[str, str | int | float]


# What is read of a pod; unknown fields are skipped unread.
class OwnerReference(msgspec.Struct, frozen=True):
    """An owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class PodMetadata(msgspec.Struct, rename="camel"):
    """``metadata``."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class ClaimOfContainer(msgspec.Struct, frozen=True):
    """A claim of its pod that a container has: one request of it, or all."""

    name: str = ""
    request: str = ""


class Resources(msgspec.Struct):
    """The ``resources`` of a container, or of the whole pod."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None
    claims: list[ClaimOfContainer] | None = None


class Port(msgspec.Struct, frozen=True, rename="camel"):
    """A port of a container."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class Something(msgspec.Struct, frozen=True):
    """An object of which only the presence matters."""


class Container(msgspec.Struct, rename="camel"):
    """A container, or an init container."""

    name: str = ""
    restart_policy: str | None = None
    ports: list[Port] | None = None
    resources: Resources | None = None


class PodResourceClaim(msgspec.Struct, rename="camel"):
    """A ResourceClaim that a pod names, by itself or by a template."""

    name: str = ""
    resource_claim_name: str | None = None


class EmptyDir(msgspec.Struct, frozen=True):
    """An ``emptyDir``."""

    medium: str = ""


class ClaimReference(msgspec.Struct, frozen=True, rename="camel"):
    """A ``persistentVolumeClaim``."""

    claim_name: str = ""


class Volume(msgspec.Struct, frozen=True, rename="camel"):
    """A volume, of the kinds that decide where a pod may run."""

    persistent_volume_claim: ClaimReference | None = None
    ephemeral: Something | None = None
    host_path: Something | None = None
    empty_dir: EmptyDir | None = None
    gce_persistent_disk: Something | None = None
    aws_elastic_block_store: Something | None = None
    iscsi: Something | None = None
    rbd: Something | None = None


class SchedulingGate(msgspec.Struct, frozen=True):
    """What keeps a pod from being scheduled."""

    name: str = ""


class SchedulingGroup(msgspec.Struct, rename="camel"):
    """The group of pods that a pod belongs to."""

    pod_group_name: str | None = None


class PodSpec(msgspec.Struct, rename="camel"):
    """``spec``; what few pods have, or many share, stays JSON until it is looked at."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    preemption_policy: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_selector: dict[str, str] | None = None
    affinity: msgspec.Raw = msgspec.Raw()
    tolerations: msgspec.Raw = msgspec.Raw()
    topology_spread_constraints: msgspec.Raw = msgspec.Raw()
    volumes: list[Volume] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: Resources | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    scheduling_group: SchedulingGroup | None = None  # from 1.36, with GenericWorkload


class PodCondition(msgspec.Struct, rename="camel"):
    """A condition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Waiting(msgspec.Struct):
    """The state of a container that waits."""

    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct):
    """The state of a container."""

    waiting: Waiting | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    """The status of a container."""

    name: str = ""
    state: ContainerState | None = None
    resources: Resources | None = None
    allocated_resources: Amounts | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class PodStatus(msgspec.Struct, rename="camel"):
    """``status``."""

    phase: str = ""
    reason: str = ""
    start_time: datetime | None = None
    nominated_node_name: str = ""
    conditions: list[PodCondition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodResourceClaim] | None = None

    @property
    def of_containers(self) -> tuple[ContainerStatus, ...]:
        """The statuses of all containers, init containers first."""
        return (*(self.init_container_statuses or ()), *(self.container_statuses or ()))


class Pod(msgspec.Struct):
    """A pod as it came; read it and let it go, because it keeps its JSON in memory."""

    metadata: PodMetadata = msgspec.field(default_factory=PodMetadata)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return not has_ended(self.status.phase)


_decoder: Final = msgspec.json.Decoder(Pod)


def decode_pod(body: bytes) -> Pod:
    """Return the pod that *body* holds.

    Raises:
        WireError: *body* is not a pod.
    """
    return decode_wire(_decoder.decode, body, what="pod")


def has_ended(phase: str) -> bool:
    """Report whether a pod in *phase* has ended: it runs no more, and holds nothing."""
    return phase in _ENDED


def containers_of(spec: PodSpec) -> tuple[ContainerSpec, ...]:
    """Return the containers of a pod, init containers first."""
    inits = spec.init_containers or ()
    return (
        *(_container(one, init_container_kind(one.restart_policy)) for one in inits),
        *(_container(one, ContainerKind.APP) for one in spec.containers or ()),
    )


def _container(container: Container, kind: ContainerKind) -> ContainerSpec:
    resources = container.resources or Resources()
    return ContainerSpec(
        name=container.name,
        kind=kind,
        limits=_texts(resources.limits),
        requests=_texts(resources.requests),
    )


def _texts(amounts: Amounts | None) -> dict[str, str]:
    return {key: str(value) for key, value in (amounts or {}).items()}
