import pytest

from fracgpu.request.dialects.dialect import ONE_CARD
from fracgpu.request.dialects.systems.tencent import (
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    VCUDA_BURST,
    VCUDA_CORE,
    VCUDA_MEMORY,
)
from fracgpu.request.need import SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, check_refused, places

VCUDA_ROWS = {
    "percent of a card and memory in units of 256 MiB": Row(
        limits={VCUDA_CORE: "30", VCUDA_MEMORY: "32"},
        part=SliceRequest(container="train", mib=Mib(8192), cores=30),
    ),
    "memory alone": Row(
        limits={VCUDA_MEMORY: "4"},
        part=SliceRequest(container="train", mib=Mib(1024)),
    ),
    "hundreds are whole cards": Row(
        limits={VCUDA_CORE: "200"},
        part=SliceRequest(container="train", share=ONE_CARD, cards=2),
    ),
    "memory beside whole cards says nothing": Row(
        limits={VCUDA_CORE: "100", VCUDA_MEMORY: "4"},
        part=SliceRequest(container="train", share=ONE_CARD),
        warnings=(
            places(
                "L(tencent.com/vcuda-memory) has no effect beside whole cards, which come with all "
                "their memory; leave it out"
            ),
        ),
    ),
    "a burst is left aside and said so": Row(
        limits={VCUDA_MEMORY: "4"},
        annotations={VCUDA_BURST: "50"},
        part=SliceRequest(container="train", mib=Mib(1024)),
        warnings=(
            "annotation tencent.com/vcuda-core-limit is '50', which is ignored: FracGPU grants "
            "the request and no burst above it",
        ),
    ),
}

QGPU_ROWS = {
    "percent of a card and memory in GB, which are GiB": Row(
        limits={QGPU_CORE: "25", QGPU_MEMORY: "6"},
        part=SliceRequest(container="train", mib=Mib(6144), cores=25),
    ),
    "hundreds are whole cards": Row(
        limits={QGPU_CORE: "100"},
        part=SliceRequest(container="train", share=ONE_CARD),
    ),
    "greedy core is core shared freely": Row(
        limits={QGPU_GREEDY: "25", QGPU_MEMORY: "6"},
        part=SliceRequest(container="train", mib=Mib(6144)),
    ),
}


VCUDA_WANT = "want percent of one card from 1 to 99, or 100 for each whole card up to 6400"
QGPU_WANT = (
    "want percent of one card from 5 to 99 in steps of 5, or 100 for each whole card up to 6400"
)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({VCUDA_CORE: "150"}, f"L(tencent.com/vcuda-core) is '150'; {VCUDA_WANT}"),
        ({VCUDA_CORE: "6500"}, f"L(tencent.com/vcuda-core) is '6500'; {VCUDA_WANT}"),
        (
            {VCUDA_CORE: "30"},
            "L(tencent.com/vcuda-core) is '30'; want tencent.com/vcuda-memory beside it; write "
            'fracgpu.io/fraction: "30%" for a share of a card',
        ),
    ],
)
def test_what_vcuda_cannot_mean_is_refused(limits: dict[str, str], sentence: str) -> None:
    check_refused("vcuda", limits, {}, sentence)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {QGPU_CORE: "7", QGPU_MEMORY: "6"},
            f"L(tke.cloud.tencent.com/qgpu-core) is '7'; {QGPU_WANT}",
        ),
        (
            {QGPU_CORE: "250"},
            f"L(tke.cloud.tencent.com/qgpu-core) is '250'; {QGPU_WANT}",
        ),
        (
            {QGPU_CORE: "5", QGPU_GREEDY: "5", QGPU_MEMORY: "6"},
            "L(tke.cloud.tencent.com/qgpu-core-greedy) is '5'; want either it or "
            "L(tke.cloud.tencent.com/qgpu-core), not both: a guaranteed core is not best effort",
        ),
        (
            {QGPU_GREEDY: "5"},
            "L(tke.cloud.tencent.com/qgpu-core-greedy) is '5'; want "
            "tke.cloud.tencent.com/qgpu-memory beside it",
        ),
    ],
)
def test_what_qgpu_cannot_mean_is_refused(limits: dict[str, str], sentence: str) -> None:
    check_refused("qgpu", limits, {}, sentence)
