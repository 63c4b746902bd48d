"""vgpu-manager: a number of cards, and on each memory in MiB and cores in percent."""

from typing import Final

from fracgpu import names
from fracgpu.request.dialects.dialect import Dialect, DialectReading, Options, PodForDialects, keys
from fracgpu.request.dialects.preferences import (
    model_globs,
    not_offered,
    refuse_single_cards,
    strategy,
)
from fracgpu.request.dialects.shapes import CountMemoryCores

VGPU: Final = CountMemoryCores(
    number="nvidia.com/vgpu-number", memory="nvidia.com/vgpu-memory", cores="nvidia.com/vgpu-cores"
)
NODE_POLICY: Final = "nvidia.com/node-scheduler-policy"
CARD_POLICY: Final = "nvidia.com/device-scheduler-policy"
MEMORY_POLICY: Final = "nvidia.com/memory-scheduler-policy"
USE_UUID: Final = "nvidia.com/include-gpu-uuid"
AVOID_UUID: Final = "nvidia.com/exclude-gpu-uuid"
USE_TYPE: Final = "nvidia.com/include-gpu-type"
AVOID_TYPE: Final = "nvidia.com/exclude-gpu-type"
COMPUTE_POLICY: Final = "nvidia.com/vgpu-compute-policy"
TOPOLOGY: Final = "nvidia.com/device-topology-mode"

_IGNORED: Final = {
    MEMORY_POLICY: "FracGPU never oversells a card's memory",
    COMPUTE_POLICY: f"{names.ISOLATION} alone chooses what enforces a share",
    TOPOLOGY: f"{names.TOPOLOGY} alone chooses cards by their links",
}


def _read(pod: PodForDialects, _options: Options) -> DialectReading:
    requests = tuple(request for request in (VGPU.read(spec) for spec in pod.containers) if request)
    if requests:
        refuse_single_cards(pod.annotations, (USE_UUID, AVOID_UUID))
    preferred, warnings = strategy(
        pod.annotations, card=CARD_POLICY, node=NODE_POLICY, others=("none",)
    )
    return DialectReading(
        requests=requests,
        models=model_globs(pod.annotations, use=USE_TYPE, avoid=AVOID_TYPE),
        strategy=preferred,
        warnings=(*warnings, *not_offered(pod.annotations, _IGNORED)),
    )


VGPU_MANAGER: Final = Dialect(
    name="vgpu-manager",
    title="vgpu-manager",
    limits=keys(VGPU.number, VGPU.memory, VGPU.cores),
    annotations=keys(
        NODE_POLICY, CARD_POLICY, USE_UUID, AVOID_UUID, USE_TYPE, AVOID_TYPE, *_IGNORED
    ),
    family=("nvidia.com/vgpu-", "nvidia.com/include-gpu", "nvidia.com/exclude-gpu"),
    model_keys=(USE_TYPE, AVOID_TYPE),
    schedulers=frozenset({"vgpu-scheduler"}),
    read=_read,
)
