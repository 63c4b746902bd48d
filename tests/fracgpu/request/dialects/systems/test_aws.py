from fractions import Fraction

from fracgpu.request.dialects.dialect import ONE_CARD, Options
from fracgpu.request.dialects.systems.aws import VGPU
from fracgpu.request.need import SliceRequest
from tests.fracgpu.request.dialects.pods import Row, check_refused

ROWS = {
    "tenths of a card by default": Row(
        limits={VGPU: "3"},
        part=SliceRequest(container="train", share=Fraction(3, 10)),
    ),
    "all the parts of a card": Row(
        limits={VGPU: "4"},
        options=Options(aws_vgpus_per_card=4),
        part=SliceRequest(container="train", share=ONE_CARD),
    ),
}


def test_more_parts_than_a_card_has_are_refused() -> None:
    check_refused(
        "aws",
        {VGPU: "11"},
        {},
        "L(k8s.amazonaws.com/vgpu) is '11'; want parts of one card, a whole number from 1 to 10",
    )
