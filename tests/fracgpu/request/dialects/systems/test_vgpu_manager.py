import pytest

from fracgpu.request.dialects.dialect import ONE_CARD
from fracgpu.request.dialects.systems.vgpu_manager import (
    AVOID_TYPE,
    CARD_POLICY,
    COMPUTE_POLICY,
    MEMORY_POLICY,
    NODE_POLICY,
    TOPOLOGY,
    USE_TYPE,
    USE_UUID,
    VGPU,
)
from fracgpu.request.need import SliceRequest, Strategy
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, check_refused

ROWS = {
    "cards, memory of each and cores of each": Row(
        limits={VGPU.number: "2", VGPU.memory: "2048", VGPU.cores: "50"},
        part=SliceRequest(container="train", mib=Mib(2048), cores=50, cards=2),
    ),
    "a number alone": Row(
        limits={VGPU.number: "1"},
        part=SliceRequest(container="train", share=ONE_CARD),
    ),
    "models and a policy": Row(
        limits={VGPU.number: "1"},
        annotations={
            USE_TYPE: "A10",
            AVOID_TYPE: "A100",
            CARD_POLICY: "binpack",
            NODE_POLICY: "none",
        },
        part=SliceRequest(container="train", share=ONE_CARD),
        models=("*A10*", "!*A100*"),
        strategy=Strategy.PACK,
        warnings=(
            "annotation nvidia.com/node-scheduler-policy is 'none', which FracGPU has no match "
            "for, so the cluster's default holds; write fracgpu.io/placement instead",
        ),
    ),
    "what it has and we have not": Row(
        limits={VGPU.number: "1"},
        annotations={MEMORY_POLICY: "virtual", COMPUTE_POLICY: "fixed", TOPOLOGY: "link"},
        part=SliceRequest(container="train", share=ONE_CARD),
        warnings=(
            "annotation nvidia.com/memory-scheduler-policy is 'virtual', which is ignored: "
            "FracGPU never oversells a card's memory",
            "annotation nvidia.com/vgpu-compute-policy is 'fixed', which is ignored: "
            "fracgpu.io/isolation alone chooses what enforces a share",
            "annotation nvidia.com/device-topology-mode is 'link', which is ignored: "
            "fracgpu.io/topology alone chooses cards by their links",
        ),
    ),
}


@pytest.mark.parametrize(
    ("limits", "annotations", "sentence"),
    [
        (
            {VGPU.memory: "10"},
            {},
            "L(nvidia.com/vgpu-memory) is '10'; want nvidia.com/vgpu-number beside it",
        ),
        (
            {VGPU.number: "1"},
            {USE_UUID: "GPU-1"},
            "annotation nvidia.com/include-gpu-uuid is 'GPU-1'; want no choice of single cards: "
            "FracGPU chooses the card; choose by model with fracgpu.io/model",
        ),
    ],
)
def test_what_vgpu_manager_cannot_mean_here_is_refused(
    limits: dict[str, str], annotations: dict[str, str], sentence: str
) -> None:
    check_refused("vgpu-manager", limits, annotations, sentence)
