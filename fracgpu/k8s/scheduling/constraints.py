"""What of a pod's spec decides on which nodes it may run.

Equal parts are decoded once and shared: most of a cluster's pods are copies of a few thousand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fracgpu.caching import cached
from fracgpu.errors import decode_wire
from fracgpu.k8s.container import ContainerKind, init_container_kind
from fracgpu.k8s.node import Taint
from fracgpu.k8s.node_affinity import ANY_NODE, NodeRules, read_node_rules
from fracgpu.k8s.pod import Pod, PodSpec, Volume
from fracgpu.k8s.resources import NO_REQUESTS, Requests, requests_of
from fracgpu.k8s.scheduling.terms import PodTerm, SpreadConstraint, read_pod_terms, read_spread

RESOURCE_CLAIMS: Final = "resourceClaims"
_EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - Kubernetes' own default; nothing listens on it


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    """A port of the node that a container takes; *ip* is 0.0.0.0 for every address."""

    ip: str = _EVERY_ADDRESS
    protocol: str = "TCP"
    port: int

    def conflicts(self, other: "HostPort") -> bool:
        """Report whether two containers of one node cannot have both.

        Source: CheckConflict in staging/src/k8s.io/kube-scheduler/framework/types.go.
        """
        same = (self.protocol, self.port) == (other.protocol, other.port)
        return same and (self.ip == other.ip or _EVERY_ADDRESS in (self.ip, other.ip))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SchedulingConstraints:
    """Which nodes one pod may be scheduled to, by its own spec. Compared by identity.

    Attributes:
        node: selector, required node affinity, tolerations.
        affinity: required terms of ``podAffinity``.
        anti_affinity: required terms of ``podAntiAffinity``.
        spread: constraints that refuse nodes rather than rank them.
        requests: of every resource, in whole units; CPU in millicores.
        ports: of the node.
        claims: names of PersistentVolumeClaims.
        unjudged: what else may refuse a node and is not simulated, in Kubernetes' words.
        keeps_local_data: the pod has a volume on its node's disk that an eviction deletes.
    """

    node: NodeRules = ANY_NODE
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    requests: Requests = NO_REQUESTS
    ports: tuple[HostPort, ...] = ()
    claims: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    keeps_local_data: bool = False

    def allows(self, labels: Mapping[str, str], taints: Sequence[Taint], *, node: str = "") -> bool:
        """Report whether the pod selects and tolerates a node with these labels and taints."""
        return self.node.selects(labels, node=node) and self.node.tolerates(taints)


ANYWHERE: Final = SchedulingConstraints()


# What may refuse a node and is not simulated. The inline disks are those that kube-scheduler's
# plugin VolumeRestrictions compares with the disks of the other pods of a node.
_UNJUDGED_VOLUMES: Final = {
    "ephemeral": "ephemeral volume",
    "host_path": "hostPath",
    "gce_persistent_disk": "gcePersistentDisk",
    "aws_elastic_block_store": "awsElasticBlockStore",
    "iscsi": "iscsi",
    "rbd": "rbd",
}


def scheduling_constraints_of(pod: Pod) -> SchedulingConstraints:
    """Return the scheduling constraints of a pod; equal ones are one object.

    Raises:
        WireError: what the pod was decoded from is not a pod.
    """
    return decode_wire(_constraints, pod, what="pod")


def _constraints(pod: Pod) -> SchedulingConstraints:
    spec = pod.spec
    return _shared(
        namespace=pod.metadata.namespace if bytes(spec.affinity) else "",
        selector=tuple((spec.node_selector or {}).items()),
        affinity=_bytes(spec.affinity),
        tolerations=_bytes(spec.tolerations),
        spread=_bytes(spec.topology_spread_constraints),
        requests=requests_of(pod),
        ports=_ports(spec),
        volumes=frozenset(spec.volumes or ()),
        resource_claims=bool(spec.resource_claims),
    )


@cached(entries=8192)
def _shared(  # noqa: PLR0913 - the parts of a spec, each hashable
    *,
    namespace: str,
    selector: tuple[tuple[str, str], ...],
    affinity: bytes,
    tolerations: bytes,
    spread: bytes,
    requests: Requests,
    ports: tuple[HostPort, ...],
    volumes: frozenset[Volume],
    resource_claims: bool,
) -> SchedulingConstraints:
    terms, anti_terms = read_pod_terms(affinity, namespace) if affinity else ((), ())
    unjudged = [
        text
        for field, text in _UNJUDGED_VOLUMES.items()
        if any(getattr(volume, field) is not None for volume in volumes)
    ]
    claims = {
        volume.persistent_volume_claim.claim_name
        for volume in volumes
        if volume.persistent_volume_claim is not None
    }
    return SchedulingConstraints(
        node=read_node_rules(selector, affinity, tolerations),
        affinity=terms,
        anti_affinity=anti_terms,
        spread=read_spread(spread) if spread else (),
        requests=requests,
        ports=ports,
        claims=tuple(sorted(claims)),
        unjudged=(*unjudged, *([RESOURCE_CLAIMS] if resource_claims else [])),
        keeps_local_data=any(
            volume.ephemeral is not None
            or (volume.empty_dir is not None and volume.empty_dir.medium != "Memory")
            for volume in volumes
        ),
    )


def _bytes(raw: msgspec.Raw) -> bytes:
    found = bytes(raw)
    return b"" if found == b"null" else found


def _ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Return the ports of app containers and sidecars, as kube-scheduler's GetHostPorts does."""
    sidecars = [
        part
        for part in spec.init_containers or ()
        if init_container_kind(part.restart_policy) is ContainerKind.SIDECAR
    ]
    return tuple(
        HostPort(
            ip=port.host_ip or _EVERY_ADDRESS, protocol=port.protocol or "TCP", port=port.host_port
        )
        for container in (*sidecars, *(spec.containers or ()))
        for port in container.ports or ()
        if port.host_port > 0
    )
