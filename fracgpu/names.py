"""The names that other programs see: annotations, labels, resources, environment variables."""

import re
from typing import Final

PREFIX: Final = "fracgpu.io/"

# Resources (node capacity, container limits).
GPU_MEM: Final = "fracgpu.io/gpu-mem"
GPU_COUNT: Final = "fracgpu.io/gpu-count"
GPU_SLOT: Final = "fracgpu.io/gpu-slot"

# Pod annotations that a user writes: the request language.
FRACTION: Final = "fracgpu.io/fraction"
MEMORY: Final = "fracgpu.io/memory"
FRACTION_LIMIT: Final = "fracgpu.io/fraction-limit"
MEMORY_LIMIT: Final = "fracgpu.io/memory-limit"
CORES: Final = "fracgpu.io/cores"
CARDS: Final = "fracgpu.io/cards"
VENDOR: Final = "fracgpu.io/vendor"
MODEL: Final = "fracgpu.io/model"
PLACEMENT: Final = "fracgpu.io/placement"
TOPOLOGY: Final = "fracgpu.io/topology"
ISOLATION: Final = "fracgpu.io/isolation"
REBALANCE: Final = "fracgpu.io/rebalance"
GANG: Final = "fracgpu.io/gang"
REQUEST_KEYS: Final = (
    FRACTION,
    MEMORY,
    FRACTION_LIMIT,
    MEMORY_LIMIT,
    CORES,
    CARDS,
    VENDOR,
    MODEL,
    PLACEMENT,
    TOPOLOGY,
    ISOLATION,
    REBALANCE,
    GANG,
)

# Pod annotations that only the system writes.
GRANTED: Final = "fracgpu.io/granted"
ASSIGNMENT: Final = "fracgpu.io/assignment"
WIRED: Final = "fracgpu.io/wired"
# The term of the leading scheduler that last changed the pod. A Binding carries it too, and
# deploy/policies.yaml compares the Binding's with the Lease.
TERM: Final = "fracgpu.io/term"
# The Move whose reservation the pod consumed; the Binding writes it with the assignment.
MOVE: Final = "fracgpu.io/move"
# The Move that replaces this pod; the rebalancer writes it when it releases the pod from its
# owner.
MOVED_BY: Final = "fracgpu.io/moved-by"
# When the pod is going to be moved (UTC, RFC 3339), so that it can prepare; by the rebalancer.
NOTICE: Final = "fracgpu.io/move-notice"
NOTICE_WITHDRAWN: Final = "withdrawn"  # its value when the move was given up; soon taken off
# Pod annotation that people write: move it now. On a Move: what was recommended may be done.
MOVE_REQUESTED: Final = "fracgpu.io/move-requested"
# Pod annotations: how many seconds before its move it wants to be told, and that it is ready for
# it; by its author, and by whoever is told.
MOVE_GRACE: Final = "fracgpu.io/move-grace"
MOVE_READY: Final = "fracgpu.io/move-ready"
# Pod annotation that people write who may: the size that each of its slices should have.
RESIZE: Final = "fracgpu.io/resize"
# What the leading scheduler has answered to it, and the limits that the node's agent has applied.
RESIZED: Final = "fracgpu.io/resized"
APPLIED: Final = "fracgpu.io/applied"
APPROVED: Final = "fracgpu.io/approved"
# Kubernetes' own: the container that kubectl takes where none is named.
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
# Annotation of a pod template: the MiB that the webhook wrote into the limits of its containers.
TEMPLATE_GRANT: Final = "fracgpu.io/template-grant"
RESERVED_KEYS: Final = (
    GRANTED,
    ASSIGNMENT,
    WIRED,
    TERM,
    MOVE,
    MOVED_BY,
    NOTICE,
    RESIZED,
    APPLIED,
)
POD_KEYS: Final = frozenset(
    (
        *REQUEST_KEYS,
        *RESERVED_KEYS,
        TEMPLATE_GRANT,
        MOVE_REQUESTED,
        MOVE_GRACE,
        MOVE_READY,
        RESIZE,
    )
)
MOVE_MARKS: Final = (MOVED_BY, NOTICE)  # what a move that ended must not leave on a pod

