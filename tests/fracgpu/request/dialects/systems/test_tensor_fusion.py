import pytest

from fracgpu import names
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects import Translation
from fracgpu.request.dialects.dialect import Options
from fracgpu.request.dialects.systems.tensor_fusion import (
    COMPUTE,
    COMPUTE_LIMIT,
    CONTAINER,
    COUNT,
    ENABLED,
    INDICES,
    MEMORY,
    MEMORY_LIMIT,
    MODEL,
    TFLOPS,
)
from fracgpu.request.need import SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, a_pod, check_refused, read, refusal

ONE = SliceRequest(container="train", mib=Mib(4096))
NO_BURST = "which is ignored: FracGPU grants the request and no burst above it"

ROWS = {
    "memory": Row(
        annotations={MEMORY: "4Gi", MEMORY_LIMIT: "4Gi"},
        part=ONE,
        raw="tensor-fusion.ai/vram-request=4Gi",
    ),
    "memory and percent of compute on several GPUs": Row(
        annotations={MEMORY: "4Gi", COMPUTE: "30", COMPUTE_LIMIT: "30", COUNT: "2"},
        part=SliceRequest(container="train", mib=Mib(4096), cores=30, cards=2),
        raw="tensor-fusion.ai/vram-request=4Gi, tensor-fusion.ai/compute-percent-request=30, "
        "tensor-fusion.ai/gpu-count=2",
    ),
    "a model": Row(
        annotations={MEMORY: "4Gi", MODEL: "A100"},
        part=ONE,
        raw="tensor-fusion.ai/vram-request=4Gi",
        models=("*A100*",),
    ),
    "bursts are left aside and said so": Row(
        annotations={MEMORY: "4Gi", MEMORY_LIMIT: "8Gi", COMPUTE_LIMIT: "80"},
        part=ONE,
        raw="tensor-fusion.ai/vram-request=4Gi",
        warnings=(
            f"annotation tensor-fusion.ai/vram-limit is '8Gi', {NO_BURST}",
            f"annotation tensor-fusion.ai/compute-percent-limit is '80', {NO_BURST}",
        ),
    ),
    "what it has and we have not": Row(
        annotations={
            MEMORY: "4Gi",
            TFLOPS: "100",
            "tensor-fusion.ai/isolation": "hard",
            "tensor-fusion.ai/qos": "high",
            "tensor-fusion.ai/gpupool": "blue",
        },
        part=ONE,
        raw="tensor-fusion.ai/vram-request=4Gi",
        warnings=(
            "annotation tensor-fusion.ai/tflops-request is '100', which is ignored: FracGPU "
            "counts compute in percent of a card; write fracgpu.io/cores instead",
            "annotation tensor-fusion.ai/isolation is 'hard', which is ignored: "
            "fracgpu.io/isolation alone chooses what enforces a share",
            "annotation tensor-fusion.ai/qos is 'high', which is ignored: FracGPU has no "
            "priorities on a card; a PriorityClass is for pods",
            "annotation tensor-fusion.ai/gpupool is 'blue', which is ignored: FracGPU has no "
            "pools; a nodeSelector chooses nodes",
        ),
    ),
}


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        (
            {COMPUTE: "30"},
            "annotation tensor-fusion.ai/compute-percent-request is '30'; want "
            "tensor-fusion.ai/vram-request beside it",
        ),
        (
            {MEMORY: "4Gi", MEMORY_LIMIT: "2Gi"},
            "annotation tensor-fusion.ai/vram-limit is '2Gi'; want at least the request, 4Gi",
        ),
        (
            {MEMORY: "4Gi", COMPUTE: "30", COMPUTE_LIMIT: "20"},
            "annotation tensor-fusion.ai/compute-percent-limit is '20'; want at least the request, "
            "30",
        ),
        (
            {MEMORY: "4Gi", INDICES: "0,1"},
            "annotation tensor-fusion.ai/gpu-indices is '0,1'; want no choice of single cards: "
            "FracGPU chooses the card; choose by model with fracgpu.io/model",
        ),
        (
            {MEMORY: "4Gi", CONTAINER: "a,b"},
            "annotation tensor-fusion.ai/inject-container is 'a,b'; want the name of one of this "
            "pod's containers: train; use fracgpu.io/memory with 'container=item' pairs for "
            "several",
        ),
    ],
)
def test_what_tensor_fusion_cannot_mean_here_is_refused(
    annotations: dict[str, str], sentence: str
) -> None:
    check_refused("tensor-fusion", {}, annotations, sentence)


def test_one_of_several_containers_has_to_be_named() -> None:
    side = ContainerSpec(name="side")
    named = a_pod({}, side, annotations={MEMORY: "4Gi", CONTAINER: "side"})
    unnamed = a_pod({}, side, annotations={MEMORY: "4Gi"})

    assert read(named, "tensor-fusion").annotations == {"fracgpu.io/memory": "side=4096Mi"}
    assert refusal(unnamed, "tensor-fusion") == (
        "annotation tensor-fusion.ai/inject-container is 'absent'; want the name of one of this "
        "pod's containers: train, side; use fracgpu.io/memory with 'container=item' pairs for "
        "several"
    )


def test_pods_of_a_running_operator_are_left_alone() -> None:
    pod = a_pod(annotations={MEMORY: "4Gi"}, labels={ENABLED: "true"})
    runs = Options(tensor_fusion_runs=True)

    left = Translation(
        warnings=(
            "tensor-fusion.ai/vram-request of TensorFusion is ignored, as a label of the pod "
            "or of its namespace says",
        )
    )
    assert read(pod, "tensor-fusion", options=runs) == left
    assert read(pod, options=runs) == left
    assert read(pod, "tensor-fusion").request is not None


def test_where_bursts_are_granted_the_memory_limit_is_ours_and_that_of_compute_is_not() -> None:
    annotations = {MEMORY: "4Gi", MEMORY_LIMIT: "8Gi", COMPUTE_LIMIT: "80"}
    found = read(a_pod(annotations=annotations), "tensor-fusion", options=Options(burst=True))

    assert found.request is not None
    (part,) = found.request.slices
    assert (part.mib, part.limit_mib) == (4096, 8192)
    assert found.annotations == {names.MEMORY: "4096Mi", names.MEMORY_LIMIT: "8192Mi"}
    assert found.origin.endswith("vram-request=4Gi, tensor-fusion.ai/vram-limit=8Gi")
    (warning,) = found.warnings
    assert warning == f"annotation tensor-fusion.ai/compute-percent-limit is '80', {NO_BURST}"
