from typing import Any

import pytest

from fracgpu.request.grant import Grant
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.units import Mib
from tests.webhook.builders import a_container, a_pod, parsed
from webhook.admission.pod_edits import container_edits

MEM, SLOT = "/fracgpu.io~1gpu-mem", "/fracgpu.io~1gpu-slot"
WRITTEN = {"fracgpu.io/gpu-mem": "4096", "fracgpu.io/gpu-slot": "2"}
GRANTED = Grant(
    need=PodNeed(containers=(ContainerNeed(name="train", cards=2, mib=Mib(2048)),)),
    card_class=None,
)


@pytest.mark.parametrize(
    ("resources", "wanted"),
    [
        (None, [("add", "", {"limits": WRITTEN, "requests": WRITTEN})]),
        ({}, [("add", "/limits", WRITTEN), ("add", "/requests", WRITTEN)]),
        (
            {"limits": {"cpu": "1"}},
            [
                ("add", f"/limits{MEM}", "4096"),
                ("add", f"/limits{SLOT}", "2"),
                ("add", "/requests", WRITTEN),
            ],
        ),
        ({"limits": WRITTEN, "requests": WRITTEN}, []),
        (
            {"limits": {"aliyun.com/gpu-mem": 4, **WRITTEN}, "requests": WRITTEN},
            [("remove", "/limits/aliyun.com~1gpu-mem", None)],
        ),
        (
            {"limits": WRITTEN, "requests": {"aliyun.com/gpu-mem": "4", **WRITTEN}},
            [("remove", "/requests/aliyun.com~1gpu-mem", None)],
        ),
    ],
)
def test_amounts_are_added_where_they_are_absent_and_foreign_ones_removed(
    resources: dict[str, Any] | None, wanted: list[tuple[str, str, Any]]
) -> None:
    pod = parsed(a_pod(a_container("other"), a_container(resources=resources)))

    edits = container_edits(pod, GRANTED, {"train": ("aliyun.com/gpu-mem",)}, void_others=False)

    where = "/spec/containers/1/resources"
    assert [(edit.op, edit.path.removeprefix(where), edit.value) for edit in edits] == wanted
