from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.request.dialects.dialect import DialectReading, ForeignRequest
from fracgpu.request.dialects.native import annotations_of, decimal, items_of, spelled
from fracgpu.request.language import parse_request
from fracgpu.request.need import PodRequest, SliceRequest, Strategy
from fracgpu.units import MAX_MIB, Mib
from tests.fracgpu.request.dialects.pods import a_spec

GRAIN = 10**9


def test_a_share_beyond_nine_decimals_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="more than nine decimals"):
        decimal(Fraction(1, 3))


asks = st.builds(
    ForeignRequest,
    container=st.just("train"),
    cards=st.integers(1, 64),
    cores=st.integers(0, 100),
    share=st.integers(1, GRAIN).map(lambda grains: Fraction(grains, GRAIN)),
) | st.builds(
    ForeignRequest,
    container=st.just("train"),
    cards=st.integers(1, 64),
    cores=st.integers(0, 100),
    mib=st.integers(1, MAX_MIB).map(Mib),
)


@given(ask=asks, alone=st.booleans())
def test_what_is_written_reads_back_the_same(*, ask: ForeignRequest, alone: bool) -> None:
    specs = (a_spec(),) if alone else (a_spec(name="side"), a_spec())

    request = parse_request(annotations_of({"train": items_of(ask)}, specs), specs)

    assert request == PodRequest(
        slices=(
            SliceRequest(
                container="train",
                cards=ask.cards,
                cores=ask.cores,
                share=ask.share,
                mib=ask.mib,
            ),
        )
    )


def test_a_reading_is_spelled_as_a_user_would_type_it() -> None:
    reading = DialectReading(
        requests=(ForeignRequest(container="train", mib=Mib(3000), cores=30, cards=2),),
        models=("*A100*", "!*PCIe*"),
        strategy=Strategy.SPREAD,
    )

    assert spelled(reading, (a_spec(),)) == (
        'fracgpu.io/memory: "3000Mi", fracgpu.io/cores: "30", fracgpu.io/cards: "2", '
        'fracgpu.io/model: "*A100*, !*PCIe*", fracgpu.io/placement: "spread"'
    )
    assert spelled(DialectReading(), (a_spec(),)) == ""
