from fractions import Fraction

import pytest

from fracgpu.errors import RequestError
from fracgpu.request.dialects.dialect import ForeignRequest
from fracgpu.request.dialects.shapes import CoreAndMemory, CountMemoryCores
from fracgpu.units import Mib
from tests.fracgpu.request.dialects.pods import a_spec

CORE = CoreAndMemory(core="x/core", memory="x/memory", unit_mib=256, step=5)
COUNT = CountMemoryCores(number="x/number", memory="x/memory", cores="x/cores")


def test_a_container_without_the_keys_asks_for_nothing() -> None:
    assert CORE.read(a_spec({"cpu": "1"})) == (None, ())
    assert COUNT.read(a_spec({"cpu": "1"})) is None


def test_core_below_100_is_a_part_and_from_100_on_it_is_cards() -> None:
    part = ForeignRequest(container="train", mib=Mib(512), cores=95)
    cards = ForeignRequest(container="train", share=Fraction(1), cards=64)

    assert CORE.read(a_spec({"x/core": "95", "x/memory": "2"})) == (part, ())
    assert CORE.read(a_spec({"x/core": "6400"})) == (cards, ())


@pytest.mark.parametrize("core", ["6500", "101", "96", "0", "-5"])
def test_core_that_is_neither_is_refused(core: str) -> None:
    with pytest.raises(RequestError, match="in steps of 5"):
        CORE.read(a_spec({"x/core": core, "x/memory": "2"}))


def test_memory_per_card_is_counted_in_the_given_unit() -> None:
    spec = a_spec({"x/number": "2", "x/memory": "3"})

    assert COUNT.read(spec, unit_mib=100) == ForeignRequest(
        container="train", mib=Mib(300), cards=2
    )
