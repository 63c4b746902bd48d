from fractions import Fraction

import pytest

from fracgpu.request.dialects import Translation
from fracgpu.request.dialects.dialect import ONE_CARD, Options
from fracgpu.request.dialects.systems.nvidia import GPU, SHARED
from fracgpu.request.need import SliceRequest
from tests.fracgpu.request.dialects.pods import Row, a_pod, check_refused, read

IN_THREE = Options(nvidia_replicas=3)


ROWS = {
    "whole cards": Row(
        limits={GPU: "2"},
        part=SliceRequest(container="train", share=ONE_CARD, cards=2),
    ),
    "a copy of a card is its part and never more": Row(
        limits={SHARED: "1"},
        options=IN_THREE,
        part=SliceRequest(container="train", share=Fraction(333_333_333, 10**9)),
    ),
}


@pytest.mark.parametrize(
    "key", [GPU, SHARED, "amd.com/gpu", "nvidia.com/mig-1g.5gb", "gpu.intel.com/xe"]
)
def test_resources_of_device_plugins_are_left_alone_without_a_word(key: str) -> None:
    assert read(a_pod({key: "1"})) == Translation()
    assert read(a_pod({key: "1"}), "kai", "gpushare") == Translation()


@pytest.mark.parametrize(
    ("limits", "options", "sentence"),
    [
        (
            {SHARED: "1"},
            Options(),
            "L(nvidia.com/gpu.shared) is '1'; want a share of a card that FracGPU can count; write "
            "fracgpu.io/fraction, or have the administrator set nvidiaReplicas",
        ),
        (
            {SHARED: "2"},
            IN_THREE,
            "L(nvidia.com/gpu.shared) is '2'; want '1', one replica for a container; write "
            "fracgpu.io/fraction and fracgpu.io/cards for several cards",
        ),
        (
            {SHARED: "1", GPU: "1"},
            IN_THREE,
            "L(nvidia.com/gpu) is '1'; want either it or L(nvidia.com/gpu.shared), not both: a "
            "card is whole or shared",
        ),
    ],
)
def test_what_it_cannot_mean_is_refused(
    limits: dict[str, str], options: Options, sentence: str
) -> None:
    check_refused("nvidia", limits, {}, sentence, options=options)
