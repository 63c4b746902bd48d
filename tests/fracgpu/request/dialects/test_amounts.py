import contextlib
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.errors import RequestError
from fracgpu.request.dialects.amounts import (
    decimal_share,
    evenly,
    integer,
    memory_bytes,
    memory_units,
    part_of_card,
    percent,
)
from fracgpu.units import MAX_MIB, Mib, share_of

NO_NUMBERS = [
    "",
    " 1",
    "1 ",
    "+1",
    "-1",
    "1.0",
    "1e3",
    "0x10",
    "1_000",
    "NaN",
    "inf",
    "\u0661",
    "1\n",
    "9" * 16,
    "9" * 5000,
    "1Ki",
    "k",
]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_no_number_is_guessed(text: str) -> None:
    with pytest.raises(RequestError, match="want a number"):
        integer(text, field="x", wanted="a number", low=0, high=10**12)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("8k", 8000), ("1M", 10**6), ("007", 7)])
def test_the_api_servers_short_forms_are_numbers(text: str, number: int) -> None:
    assert integer(text, field="x", wanted="a number", low=0, high=10**12) == number


@pytest.mark.parametrize(("low", "high"), [(2, 10), (0, 0)])
def test_a_number_out_of_range_is_refused(low: int, high: int) -> None:
    with pytest.raises(RequestError):
        integer("1", field="x", wanted="a number", low=low, high=high)


def test_memory_is_counted_in_its_unit_and_no_card_has_more_than_16_tib() -> None:
    assert memory_units("3", field="x", unit_mib=256) == 768
    assert memory_units(str(MAX_MIB), field="x", unit_mib=1) == MAX_MIB
    with pytest.raises(RequestError, match="at most 65536"):
        memory_units("65537", field="x", unit_mib=256)


def test_eight_thousand_million_units_are_refused_without_a_hint() -> None:
    with pytest.raises(RequestError) as refused:
        memory_units("8G", field="x", unit_mib=1)

    assert refused.value.hint == ""


@pytest.mark.parametrize(
    ("text", "mib"), [("1Mi", 1), ("8Gi", 8192), ("1048577", 2), ("8M", 8), ("1.5Gi", 1536)]
)
def test_bytes_are_rounded_up_to_mib(text: str, mib: int) -> None:
    assert memory_bytes(text, field="x") == mib


@pytest.mark.parametrize("text", ["0", "1", "1048575", "8k", "999T", "1e9", "-1Gi", ""])
def test_bytes_that_are_no_memory_of_a_card_are_refused(text: str) -> None:
    with pytest.raises(RequestError):
        memory_bytes(text, field="x")


WRONG_AMOUNTS = {
    "percent without a step names its own least": (
        lambda: percent("NaN", field="x", low=0),
        "x is 'NaN'; want percent of one card, a whole number from 0 to 100",
    ),
    "memory in units of one MiB": (
        lambda: memory_units("8Gi", field="x", unit_mib=1),
        "x is '8Gi'; want whole MiB above 0 and at most 16777216, e.g. '8192'; this key counts "
        "MiB, so write '8192'",
    ),
    "memory in units of several MiB": (
        lambda: memory_units("4Gi", field="x", unit_mib=256),
        "x is '4Gi'; want whole units of 256 MiB above 0 and at most 65536, e.g. '32' for 8192 "
        "MiB; this key counts units of 256 MiB, so write '16'",
    ),
    "bytes so few that they were meant as MiB": (
        lambda: memory_bytes("8k", field="x"),
        "x is '8k'; want bytes, from 1Mi to 16Ti, e.g. '8Gi'; write '8000Mi' for MiB",
    ),
    "a share whose hint would be one of FracGPU's keys": (
        lambda: part_of_card("1.5", field="x"),
        "x is '1.5'; want a share of one card above 0 and below 1, e.g. '0.5'",
    ),
}


@pytest.mark.parametrize(("read", "sentence"), WRONG_AMOUNTS.values(), ids=WRONG_AMOUNTS)
def test_a_wrong_amount_is_answered_with_what_was_wanted(
    read: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(RequestError) as refused:
        read()

    assert str(refused.value) == sentence


def test_a_part_of_a_card_is_exact() -> None:
    assert part_of_card("0.1", field="x") == Fraction(1, 10)


def test_percent_in_steps_says_its_step() -> None:
    assert percent("15", field="x", step=5) == 15
    with pytest.raises(RequestError, match="from 5 to 100, a multiple of 5"):
        percent("12", field="x", step=5)


def test_an_uneven_split_names_what_would_divide() -> None:
    assert evenly(9, cards=3, field="x", found="9", unit="MiB") == 3
    with pytest.raises(RequestError, match="'9' would do"):
        evenly(10, cards=3, field="x", found="10", unit="MiB")
    with pytest.raises(RequestError, match="'3' would do"):
        evenly(2, cards=3, field="x", found="2", unit="MiB")


@given(st.integers(1, 128), st.integers(1, 2000))
def test_as_many_cut_parts_fit_a_card_as_there_are_parts(parts: int, grains: int) -> None:
    capacity = Mib(grains * 80)

    part = share_of(decimal_share(Fraction(1, parts)), capacity_mib=capacity)

    assert part <= share_of(Fraction(1, parts), capacity_mib=capacity)
    assert (10**9 * decimal_share(Fraction(1, parts))).denominator == 1


@given(st.text())
def test_no_text_raises_anything_but_a_request_error(text: str) -> None:
    for read in (part_of_card, percent, memory_bytes):
        with contextlib.suppress(RequestError):
            read(text, field="x")
    with contextlib.suppress(RequestError):
        memory_units(text, field="x", unit_mib=256)