# Node annotations: the agent's inventory, and the cards that the rebalancer has cordoned.
NODE_CARDS: Final = "fracgpu.io/cards"
NODE_CORDONS: Final = "fracgpu.io/cordons"
# Node annotation that an operator writes: UUIDs of cards to take out of service, separated by
# commas.
NODE_OUT_OF_SERVICE: Final = "fracgpu.io/out-of-service"
# The same of cards that take no more pods, and whose pods the rebalancer moves away.
NODE_DRAIN: Final = "fracgpu.io/drain"
# Node annotation that the agent writes for people: how it knows whose container starts, by the
# container runtime's NRI or by kubelet's list and a hook.
NODE_IDENTITY: Final = "fracgpu.io/identity"
IDENTITY_NRI: Final = "nri"
IDENTITY_LISTED: Final = "listed"
IDENTITY_CLAIMS: Final = "claims"

# Node condition: whether this node's cards are shared by us, and if not, why.
SHARING_CONDITION: Final = "FracGPUSharing"
# Its reason while kubelet has no agent that serves the slots: a pod that came now would fail.
AGENT_NOT_REGISTERED: Final = "AgentNotRegistered"
# Its reason while the node goes over to the other wiring.
SWITCHING: Final = "Switching"
# On a node or a namespace: who counts the cards there, claims or devicePlugin.
WIRING_LABEL: Final = "fracgpu.io/wiring"
# Node annotations that the agent writes periodically: how busy each card was lately (JSON, UUID to
# 0..1), and the memory of each card that NVML reports in use but no known pod uses (JSON, UUID to
# MiB).
NODE_HEAT: Final = "fracgpu.io/heat"
NODE_FOREIGN: Final = "fracgpu.io/foreign"
# What the pods use of each card's memory, for people (JSON, UUID to UID of the pod to MiB).
NODE_USED: Final = "fracgpu.io/used"
# When the agent last confirmed heat and foreign memory, in UTC (RFC 3339). It is a separate
# annotation so that readers that do not know it still read the others.
NODE_LOAD_TIME: Final = "fracgpu.io/load-time"

# Node labels.
SHARE_LABEL: Final = "fracgpu.io/share"
CARD_MODEL_LABEL: Final = "fracgpu.io/card-model"
CARD_MEMORY_LABEL: Final = "fracgpu.io/card-memory"
CARD_COUNT_LABEL: Final = "fracgpu.io/card-count"
CARD_FAMILY_LABEL: Final = "fracgpu.io/card-family"
DRIVER_LABEL: Final = "fracgpu.io/driver"
# "true" on nodes where a mechanism, such as "kernel", limits containers on every card.
ISOLATION_LABEL_PREFIX: Final = "fracgpu.io/isolation-"
ISOLATION_LABELS: Final = tuple(
    f"{ISOLATION_LABEL_PREFIX}{mechanism}" for mechanism in ("kernel", "mps", "interposer")
)
# The class of all cards of the node, as the pool catalogue names it; by the agent, and by whoever
# makes the pool's nodes.
CARD_CLASS_LABEL: Final = "fracgpu.io/card-class"
# One label for each card class (shareable MiB of one card) on the node; the value is the number of
# such cards. A node may have several classes, which one `card-memory` label could not express.
CARD_CLASS_LABEL_PREFIX: Final = "fracgpu.io/card-class-"

# Taint of a node whose cards cannot be counted yet; whoever makes the pool's nodes sets it, and the
# agent takes it off. With this prefix cluster-autoscaler takes the node for one that still starts.
# Source: kubernetes/autoscaler, cluster-autoscaler/utils/taints.
STARTUP_TAINT: Final = "startup-taint.cluster-autoscaler.kubernetes.io/fracgpu"

# Label of a Binding with an assignment, which a policy selects on to leave other Bindings alone:
# the API server looks up the parameter of a policy before it evaluates any expression. Kubernetes
# 1.35 and later copy the label to the pod.
ASSIGNED_LABEL: Final = "fracgpu.io/assigned"
# Annotation of the scheduler's Lease: its term, and the UIDs of the pods of which the leader may
# have sent a Binding that is not answered yet.
BINDINGS_UNDER_WAY: Final = "fracgpu.io/bindings-under-way"
TERM_POLICY: Final = "fracgpu-lease-term"

