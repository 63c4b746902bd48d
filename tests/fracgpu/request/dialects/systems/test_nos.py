import pytest

from fracgpu.request.need import SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, check_refused

ROWS = {
    "a slice of its size in GB, which are GiB": Row(
        limits={"nvidia.com/gpu-10gb": "1"},
        part=SliceRequest(container="train", mib=Mib(10240)),
    ),
}


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {"nvidia.com/gpu-10gb": "2"},
            "L(nvidia.com/gpu-10gb) is '2'; want '1', one slice for a container; use "
            "fracgpu.io/memory with fracgpu.io/cards for several cards",
        ),
        (
            {"nvidia.com/gpu-10gb": "1", "nvidia.com/gpu-20gb": "1"},
            "L(nvidia.com/gpu-10gb) is '1'; want either it or L(nvidia.com/gpu-20gb), not both: a "
            "container gets one slice",
        ),
        (
            {"nvidia.com/gpu-0gb": "1"},
            "the size in L(nvidia.com/gpu-0gb) is '0'; want whole GiB above 0 and at most 16384, "
            "e.g. '8' for 8192 MiB",
        ),
    ],
)
def test_what_nos_cannot_mean_is_refused(limits: dict[str, str], sentence: str) -> None:
    check_refused("nos", limits, {}, sentence)
