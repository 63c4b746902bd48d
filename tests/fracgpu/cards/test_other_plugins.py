"""Which resources of a node are another plugin's count of the same cards."""

import pytest

from fracgpu.cards.other_plugins import offered_by_others


@pytest.mark.parametrize(
    ("allocatable", "offered"),
    [
        ({"cpu": "64", "fracgpu.io/gpu-mem": "80k"}, {}),
        (
            {"nvidia.com/gpu": "4", "aliyun.com/gpu-mem": "96"},
            {"nvidia.com/gpu": 4, "aliyun.com/gpu-mem": 96},
        ),
        ({"nvidia.com/mig-1g.10gb": "7"}, {"nvidia.com/mig-1g.10gb": 7}),
        ({"nvidia.com/gpu": "0"}, {}),
    ],
)
def test_a_plugin_that_is_there_offers_more_than_nothing(
    allocatable: dict[str, str], offered: dict[str, int]
) -> None:
    assert offered_by_others(allocatable) == offered
