import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.node_labels import cards_from_labels
from fracgpu.units import MAX_MIB, Mib

OURS = {
    "fracgpu.io/card-model": "NVIDIA-A30",
    "fracgpu.io/card-class-24000": "2",
    "fracgpu.io/card-class-81920": "1",
}
NVIDIA = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "2",
}
AMD = {
    "beta.amd.com/gpu.vram": "64G",
    "beta.amd.com/gpu.vram.64G": "4",
    "beta.amd.com/gpu.product-name.Instinct_MI210": "4",
}


def found(labels: dict[str, str], *, reserved_mib: int = 0) -> list[tuple[str, int]]:
    cards = cards_from_labels("n", labels, reserved_mib=Mib(reserved_mib))
    return [(card.model, card.capacity_mib) for card in cards]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({}, []),
        (OURS, [("NVIDIA-A30", 24_000)] * 2 + [("NVIDIA-A30", 81_920)]),
        (NVIDIA, [("NVIDIA-A100-SXM4-80GB", 81_920)] * 2),
        (AMD, [("Instinct_MI210", 65_520)] * 4),
        ({**AMD, **NVIDIA}, [("NVIDIA-A100-SXM4-80GB", 81_920)] * 2),
        ({**NVIDIA, **OURS}, [("NVIDIA-A30", 24_000)] * 2 + [("NVIDIA-A30", 81_920)]),
        (
            {"beta.amd.com/gpu.vram.16G": "1", "beta.amd.com/gpu.vram.32G": "2"},
            [("unknown", 16_320), ("unknown", 32_720), ("unknown", 32_720)],
        ),
        ({"amd.com/gpu.vram": "16G", "amd.com/gpu.product-name": "MI50"}, [("MI50", 16_320)]),
        ({"nvidia.com/gpu.memory": "80000"}, []),
        ({"nvidia.com/gpu.memory": "80000", "nvidia.com/gpu.count": "0"}, []),
        ({"nvidia.com/gpu.memory": "8e4", "nvidia.com/gpu.count": "1"}, []),
        ({"nvidia.com/gpu.memory": "99999999", "nvidia.com/gpu.count": "1"}, []),
        ({"beta.amd.com/gpu.vram": "lots"}, []),
        ({"beta.amd.com/gpu.vram": "99999T"}, []),
        ({"fracgpu.io/card-class-x": "1", "fracgpu.io/card-class-80": "many"}, []),
    ],
)
def test_cards_are_supposed_from_labels_ours_before_nvidias_before_amds(
    labels: dict[str, str], wanted: list[tuple[str, int]]
) -> None:
    assert found(labels) == wanted


def test_what_is_reserved_comes_off_totals_and_not_off_what_our_labels_share() -> None:
    assert found(NVIDIA, reserved_mib=600) == [("NVIDIA-A100-SXM4-80GB", 81_280)] * 2
    assert found(OURS, reserved_mib=600)[0] == ("NVIDIA-A30", 24_000)


def test_supposed_cards_are_told_apart_by_node_and_number() -> None:
    uuids = [card.uuid for card in cards_from_labels("n", NVIDIA)]

    assert uuids == ["label:n:0", "label:n:1"]


@given(
    st.dictionaries(
        st.sampled_from([*OURS, *NVIDIA, *AMD, "beta.amd.com/gpu.vram.", "amd.com/gpu.vram.1T"]),
        st.text() | st.integers().map(str),
    )
)
def test_whatever_labels_say_is_read_as_sane_cards_or_as_none(labels: dict[str, str]) -> None:
    for card in cards_from_labels("n", labels):
        assert 0 <= card.capacity_mib <= MAX_MIB
