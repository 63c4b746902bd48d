"""A Deployment, ReplicaSet or StatefulSet: how many pods it wants, and whether it is settled."""

import sys
from dataclasses import dataclass
from typing import Final

import msgspec

from fracgpu.errors import decode_wire
from fracgpu.k8s.disruption_budget import NONE_AT_ALL
from fracgpu.k8s.pod import OwnerReference


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One controller of pods.

    Attributes:
        owner: UID of its own controller; empty without one.
        desired: how many pods it should have.
        ready: how many of its pods are ready.
        current: how many of its pods have its current template.
        total: how many pods it has.
        observed: its controller has seen the latest change of it.
        paused: a Deployment whose rollouts are paused.
        recreate: a Deployment that never runs pods of two templates at once.
        no_surge: a Deployment whose rollouts may create no pod beyond those that it wants.
        terminating: it is being deleted.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    owner: str = ""
    owner_kind: str = ""
    desired: int
    ready: int
    current: int
    total: int
    observed: bool = True
    paused: bool = False
    recreate: bool = False
    no_surge: bool = False
    terminating: bool = False

    @property
    def updated(self) -> bool:
        """Whether every pod that it has is of its current template, however many it wants.

        Source: DeploymentComplete in pkg/controller/deployment/util/deployment_util.go.
        """
        return not self.terminating and self.current == self.total

    @property
    def rolling_out(self) -> bool:
        """Whether its pods are being replaced, created or removed at the moment.

        A move under way creates and removes pods itself: then `updated` is what must hold.
        """
        return not (self.updated and self.observed and self.total == self.desired)


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None


class _RollingUpdate(msgspec.Struct, rename="camel"):
    max_surge: int | str | None = None


class _Strategy(msgspec.Struct, rename="camel"):
    type: str = ""
    rolling_update: _RollingUpdate | None = None


class _Spec(msgspec.Struct):
    replicas: int | None = None
    paused: bool = False
    strategy: _Strategy | None = None


class _Status(msgspec.Struct, rename="camel"):
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    observed_generation: int = 0
    current_revision: str = ""
    update_revision: str = ""


class _Wire(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder: Final = msgspec.json.Decoder(_Wire)


def read_deployment(body: bytes) -> Workload:
    """Parse a Deployment from its JSON.

    Raises:
        WireError: *body* is not one.
    """
    wire = _decode(body)
    return _workload(wire, kind="Deployment", current=wire.status.updated_replicas)


def read_replicaset(body: bytes) -> Workload | None:
    """Parse a ReplicaSet from its JSON; None for one without pods, such as that of an old rollout.

    Raises:
        WireError: *body* is not one.
    """
    wire = _decode(body)
    if wire.spec.replicas == 0 and wire.status.replicas == 0:
        return None
    return _workload(wire, kind="ReplicaSet", current=wire.status.replicas)


def read_statefulset(body: bytes) -> Workload:
    """Parse a StatefulSet from its JSON.

    Raises:
        WireError: *body* is not one.
    """
    wire = _decode(body)
    status = wire.status
    rolled_out = status.current_revision == status.update_revision
    current = status.replicas if rolled_out else status.updated_replicas
    return _workload(wire, kind="StatefulSet", current=current)


def _decode(body: bytes) -> _Wire:
    return decode_wire(_decoder.decode, body, what="workload")


def _workload(wire: _Wire, *, kind: str, current: int) -> Workload:
    meta, spec, status = wire.metadata, wire.spec, wire.status
    owners = (owner for owner in meta.owner_references or () if owner.controller)
    owner = next(owners, OwnerReference())
    return Workload(
        uid=meta.uid,
        kind=kind,
        namespace=sys.intern(meta.namespace),
        name=meta.name,
        owner=owner.uid,
        owner_kind=sys.intern(owner.kind),
        desired=1 if spec.replicas is None else spec.replicas,
        ready=status.ready_replicas,
        current=current,
        total=status.replicas,
        observed=status.observed_generation >= meta.generation,
        paused=spec.paused,
        recreate=spec.strategy is not None and spec.strategy.type == "Recreate",
        no_surge=spec.strategy is not None
        and spec.strategy.rolling_update is not None
        and spec.strategy.rolling_update.max_surge in NONE_AT_ALL,
        terminating=meta.deletion_timestamp is not None,
    )
