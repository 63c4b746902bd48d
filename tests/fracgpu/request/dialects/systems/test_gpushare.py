import pytest

from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.dialect import ONE_CARD, MemoryUnit, Options
from fracgpu.request.dialects.systems.gpushare import COUNT, MEMORY
from fracgpu.request.need import SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import (
    Row,
    a_pod,
    a_spec,
    check_refused,
    read,
    refusal,
)

IN_MIB = Options(gpushare_unit=MemoryUnit.MIB)

ROWS = {
    "gib by default": Row(
        limits={MEMORY: "3"},
        part=SliceRequest(container="train", mib=Mib(3072)),
    ),
    "mib where the cluster counts so": Row(
        limits={MEMORY: "8k"},
        options=IN_MIB,
        part=SliceRequest(container="train", mib=Mib(8000)),
    ),
    "whole cards": Row(
        limits={COUNT: "2"},
        part=SliceRequest(container="train", share=ONE_CARD, cards=2),
    ),
    "a total over several cards": Row(
        limits={MEMORY: "8", COUNT: "2"},
        part=SliceRequest(container="train", mib=Mib(4096), cards=2),
    ),
    "a total over as many cards as the pod's label says": Row(
        limits={MEMORY: "8"},
        labels={COUNT: "4"},
        part=SliceRequest(container="train", mib=Mib(2048), cards=4),
    ),
}


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {MEMORY: "8Gi"},
            "L(aliyun.com/gpu-mem) is '8Gi'; want whole GiB above 0 and at most 16384, e.g. '8' "
            "for 8192 MiB; this key counts GiB, so write '8'",
        ),
        (
            {MEMORY: "3", COUNT: "2"},
            "L(aliyun.com/gpu-mem) is '3'; want a number of GiB that divides evenly over 2 cards; "
            "'2' would do",
        ),
    ],
)
def test_what_gpushare_cannot_mean_is_refused(limits: dict[str, str], sentence: str) -> None:
    check_refused("gpushare", limits, {}, sentence)


def test_a_label_that_is_no_number_of_cards_is_named() -> None:
    pod = a_pod({MEMORY: "4"}, labels={COUNT: "two"})

    assert refusal(pod, "gpushare") == (
        "label aliyun.com/gpu-count is 'two'; want a whole number of cards from 1 to 64, e.g. '1'"
    )


def test_each_container_is_read_by_itself_and_in_order() -> None:
    side = ContainerSpec(name="side")
    pod = a_pod({MEMORY: "3"}, side, a_spec({MEMORY: "1"}, name="eval"))

    result = read(pod, "gpushare")

    assert dict(result.annotations) == {"fracgpu.io/memory": "train=3072Mi, eval=1024Mi"}
    assert dict(result.removals) == {"train": (MEMORY,), "eval": (MEMORY,)}
    assert result.origin == (
        "train from gpushare: aliyun.com/gpu-mem=3; eval from gpushare: aliyun.com/gpu-mem=1"
    )
