import pytest

from fracgpu.request.dialects.dialect import ONE_CARD
from fracgpu.request.need import SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, check_refused

ROWS = {
    f"{what} as {spelling} spells it": row
    for spelling in ("elasticgpu.io", "elasticgpu.com")
    for what, row in {
        "percent of a card and memory in MiB": Row(
            limits={f"{spelling}/gpu-core": "20", f"{spelling}/gpu-memory": "2048"},
            part=SliceRequest(container="train", mib=Mib(2048), cores=20),
        ),
        "whole cards": Row(
            limits={f"{spelling}/gpu-core": "300"},
            part=SliceRequest(container="train", share=ONE_CARD, cards=3),
        ),
    }.items()
}


@pytest.mark.parametrize(
    ("limits", "annotations", "sentence"),
    [
        (
            {"elasticgpu.io/gpu-memory": "8", "elasticgpu.com/gpu-core": "10"},
            {},
            "L(elasticgpu.io/gpu-memory) is '8'; want either it or L(elasticgpu.com/gpu-core), not "
            "both: one spelling is enough",
        ),
        *(
            (
                {},
                {key: "gold"},
                f"annotation {key} is 'gold'; want no ElasticGPUClaim: FracGPU has no such "
                "objects; write fracgpu.io/fraction or fracgpu.io/memory instead",
            )
            for key in ("elasticgpu.io/egpuc-train", "egpuc.elasticgpu.io/train")
        ),
    ],
)
def test_what_elastic_gpu_cannot_mean_here_is_refused(
    limits: dict[str, str], annotations: dict[str, str], sentence: str
) -> None:
    check_refused("elastic-gpu", limits, annotations, sentence)
