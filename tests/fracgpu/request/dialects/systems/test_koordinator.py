from fractions import Fraction

import pytest

from fracgpu.request.dialects.dialect import ONE_CARD
from fracgpu.request.dialects.systems.koordinator import CORE, GPU, MEMORY, RATIO, SHARED
from fracgpu.request.need import SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, check_refused

ROWS = {
    "core and memory of one card in one number": Row(
        limits={GPU: "50"},
        part=SliceRequest(container="train", share=Fraction(1, 2), cores=50),
    ),
    "whole cards": Row(
        limits={GPU: "200"},
        part=SliceRequest(container="train", share=ONE_CARD, cores=100, cards=2),
    ),
    "a ratio of memory": Row(
        limits={RATIO: "30"},
        part=SliceRequest(container="train", share=Fraction(3, 10)),
    ),
    "core and a ratio": Row(
        limits={CORE: "20", RATIO: "30"},
        part=SliceRequest(container="train", share=Fraction(3, 10), cores=20),
    ),
    "core and bytes": Row(
        limits={CORE: "20", MEMORY: "8Gi"},
        part=SliceRequest(container="train", mib=Mib(8192), cores=20),
    ),
    "bytes without a unit, rounded up to MiB": Row(
        limits={MEMORY: "8589934593"},
        part=SliceRequest(container="train", mib=Mib(8193)),
    ),
    "totals over the cards they are spread on": Row(
        limits={CORE: "60", RATIO: "100", SHARED: "2"},
        part=SliceRequest(container="train", share=Fraction(1, 2), cores=30, cards=2),
    ),
    "bytes over the cards they are spread on": Row(
        limits={MEMORY: "8Gi", SHARED: "2"},
        part=SliceRequest(container="train", mib=Mib(4096), cards=2),
    ),
}


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {GPU: "150"},
            "L(koordinator.sh/gpu) is '150'; want at most 100, or a multiple of 100 for whole "
            "cards, or koordinator.sh/gpu.shared too; '100' would do",
        ),
        (
            {GPU: "50", CORE: "50"},
            "L(koordinator.sh/gpu) is '50'; want either it or L(koordinator.sh/gpu-core), not "
            "both: they mean the same",
        ),
        (
            {RATIO: "50", MEMORY: "8Gi"},
            "L(koordinator.sh/gpu-memory-ratio) is '50'; want either it or "
            "L(koordinator.sh/gpu-memory), not both: they mean the same",
        ),
        (
            {CORE: "50"},
            "L(koordinator.sh/gpu-core) is '50'; want koordinator.sh/gpu-memory-ratio or "
            "koordinator.sh/gpu-memory beside it",
        ),
        (
            {SHARED: "2"},
            "L(koordinator.sh/gpu.shared) is '2'; want koordinator.sh/gpu-memory-ratio or "
            "koordinator.sh/gpu-memory beside it",
        ),
        (
            {RATIO: "51", SHARED: "2"},
            "L(koordinator.sh/gpu-memory-ratio) is '51'; want percent that divides evenly over 2 "
            "cards; '50' would do",
        ),
        (
            {RATIO: "300", SHARED: "2"},
            "L(koordinator.sh/gpu-memory-ratio) is '300'; want at most 100 for each of 2 cards; "
            "'200' would do",
        ),
        (
            {MEMORY: "8193Mi", SHARED: "2"},
            "L(koordinator.sh/gpu-memory) is '8193Mi'; want memory in whole MiB that divides "
            "evenly over 2 cards; '8192' would do",
        ),
        (
            {GPU: "-5"},
            "L(koordinator.sh/gpu) is '-5'; want percent of one card from 1 to 100, or more in "
            "total over several cards",
        ),
    ],
)
def test_what_koordinator_cannot_mean_is_refused(limits: dict[str, str], sentence: str) -> None:
    check_refused("koordinator", limits, {}, sentence)
