from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.k8s.quantity import canonical, parse, whole_amount


@pytest.mark.parametrize(
    ("written", "returned"),
    [
        # As a real kube-apiserver returned them, and as resource/quantity_test.go has them.
        ("8000", "8k"),
        (8000, "8k"),
        ("4096", "4096"),
        ("655360", "655360"),
        ("655000", "655k"),
        ("0.5", "500m"),
        (0.5, "500m"),
        ("1000m", "1"),
        ("1024Mi", "1Gi"),
        ("1500Mi", "1500Mi"),
        ("512", "512"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("0.1Gi", "107374182400m"),
        ("1e3", "1e3"),
        ("12E", "12E"),
        ("-5k", "-5k"),
        ("0", "0"),
        (" 1 ", "1"),
    ],
)
def test_the_canonical_form_is_the_api_servers(written: str | float, returned: str) -> None:
    assert canonical(written) == returned


@pytest.mark.parametrize(
    "text", ["", "abc", "1.2.3", "4 Gi", "1K", "4gi", "--1", "NaN", "1e", ".", "1e1000"]
)
def test_what_is_no_quantity_is_refused_in_the_api_servers_words(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match the regular expression"):
        parse(text)


def test_true_is_no_quantity() -> None:
    with pytest.raises(ValueError, match="quantities"):
        parse(True)


@given(
    st.fractions(min_value=-(10**6), max_value=10**12, max_denominator=1).map(int),
    st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi", "m"]),
)
def test_the_canonical_form_means_the_same_number(number: int, suffix: str) -> None:
    written = f"{number}{suffix}"

    assert parse(canonical(written)) == parse(written)
    assert canonical(canonical(written)) == canonical(written)


def test_reading_is_exact() -> None:
    assert parse("0.1") == Fraction(1, 10)
    assert parse("1Gi") == 2**30


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4000", 4000),
        ("4k", 4000),
        ("2Ki", 2048),
        ("1T", 10**12),
        ("1e3", 1000),
        ("3000m", 3),
        *((text, None) for text in ("1.5", "", "k", "-1", "4kk", "4Xi", "٤", "many")),
    ],
)
def test_an_amount_that_is_counted_is_whole(text: str, amount: int | None) -> None:
    assert whole_amount(text) == amount
