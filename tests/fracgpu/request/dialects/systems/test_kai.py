from fractions import Fraction

import pytest

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.dialects import Options, PodForDialects, Translation
from fracgpu.request.dialects.systems.kai import CONTAINER, DEVICES, FRACTION, MEMORY, MPS
from fracgpu.request.need import SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, a_pod, check_refused, read, refusal

REQUEST = "nvidia.cdi.k8s.io/train.gpu-memory.request"
LIMIT = "nvidia.cdi.k8s.io/train.gpu-memory.limit"
SHIPPED_REQUEST = "nvidia.com/container.train.gpu-memory.request"
SHIPPED_LIMIT = "nvidia.com/container.train.gpu-memory.limit"
MODE = "nvidia.com/container.train.gpu-compute.mode"
PORTION = "kai.scheduler/container.train.gpu-memory.portion.limit"

ROWS = {
    "a fraction": Row(
        annotations={FRACTION: "0.5"},
        part=SliceRequest(container="train", share=Fraction(1, 2)),
    ),
    "memory in MiB": Row(
        annotations={MEMORY: "2000"},
        part=SliceRequest(container="train", mib=Mib(2000)),
    ),
    "a fraction of several cards": Row(
        annotations={FRACTION: "0.25", DEVICES: "2"},
        part=SliceRequest(container="train", share=Fraction(1, 4), cards=2),
    ),
    "a container by name": Row(
        annotations={MEMORY: "512", CONTAINER: "train"},
        part=SliceRequest(container="train", mib=Mib(512)),
    ),
    "mps is left aside and said so": Row(
        annotations={FRACTION: "0.5", MPS: "true"},
        part=SliceRequest(container="train", share=Fraction(1, 2)),
        raw="gpu-fraction=0.5",
        warnings=(
            "annotation mps is 'true', which is ignored: fracgpu.io/isolation alone "
            "chooses what enforces a share",
        ),
    ),
    "no mps is no wish": Row(
        annotations={FRACTION: "0.5", MPS: "false"},
        part=SliceRequest(container="train", share=Fraction(1, 2)),
        raw="gpu-fraction=0.5",
    ),
    "memory by container name": Row(
        annotations={REQUEST: "30Gi"},
        part=SliceRequest(container="train", mib=Mib(30720)),
    ),
    "a limit that equals its request": Row(
        annotations={REQUEST: "30Gi", LIMIT: "30720Mi"},
        part=SliceRequest(container="train", mib=Mib(30720)),
    ),
    "memory by container name, as shipped": Row(
        annotations={SHIPPED_REQUEST: "30Gi", SHIPPED_LIMIT: "30Gi", MODE: "time-slicing"},
        part=SliceRequest(container="train", mib=Mib(30720)),
        raw=f"{SHIPPED_REQUEST}=30Gi, {SHIPPED_LIMIT}=30Gi",
    ),
    "a limit alone is the request": Row(
        annotations={SHIPPED_LIMIT: "30Gi"},
        part=SliceRequest(container="train", mib=Mib(30720)),
    ),
    "memory of several cards, as shipped": Row(
        annotations={SHIPPED_REQUEST: "30Gi", DEVICES: "2"},
        part=SliceRequest(container="train", mib=Mib(30720), cards=2),
    ),
    "what KAI's admission wrote beside its older key": Row(
        annotations={MEMORY: "2048", SHIPPED_REQUEST: "2Gi"},
        part=SliceRequest(container="train", mib=Mib(2048)),
        raw=f"{SHIPPED_REQUEST}=2Gi",
    ),
    "a shipped burst and SM sharing are left aside and said so": Row(
        annotations={SHIPPED_REQUEST: "30Gi", SHIPPED_LIMIT: "40Gi", MODE: "sm-sharing"},
        part=SliceRequest(container="train", mib=Mib(30720)),
        raw=f"{SHIPPED_REQUEST}=30Gi, {SHIPPED_LIMIT}=40Gi",
        warnings=(
            f"annotation {SHIPPED_LIMIT} is '40Gi', which is ignored: FracGPU grants the request "
            "and no burst above it",
            f"annotation {MODE} is 'sm-sharing', which is ignored: fracgpu.io/isolation alone "
            "chooses what enforces a share",
        ),
    ),
    "a burst is left aside and said so": Row(
        annotations={REQUEST: "30Gi", LIMIT: "40Gi", PORTION: "0.9"},
        part=SliceRequest(container="train", mib=Mib(30720)),
        raw=f"{REQUEST}=30Gi, {LIMIT}=40Gi",
        warnings=(
            f"annotation {LIMIT} is '40Gi', which is ignored: FracGPU grants the request and "
            "no burst above it",
            f"annotation {PORTION} is '0.9', which is ignored: FracGPU grants the request and "
            "no burst above it",
        ),
    ),
}


