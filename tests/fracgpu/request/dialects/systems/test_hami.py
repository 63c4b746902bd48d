from fractions import Fraction

import pytest

from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects import PodForDialects, Translation
from fracgpu.request.dialects.dialect import ONE_CARD, Options
from fracgpu.request.dialects.systems.hami import (
    AVOID_TYPE,
    AVOID_UUID,
    CARD_POLICY,
    CORES,
    GPU,
    MEMORY,
    MEMORY_PERCENT,
    MODE,
    NODE_POLICY,
    NUMA_BIND,
    OPT_OUT,
    PRIORITY,
    USE_TYPE,
    USE_UUID,
)
from fracgpu.request.need import SliceRequest, Strategy
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, a_pod, check_refused, places, read

ONE_GIB = SliceRequest(container="train", mib=Mib(1024))
ASKS = {GPU: "1", MEMORY: "1024"}

ROWS = {
    "cards, memory of each and cores of each": Row(
        limits={GPU: "2", MEMORY: "3k", CORES: "30"},
        part=SliceRequest(container="train", mib=Mib(3000), cores=30, cards=2),
    ),
    "memory in units of the cluster's factor": Row(
        limits={GPU: "1", MEMORY: "10"},
        options=Options(hami_memory_factor=100),
        part=SliceRequest(container="train", mib=Mib(1000)),
    ),
    "percent of the card's memory": Row(
        limits={GPU: "1", MEMORY_PERCENT: "33"},
        part=SliceRequest(container="train", share=Fraction(33, 100)),
    ),
    "a count alone is whole cards": Row(
        limits={GPU: "2"},
        part=SliceRequest(container="train", share=ONE_CARD, cores=100, cards=2),
    ),
    "memory alone is of as many cards as the cluster says": Row(
        limits={MEMORY: "1024"},
        options=Options(hami_default_count=2),
        part=SliceRequest(container="train", mib=Mib(1024), cards=2),
    ),
    "cores alone leave all of the memory": Row(
        limits={CORES: "30"},
        part=SliceRequest(container="train", share=ONE_CARD, cores=30),
    ),
    "no cores are cores shared freely": Row(
        limits={MEMORY: "1024", CORES: "0"},
        part=ONE_GIB,
    ),
    "a priority is left aside and said so": Row(
        limits={**ASKS, PRIORITY: "0"},
        part=ONE_GIB,
        warnings=(
            places(
                "L(nvidia.com/priority) is '0', which is ignored: FracGPU has no priorities "
                "on a card; a PriorityClass is for pods"
            ),
        ),
    ),
    "models wanted and models avoided": Row(
        limits=ASKS,
        annotations={USE_TYPE: "A100, Tesla V100", AVOID_TYPE: "PCIe"},
        part=ONE_GIB,
        models=("*A100*", "*Tesla-V100*", "!*PCIe*"),
    ),
    "one policy for cards and nodes": Row(
        limits=ASKS,
        annotations={CARD_POLICY: "spread", NODE_POLICY: "spread"},
        part=ONE_GIB,
        strategy=Strategy.SPREAD,
    ),
    "a policy for nodes alone": Row(
        limits=ASKS,
        annotations={NODE_POLICY: "binpack"},
        part=ONE_GIB,
        strategy=Strategy.PACK,
    ),
    "two policies that differ": Row(
        limits=ASKS,
        annotations={CARD_POLICY: "spread", NODE_POLICY: "binpack"},
        part=ONE_GIB,
        strategy=Strategy.SPREAD,
        warnings=(
            "annotation hami.io/node-scheduler-policy is 'binpack' and annotation "
            "hami.io/gpu-scheduler-policy is 'spread'; FracGPU has one policy for both and takes "
            "the card's",
        ),
    ),
    "what HAMi has and we have not": Row(
        limits=ASKS,
        annotations={CARD_POLICY: "topology-aware", NUMA_BIND: "true", MODE: "mps"},
        part=ONE_GIB,
        warnings=(
            "annotation nvidia.com/vgpu-mode is 'mps', which is ignored: fracgpu.io/isolation "
            "alone chooses what enforces a share",
            "annotation nvidia.com/numa-bind is 'true', which is ignored: FracGPU does not "
            "bind pods to NUMA nodes",
            "annotation hami.io/gpu-scheduler-policy is 'topology-aware', which FracGPU has no "
            "match for, so the cluster's default holds; write fracgpu.io/placement instead",
        ),
    ),
    "a wish that is no wish": Row(
        limits=ASKS,
        annotations={NUMA_BIND: "false"},
        part=ONE_GIB,
    ),
}


@pytest.mark.parametrize(
    ("limits", "annotations", "sentence"),
    [
        (
            {MEMORY: "10", MEMORY_PERCENT: "10"},
            {},
            "L(nvidia.com/gpumem) is '10'; want either it or L(nvidia.com/gpumem-percentage), not "
            "both: they mean the same",
        ),
        (
            {GPU: "1", PRIORITY: "2"},
            {},
            "L(nvidia.com/priority) is '2'; want 0 for high or 1 for low",
        ),
        (
            ASKS,
            {USE_UUID: "GPU-1"},
            "annotation nvidia.com/use-gpuuuid is 'GPU-1'; want no choice of single cards: FracGPU "
            "chooses the card; choose by model with fracgpu.io/model",
        ),
        (
            ASKS,
            {AVOID_UUID: "GPU-1"},
            "annotation nvidia.com/nouse-gpuuuid is 'GPU-1'; want no choice of single cards: "
            "FracGPU chooses the card; choose by model with fracgpu.io/model",
        ),
        (
            ASKS,
            {MODE: "mig"},
            "annotation nvidia.com/vgpu-mode is 'mig'; want one of hami-core, mps; MIG slices "
            "are not shares of a card",
        ),
        (
            ASKS,
            {NUMA_BIND: "yes"},
            "annotation nvidia.com/numa-bind is 'yes'; want 'true' or 'false'",
        ),
        (
            ASKS,
            {CARD_POLICY: "binpak"},
            "annotation hami.io/gpu-scheduler-policy is 'binpak'; want one of binpack, spread, "
            "topology-aware, mutex",
        ),
    ],
)
def test_what_hami_cannot_mean_is_refused(
    limits: dict[str, str], annotations: dict[str, str], sentence: str
) -> None:
    check_refused("hami", limits, annotations, sentence)


@pytest.mark.parametrize("place", ["labels", "namespace_labels"])
def test_a_pod_or_namespace_that_opted_out_of_hami_is_left_alone(place: str) -> None:
    spec = ContainerSpec(name="train", limits=ASKS, requests=ASKS)
    ignored = {OPT_OUT: "ignore"}
    pod = (
        PodForDialects(containers=(spec,), labels=ignored)
        if place == "labels"
        else PodForDialects(containers=(spec,), namespace_labels=ignored)
    )

    left = Translation(
        warnings=(
            "nvidia.com/gpumem of HAMi is ignored, as a label of the pod or of its namespace says",
        )
    )
    assert read(pod, "hami") == left
    assert read(pod) == left


def test_a_constraint_without_a_request_is_answered_in_our_words() -> None:
    pod = a_pod(annotations={USE_TYPE: "A100", USE_UUID: "GPU-1"})

    assert read(pod, "hami") == Translation(
        warnings=(
            "nvidia.com/use-gputype, nvidia.com/use-gpuuuid have no effect without a request of "
            'HAMi; write fracgpu.io/model: "*A100*" in place of nvidia.com/use-gputype, '
            "nvidia.com/use-gpuuuid",
        )
    )
