"""PersistentVolumeClaims and PersistentVolumes, as far as they tie a pod to nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from fracgpu.errors import decode_wire
from fracgpu.k8s.affinity import NodeSelectorJson
from fracgpu.k8s.node_affinity import NodeTerms, node_terms

ONE_POD: Final = "ReadWriteOncePod"
_ONE_NODE: Final = "ReadWriteOnce"
_MANY_NODES: Final = ("ReadWriteMany", "ReadOnlyMany")

_BETA_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"
_BETA_REGION: Final = "failure-domain.beta.kubernetes.io/region"
STABLE_NAME: Final[Mapping[str, str]] = {
    _BETA_ZONE: "topology.kubernetes.io/zone",
    _BETA_REGION: "topology.kubernetes.io/region",
}
"""The label that took the place of each beta label."""
ZONE_LABELS: Final = (*STABLE_NAME, *STABLE_NAME.values())
_SEPARATOR: Final = "__"  # between the zones of one volume


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeClaim:
    """A PersistentVolumeClaim.

    Attributes:
        volume: the PersistentVolume that it is bound to; empty before.
        storage_class: the name of its StorageClass; empty without one.
        terminating: it is being deleted, and is gone once no pod uses it.
    """

    volume: str = ""
    storage_class: str = ""
    modes: frozenset[str] = frozenset()
    terminating: bool = False

    @property
    def one_pod(self) -> bool:
        """Whether only one pod may use it at a time."""
        return ONE_POD in self.modes

    @property
    def one_node(self) -> bool:
        """Whether all pods that use it at a time have to be on one node.

        kube-scheduler does not check this: the volume would not attach to a second node.
        """
        return _ONE_NODE in self.modes and not self.modes.intersection(_MANY_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A PersistentVolume.

    Attributes:
        terms: the nodes that can reach it; None for all.
        zones: for each zone label of the volume, the values that a node may have.
        local: its data is on one node's disk.
    """

    terms: NodeTerms | None = None
    zones: Mapping[str, frozenset[str]] = field(default_factory=dict)
    local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Every claim by namespace and name, and every volume by name."""

    claims: Mapping[tuple[str, str], VolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, Volume] = field(default_factory=dict)


class _Meta(msgspec.Struct, rename="camel"):
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _ClaimSpec(msgspec.Struct, rename="camel"):
    volume_name: str = ""
    storage_class_name: str = ""
    access_modes: list[str] | None = None


class _Claim(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)


class _Something(msgspec.Struct):
    """An object of which only the presence matters."""


class _VolumeAffinity(msgspec.Struct):
    required: NodeSelectorJson | None = None


class _VolumeSpec(msgspec.Struct, rename="camel"):
    node_affinity: _VolumeAffinity | None = None
    local: _Something | None = None
    host_path: _Something | None = None


class _Volume(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _VolumeSpec = msgspec.field(default_factory=_VolumeSpec)


class _StorageClass(msgspec.Struct, rename="camel"):
    volume_binding_mode: str = ""


_class_decoder: Final = msgspec.json.Decoder(_StorageClass)
_claim_decoder: Final = msgspec.json.Decoder(_Claim)
_volume_decoder: Final = msgspec.json.Decoder(_Volume)


def read_claim(body: bytes) -> VolumeClaim:
    """Parse a PersistentVolumeClaim from its JSON.

    Raises:
        WireError: *body* is not one.
    """
    found = decode_wire(_claim_decoder.decode, body, what="persistentvolumeclaim")
    spec = found.spec
    return VolumeClaim(
        volume=spec.volume_name,
        storage_class=spec.storage_class_name,
        modes=frozenset(spec.access_modes or ()),
        terminating=found.metadata.deletion_timestamp is not None,
    )


def waits_for_first_consumer(body: bytes) -> bool:
    """Report whether a StorageClass binds a claim only once a node is chosen for its pod.

    Raises:
        WireError: *body* is not a StorageClass.
    """
    found = decode_wire(_class_decoder.decode, body, what="storageclass")
    return found.volume_binding_mode == "WaitForFirstConsumer"


def read_volume(body: bytes) -> Volume:
    """Parse a PersistentVolume from its JSON.

    Raises:
        WireError: *body* is not one.
    """
    found = decode_wire(_volume_decoder.decode, body, what="persistentvolume")
    affinity = found.spec.node_affinity
    labels = found.metadata.labels or {}
    return Volume(
        terms=node_terms(affinity.required) if affinity and affinity.required else None,
        zones={key: zones for key in ZONE_LABELS if (zones := _zones(labels.get(key, "")))},
        local=found.spec.local is not None or found.spec.host_path is not None,
    )


def _zones(label: str) -> frozenset[str]:
    """Return the zones in a label; none if one of them is empty, as kube-scheduler reads it."""
    parts = frozenset(part.strip() for part in label.split(_SEPARATOR))
    return frozenset() if "" in parts else parts