PART = "a share of one card above 0 and below 1, e.g. '0.5'"


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({FRACTION: ".5"}, f"annotation gpu-fraction is '.5'; want {PART}; write '0.5'"),
        ({FRACTION: "50%"}, f"annotation gpu-fraction is '50%'; want {PART}; write '0.5'"),
        (
            {FRACTION: "1"},
            f"annotation gpu-fraction is '1'; want {PART}; write fracgpu.io/fraction: \"1\" for a "
            "whole card",
        ),
        (
            {FRACTION: "0.5", MEMORY: "10"},
            "annotation gpu-fraction is '0.5'; want either it or annotation gpu-memory, not both: "
            "they mean the same",
        ),
        (
            {DEVICES: "2"},
            "annotation gpu-fraction-num-devices is '2'; want gpu-fraction or gpu-memory beside it",
        ),
        (
            {FRACTION: "0.5", CONTAINER: "trian"},
            "annotation gpu-fraction-container-name is 'trian'; want the name of one of this pod's "
            "containers: train; did you mean 'train'?",
        ),
        (
            {"nvidia.com/container.train.gpu-memory.requests": "4Gi"},
            "annotation nvidia.com/container.train.gpu-memory.requests is '4Gi'; want a setting "
            "that KAI has: gpu-memory.request, gpu-memory.limit, gpu-compute.mode; did you mean "
            "'gpu-memory.request'?",
        ),
        (
            {"nvidia.com/container.trian.gpu-compute.mode": "sm-sharing"},
            "annotation nvidia.com/container.trian.gpu-compute.mode is 'sm-sharing'; want the name "
            "of one of this pod's containers: train; did you mean 'train'?",
        ),
        (
            {SHIPPED_REQUEST: "4Gi", MODE: "time_slicing"},
            f"annotation {MODE} is 'time_slicing'; want time-slicing or sm-sharing; did you mean "
            "'time-slicing'?",
        ),
        (
            {SHIPPED_REQUEST: "4Gi", SHIPPED_LIMIT: "2Gi"},
            f"annotation {SHIPPED_LIMIT} is '2Gi'; want at least the request, 4Gi",
        ),
        (
            {REQUEST: "4Gi", SHIPPED_REQUEST: "4Gi"},
            f"annotation {REQUEST} is '4Gi'; want either it or annotation {SHIPPED_REQUEST}, not "
            "both: they mean the same",
        ),
        (
            {MEMORY: "2048", SHIPPED_REQUEST: "4Gi"},
            f"annotation gpu-memory is '2048'; want either it or annotation {SHIPPED_REQUEST}, not "
            "both: they mean the same",
        ),
        (
            {SHIPPED_REQUEST: "4Gi", "nvidia.com/container.train.gpus.devices": "0"},
            "annotation nvidia.com/container.train.gpus.devices is '0'; want no card injected by "
            "the container runtime beside a request: FracGPU chooses the card; leave it out",
        ),
        (
            {FRACTION: "0.5", REQUEST: "4Gi"},
            f"annotation gpu-fraction is '0.5'; want either it or annotation {REQUEST}, not both: "
            "they mean the same",
        ),
    ],
)
def test_what_kai_cannot_mean_is_refused(annotations: dict[str, str], sentence: str) -> None:
    check_refused("kai", {}, annotations, sentence)


def test_a_share_and_a_whole_card_in_one_pod_are_refused_as_kai_does() -> None:
    check_refused(
        "kai",
        {"nvidia.com/gpu": "1"},
        {FRACTION: "0.5"},
        "annotation gpu-fraction is '0.5'; want either it or L(nvidia.com/gpu), not both in one "
        "pod; a pod gets a share of a card or whole cards",
    )


ORDER = "nvidia.cdi.k8s.io/container.train"


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "runai-scheduler"])
def test_a_pod_of_the_kai_scheduler_is_left_to_kai_and_warned_of_whatever_it_says(
    scheduler: str,
) -> None:
    spec = ContainerSpec(name="train", limits={"nvidia.com/gpumem": "oops"})
    pod = PodForDialects(
        containers=(spec,),
        annotations={FRACTION: "NaN", ORDER: "gpu=0"},
        scheduler_name=scheduler,
    )
    left = Translation(
        warnings=(
            f"spec.schedulerName is '{scheduler}', so the pod is left to KAI: FracGPU reads no "
            "nvidia.com/gpumem, gpu-fraction here and does not know of the card it gets; have the "
            "administrator turn kai on and set kaiRuns to false to take such pods over",
            f"annotation {ORDER} injects cards that FracGPU does not account for; write "
            "fracgpu.io/fraction or fracgpu.io/memory instead",
        )
    )

    assert read(pod, "kai", "hami") == left
    assert read(pod) == left
    assert read(pod, "hami", options=Options(kai_runs=False)) == left, "the dialect is off"


