"""What we write on a node object, and the patches that take it back when the node stops sharing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fracgpu import names

_LABEL_PREFIX: Final = "fracgpu.io/card-"
# Written by people: what they say of a node stands until they take it back.
_PEOPLES_ANNOTATIONS: Final = frozenset({names.NODE_OUT_OF_SERVICE})
_OUR_RESOURCES: Final = (names.GPU_MEM, names.GPU_COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMarks:
    """What of ours stands on one node object; false where nothing does.

    Attributes:
        condition: whether the condition ``FracGPUSharing`` is there.
    """

    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    condition: bool = False

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations or self.resources or self.condition)

    @property
    def words(self) -> tuple[str, ...]:
        """Name each mark, for people."""
        return (
            *(f"capacity {it}" for it in self.resources),
            *(f"label {it}" for it in self.labels),
            *(f"annotation {it}" for it in self.annotations),
            *((f"condition {names.SHARING_CONDITION}",) if self.condition else ()),
        )

    def metadata_patch(self) -> dict[str, Any]:
        """Give the merge patch that removes labels and annotations; empty where there are none."""
        parts = {"labels": self.labels, "annotations": self.annotations}
        removed = {part: dict.fromkeys(keys) for part, keys in parts.items() if keys}
        return {"metadata": removed} if removed else {}

    def status_patch(self) -> dict[str, Any]:
        """Give the merge patch that removes our resources; empty where there are none.

        kubelet drops from allocatable what capacity has no longer, but a kubelet may be dead.
        """
        gone = dict.fromkeys(self.resources)
        return {"status": {"capacity": gone, "allocatable": dict(gone)}} if gone else {}

    def condition_patch(self) -> dict[str, Any]:
        """Give the strategic merge patch that removes the condition; empty where there is none."""
        if not self.condition:
            return {}
        return {"status": {"conditions": [{"type": names.SHARING_CONDITION, "$patch": "delete"}]}}


def shares(labels: Mapping[str, str]) -> bool:
    """Tell whether a node with *labels* is to share its cards."""
    return labels.get(names.SHARE_LABEL) == "true"


def find_marks(
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    capacity: Mapping[str, str],
    conditions: Collection[str],
    peoples_too: bool = False,
) -> NodeMarks:
    """Find what of ours stands on a node.

    The count of slots is kubelet's own: it comes back until kubelet has let go of the plugin, five
    minutes after the agent's end, and is zero from then on. Only that zero is ours to remove.
    Source: kubelet's device manager, ``endpointStopGracePeriod`` and ``GetCapacity``.

    Args:
        labels: the node's.
        annotations: the node's.
        capacity: of its status.
        conditions: the types of its conditions.
        peoples_too: also what administrators write for us: ``out-of-service`` and the label
            ``share``.
    """
    ours = tuple(sorted(it for it in labels if _is_our_label(it)))
    if peoples_too and names.SHARE_LABEL in labels:
        ours = (*ours, names.SHARE_LABEL)
    kept = frozenset() if peoples_too else _PEOPLES_ANNOTATIONS
    slots = (names.GPU_SLOT,) if capacity.get(names.GPU_SLOT) == "0" else ()
    return NodeMarks(
        labels=ours,
        annotations=tuple(
            sorted(it for it in annotations if it.startswith(names.PREFIX) and it not in kept)
        ),
        resources=(*(it for it in _OUR_RESOURCES if it in capacity), *slots),
        condition=names.SHARING_CONDITION in conditions,
    )


def marks_of(node: Mapping[str, Any], *, peoples_too: bool = False) -> NodeMarks:
    """Find what of ours stands on a node as the API server sends it; see :func:`find_marks`."""
    metadata, status = node.get("metadata", {}), node.get("status", {})
    return find_marks(
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        capacity=status.get("capacity") or {},
        conditions=[it.get("type", "") for it in status.get("conditions") or ()],
        peoples_too=peoples_too,
    )


def _is_our_label(key: str) -> bool:
    return key.startswith(_LABEL_PREFIX) or key == names.DRIVER_LABEL
