import pytest

from fracgpu.request.dialects.dialect import ONE_CARD, Options
from fracgpu.request.dialects.systems.volcano import CCE_CORES, CCE_MEMORY, MEMORY, NUMBER, VGPU
from fracgpu.request.need import SliceRequest
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import Row, check_refused

VOLCANO_ROWS = {
    "memory on one card, MB being MiB": Row(
        limits={MEMORY: "1024"},
        part=SliceRequest(container="train", mib=Mib(1024)),
    ),
    "whole cards": Row(
        limits={NUMBER: "2"},
        part=SliceRequest(container="train", share=ONE_CARD, cards=2),
    ),
    "virtual GPUs": Row(
        limits={VGPU.number: "2", VGPU.memory: "3k", VGPU.cores: "50"},
        part=SliceRequest(container="train", mib=Mib(3000), cores=50, cards=2),
    ),
    "virtual GPUs without memory have all of it": Row(
        limits={VGPU.number: "1"},
        part=SliceRequest(container="train", share=ONE_CARD),
    ),
    "memory in units of the cluster's factor": Row(
        limits={VGPU.number: "1", VGPU.memory: "3"},
        options=Options(volcano_memory_factor=1000),
        part=SliceRequest(container="train", mib=Mib(3000)),
    ),
}

CCE_ROWS = {
    "memory in units of 128 MiB": Row(
        limits={CCE_MEMORY: "16"},
        part=SliceRequest(container="train", mib=Mib(2048)),
    ),
    "memory and percent of a card": Row(
        limits={CCE_MEMORY: "16", CCE_CORES: "25"},
        part=SliceRequest(container="train", mib=Mib(2048), cores=25),
    ),
}


@pytest.mark.parametrize(
    ("dialect", "limits", "sentence"),
    [
        (
            "volcano",
            {MEMORY: "10", NUMBER: "1"},
            "L(volcano.sh/gpu-memory) is '10'; want either it or L(volcano.sh/gpu-number), not "
            "both: they are three ways to ask for one thing",
        ),
        (
            "volcano",
            {VGPU.memory: "10"},
            "L(volcano.sh/vgpu-memory) is '10'; want volcano.sh/vgpu-number beside it",
        ),
        (
            "volcano",
            {NUMBER: "1", VGPU.cores: "10"},
            "L(volcano.sh/vgpu-cores) is '10'; want volcano.sh/vgpu-number beside it",
        ),
        (
            "cce",
            {CCE_CORES: "25"},
            "L(volcano.sh/gpu-core.percentage) is '25'; want volcano.sh/gpu-mem.128Mi beside it; "
            'write fracgpu.io/fraction: "25%" for a share of a card',
        ),
    ],
)
def test_what_they_cannot_mean_is_refused(
    dialect: str, limits: dict[str, str], sentence: str
) -> None:
    check_refused(dialect, limits, {}, sentence)


def test_the_two_do_not_read_each_other() -> None:
    check_refused(
        "volcano",
        {MEMORY: "10", CCE_MEMORY: "10"},
        {},
        "L(volcano.sh/gpu-memory) is '10'; want one dialect on one container, and "
        "'volcano.sh/gpu-mem.128Mi' is there too; keep one of the two",
    )