def test_a_pod_of_the_kai_scheduler_is_taken_over_where_a_setting_says_so() -> None:
    pod = PodForDialects(
        containers=(ContainerSpec(name="train"),),
        annotations={FRACTION: "0.5"},
        labels={"kai.scheduler/queue": "research"},
        scheduler_name="kai-scheduler",
    )

    found = read(pod, "kai", options=Options(kai_runs=False))

    assert found.annotations == {"fracgpu.io/fraction": "0.5"}
    assert found.foreign_scheduler == "kai-scheduler"
    assert found.warnings == ("label kai.scheduler/queue of KAI has no meaning for FracGPU",)


def test_a_fraction_is_the_first_app_containers_and_an_init_container_can_be_named() -> None:
    specs = (ContainerSpec(name="load", kind=ContainerKind.INIT), *a_pod().containers)
    unnamed = PodForDialects(containers=specs, annotations={FRACTION: "0.5"})
    named = PodForDialects(containers=specs, annotations={FRACTION: "0.5", CONTAINER: "load"})

    assert read(unnamed, "kai").annotations == {"fracgpu.io/fraction": "train=0.5"}
    assert read(named, "kai").annotations == {"fracgpu.io/fraction": "load=0.5"}


def test_mps_alone_is_no_word_of_kai() -> None:
    assert read(a_pod(annotations={MPS: "true"})) == Translation()
    assert read(a_pod(annotations={MPS: "true"}), "kai") == Translation()


def test_a_pod_without_containers_gets_a_reason() -> None:
    assert refusal(PodForDialects(annotations={FRACTION: "0.5"}), "kai") == (
        "annotation gpu-fraction is 'a pod without containers'; want a pod with at least one "
        "container"
    )


BURST = Options(burst=True)


@pytest.mark.parametrize(
    ("annotations", "part", "written"),
    [
        (
            {SHIPPED_REQUEST: "30Gi", SHIPPED_LIMIT: "40Gi"},
            SliceRequest(container="train", mib=Mib(30 * 1024), limit_mib=Mib(40 * 1024)),
            {names.MEMORY: "30720Mi", names.MEMORY_LIMIT: "40960Mi"},
        ),
        (
            {FRACTION: "0.5", PORTION: "0.8"},
            SliceRequest(container="train", share=Fraction(1, 2), limit_share=Fraction(4, 5)),
            {names.FRACTION: "0.5", names.FRACTION_LIMIT: "0.8"},
        ),
        (
            {FRACTION: "0.5", PORTION: "0.5"},
            SliceRequest(container="train", share=Fraction(1, 2)),
            {names.FRACTION: "0.5"},
        ),
        (
            {FRACTION: "0.5", PORTION: "1"},
            SliceRequest(container="train", share=Fraction(1, 2), limit_share=Fraction(1)),
            {names.FRACTION: "0.5", names.FRACTION_LIMIT: "1"},
        ),
    ],
)
def test_where_bursts_are_granted_limits_are_ours(
    annotations: dict[str, str], part: SliceRequest, written: dict[str, str]
) -> None:
    found = read(a_pod(annotations=annotations), "kai", options=BURST)

    assert found.request is not None
    assert (found.request.slices, found.annotations, found.warnings) == ((part,), written, ())
    # What one admission writes passes the next one unchanged.
    again = read(a_pod(annotations={**annotations, **written}), "kai", options=BURST)
    assert (again.request, again.annotations) == (found.request, {})


def test_a_limit_as_a_share_of_a_card_needs_a_request_as_one() -> None:
    for annotations in (
        {MEMORY: "2000", PORTION: "0.8"},
        {FRACTION: "0.5", PORTION.replace("train", "other"): "0.8"},
    ):
        found = read(a_pod(annotations=annotations), "kai", options=BURST)
        assert "no burst above it" in found.warnings[0]
    for text, wanted in (
        ("0.4", "at least the request, 0.5"),
        ("1.5", "above 0 and at most 1"),
        ("80%", "write '0.8'"),
        ("80.123456789%", "write '0.801234568'"),
        ("0.8012345678", "a share of one card"),
    ):
        with pytest.raises(RequestError, match=wanted):
            read(a_pod(annotations={FRACTION: "0.5", PORTION: text}), "kai", options=BURST)
