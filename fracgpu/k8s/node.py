"""A node's JSON, decoded once: the union of what this project reads of it."""

from typing import Final

import msgspec

from fracgpu.errors import decode_wire


# What is read of a node; unknown fields are skipped unread.
class NodeMetadata(msgspec.Struct):
    """``metadata``."""

    name: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A taint of a node; pods that do not tolerate it are not scheduled there."""

    key: str = ""
    value: str = ""
    effect: str = "NoSchedule"


class NodeSpec(msgspec.Struct):
    """``spec``."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeCondition(msgspec.Struct):
    """A condition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class NodeStatus(msgspec.Struct):
    """``status``."""

    conditions: list[NodeCondition] | None = None
    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None


class Node(msgspec.Struct):
    """A node as it came."""

    metadata: NodeMetadata = msgspec.field(default_factory=NodeMetadata)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def ready(self) -> bool:
        """Whether kubelet says that it is ready; so it counts where nobody has said anything."""
        conditions = {
            condition.type: condition.status for condition in self.status.conditions or ()
        }
        return conditions.get("Ready", "True") == "True"


# Taints of a node that an autoscaler removes, or will if nothing is put on it.
# Sources: kubernetes/autoscaler, cluster-autoscaler/utils/taints; kubernetes-sigs/karpenter,
# pkg/apis/v1/taints.go, and the same before v1.
_LEAVING: Final = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
    }
)


def is_leaving(node: Node) -> bool:
    """Report whether an autoscaler is about to remove a node."""
    return any(taint.key in _LEAVING for taint in node.spec.taints or ())


_decoder: Final = msgspec.json.Decoder(Node)


def decode_node(body: bytes) -> Node:
    """Return the node that *body* holds.

    Raises:
        WireError: *body* is not a node.
    """
    return decode_wire(_decoder.decode, body, what="node")
