"""Other device plugins that offer the cards of a node: only one can count them."""

from collections.abc import Mapping
from typing import Final

from fracgpu.k8s.quantity import integer_amount

# Resources under which other device plugins offer the cards that we would share.
_OTHERS: Final = (
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "nvidia.com/vgpu",
    "amd.com/gpu",
    # AMD's plugin with its naming strategy "mixed": compute and memory partition.
    *(f"amd.com/{partition}_nps" for partition in ("spx", "dpx", "tpx", "qpx", "cpx")),
    "aliyun.com/gpu-",
    "tencent.com/vcuda-",
    "elasticgpu.io/",
    "volcano.sh/gpu-",
    "volcano.sh/vgpu-",
    "koordinator.sh/gpu",
    "k8s.amazonaws.com/vgpu",
    "tensor-fusion.ai/",
)


def offered_by_others(allocatable: Mapping[str, str]) -> dict[str, int]:
    """Return the resources of other plugins on a node, by what is allocatable.

    A plugin that was removed stays in the node's status with 0, which is not returned.
    """
    counts = {
        resource: integer_amount(allocatable[resource]) or 0
        for resource in allocatable
        if resource.startswith(_OTHERS)
    }
    return {resource: amount for resource, amount in counts.items() if amount > 0}