# Namespace label: the dialects enabled there, joined by dots (a label value may not contain
# commas).
DIALECTS_LABEL: Final = "fracgpu.io/dialects"
# Namespace label: "true" where pod templates get a grant too, "false" where they get none.
GRANT_TEMPLATES_LABEL: Final = "fracgpu.io/grant-templates"

# Dynamic resource allocation: our driver, whose devices are cards; the classes of claims by users
# and by us; what a pod calls its claim, and how the names of such claims begin.
DRA_DRIVER: Final = "gpu.fracgpu.io"
DEVICE_CLASS: Final = "fracgpu"
DEVICE_CLASS_PLACED: Final = "fracgpu-placed"  # for claims of which we choose the cards
POD_CLAIM: Final = "fracgpu"
CLAIM_PREFIX: Final = "fracgpu-"
# Taints of a device, which keep claims off the card: it is cordoned or drained; a Move reserves it,
# and its value is the Move; a Move keeps it for a pod that waits, and its value is the pod's UID.
CORDONED_TAINT: Final = "fracgpu.io/cordoned"
RESERVED_TAINT: Final = "fracgpu.io/reserved"
KEPT_TAINT: Final = "fracgpu.io/kept"
FREED_ON: Final = "fracgpu.io/freed-on"  # of a claim: where others are preempted for it
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "fracgpu"
_MADE_FOR_A_POD: Final = re.compile(f"{CLAIM_PREFIX}[0-9a-f]{{10}}")


def is_made_for_a_pod(claim: str) -> bool:
    """Report whether only FracGPU gives a claim this name; a template's claims have longer ones."""
    return _MADE_FOR_A_POD.fullmatch(claim) is not None


# CDI (Container Device Interface): kind of the devices that Allocate names.
CDI_KIND: Final = "fracgpu.io/slot"

# Environment variables of a container that holds a slice.
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
NO_VISIBLE_DEVICES: Final = "void"  # NVIDIA's runtime gives nothing
ENV_AMD_VISIBLE_DEVICES: Final = "AMD_VISIBLE_DEVICES"  # read by AMD's container runtime
# Which cards a container gets from a vendor's runtime, and by how much a hook of NVIDIA's toolkit
# limits their memory: a pod that asks for a share sets none of them.
ENV_CARDS_AND_LIMITS: Final = frozenset(
    (
        ENV_VISIBLE_DEVICES,
        ENV_AMD_VISIBLE_DEVICES,
        "NVIDIA_GPU_MEMORY_REQUEST",
        "NVIDIA_GPU_MEMORY_LIMIT",
    )
)
ENV_MEM_MIB: Final = "FRACGPU_MEM_MIB"
ENV_CARD_MIB: Final = "FRACGPU_CARD_MIB"
ENV_CARDS: Final = "FRACGPU_CARDS"
# Read by programs written for other systems: gpushare, and HAMi's library.
ENV_ALIYUN_CONTAINER: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ENV_ALIYUN_DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
ENV_MEMORY_LIMIT_PREFIX: Final = "CUDA_DEVICE_MEMORY_LIMIT_"
ENV_SM_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
# Read by ROCm: which compute units a program may use; and the same by card, for people and for us.
ENV_CU_MASK: Final = "HSA_CU_MASK"
ENV_COMPUTE_UNITS: Final = "FRACGPU_COMPUTE_UNITS"

# Metrics of the node agent that others ask Prometheus for: the same for cards of every vendor.
METRIC_BUSY: Final = "fracgpu_card_util"
METRIC_ACTIVE: Final = "fracgpu_card_active_util"
METRIC_FREE: Final = "fracgpu_card_memory_free_mib"
METRIC_SHAREABLE: Final = "fracgpu_card_memory_shareable_mib"
METRIC_POWER: Final = "fracgpu_card_power_watts"
METRIC_POD_BUSY: Final = "fracgpu_pod_sm_util"
METRIC_POD_OVERUSE: Final = "fracgpu_pod_gpu_memory_overused_mib"
METRIC_COLLECTED: Final = "fracgpu_collect_timestamp_seconds"

SYSTEM_NAMESPACE: Final = "fracgpu-system"
CONFIG_MAP: Final = "fracgpu-config"
SCHEDULER_NAME: Final = "fracgpu-scheduler"
REBALANCER: Final = "fracgpu-rebalancer"  # its Deployment, and the Lease of its leader
