"""What we write on a Node, and the patches that remove it when the node stops sharing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fracgpu import names

_LABEL_PREFIX: Final = "fracgpu.io/card-"
_OTHER_LABELS: Final = (
    names.DRIVER_LABEL,
    *names.ISOLATION_LABELS,
)
# Written by administrators; only they remove them.
_ADMIN_LABELS: Final = (names.SHARE_LABEL, names.WIRING_LABEL)
_ADMIN_ANNOTATIONS: Final = frozenset({names.NODE_OUT_OF_SERVICE, names.NODE_DRAIN})
_OUR_RESOURCES: Final = (names.GPU_MEM, names.GPU_COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMarks:
    """Our labels, annotations, resources and condition on one Node; false when there are none.

    Attributes:
        condition: whether the Node has the condition ``FracGPUSharing``.
    """

    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    condition: bool = False

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.resources or self.condition)

    @property
    def words(self) -> tuple[str, ...]:
        """Each mark by kind and name, for output."""
        return (
            *(f"capacity {resource}" for resource in self.resources),
            *(f"label {label}" for label in self.labels),
            *(f"annotation {key}" for key in self.annotations),
            *((f"condition {names.SHARING_CONDITION}",) if self.condition else ()),
        )

    def metadata_patch(self) -> dict[str, Any]:
        """Return the merge patch that removes labels and annotations; empty if there are none."""
        parts = {"labels": self.labels, "annotations": self.annotations}
        removed = {part: dict.fromkeys(keys) for part, keys in parts.items() if keys}
        return {"metadata": removed} if removed else {}

    def status_patch(self) -> dict[str, Any]:
        """Return the merge patch that removes our resources; empty if there are none.

        A kubelet removes from allocatable what capacity lacks, but the kubelet may not be running.
        """
        removed = dict.fromkeys(self.resources)
        if not removed:
            return {}
        return {"status": {"capacity": removed, "allocatable": dict(removed)}}

    def condition_patch(self) -> dict[str, Any]:
        """Return the strategic merge patch that removes the condition; empty if there is none."""
        if not self.condition:
            return {}
        return {"status": {"conditions": [{"type": names.SHARING_CONDITION, "$patch": "delete"}]}}


def shares(labels: Mapping[str, str]) -> bool:
    """Report whether a node with *labels* shares its cards."""
    return labels.get(names.SHARE_LABEL) == "true"


def find_marks(
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    capacity: Mapping[str, str],
    conditions: Collection[str],
    include_admin_keys: bool = False,
) -> NodeMarks:
    """Return what we have written on a Node.

    The number of slots is written by the kubelet: it restores the value until it drops the device
    plugin, five minutes after the agent has stopped, and reports zero from then on. Only that zero
    is removed.
    Source: kubelet's device manager, ``endpointStopGracePeriod`` and ``GetCapacity``.

    Args:
        labels: the Node's labels.
        annotations: the Node's annotations.
        capacity: the capacity in its status.
        conditions: the types of its conditions.
        include_admin_keys: include what administrators write: the annotations
            ``out-of-service`` and ``drain``, and the labels ``share`` and ``wiring``.
    """
    ours = tuple(sorted(key for key in labels if _is_our_label(key)))
    if include_admin_keys:
        ours = (*ours, *(key for key in _ADMIN_LABELS if key in labels))
    kept = frozenset() if include_admin_keys else _ADMIN_ANNOTATIONS
    slots = (names.GPU_SLOT,) if capacity.get(names.GPU_SLOT) == "0" else ()
    return NodeMarks(
        labels=ours,
        annotations=tuple(
            sorted(key for key in annotations if key.startswith(names.PREFIX) and key not in kept)
        ),
        resources=(*(resource for resource in _OUR_RESOURCES if resource in capacity), *slots),
        condition=names.SHARING_CONDITION in conditions,
    )


def marks_of(node: Mapping[str, Any], *, include_admin_keys: bool = False) -> NodeMarks:
    """Return what we have written on a Node from the API server; see :func:`find_marks`."""
    metadata, status = node.get("metadata", {}), node.get("status", {})
    return find_marks(
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        capacity=status.get("capacity") or {},
        conditions=[condition.get("type", "") for condition in status.get("conditions") or ()],
        include_admin_keys=include_admin_keys,
    )


def _is_our_label(key: str) -> bool:
    return key.startswith(_LABEL_PREFIX) or key in _OTHER_LABELS
