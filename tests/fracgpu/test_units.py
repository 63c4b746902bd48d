import contextlib
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.errors import RequestError
from fracgpu.k8s.quantity import canonical
from fracgpu.units import (
    MAX_MIB,
    Mib,
    format_mib,
    parse_count,
    parse_memory_mib,
    parse_mib,
    parse_share,
    share_of,
)

TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="0123456789.,+-eEkKMGTimnBb %/"),
    st.from_regex(r"[0-9]{1,20}(\.[0-9]{0,12})?(Ki|Mi|Gi|Ti|k|M|G|T|%)?", fullmatch=True),
)
ONE_MIB_IN_BYTES = 1024 * 1024


def refusal(parse: Callable[..., object], text: str) -> str:
    with pytest.raises(RequestError) as refused:
        parse(text, field="F")
    assert (refused.value.field, refused.value.found) == ("F", text)
    return str(refused.value).removeprefix(f"F is {text!r}; want ")


@pytest.mark.parametrize(
    ("text", "mib"),
    [("1", 1), ("512", 512), ("8k", 8000), ("16M", 16_000_000), ("0007", 7), ("16777216", MAX_MIB)],
)
def test_a_limit_is_whole_mib_also_in_the_api_servers_short_form(text: str, mib: int) -> None:
    assert parse_mib(text, field="F") == mib


@given(st.integers(1, MAX_MIB))
def test_every_amount_survives_the_api_servers_own_spelling(mib: int) -> None:
    assert parse_mib(canonical(str(mib)), field="F") == mib


WANTED = "whole MiB above 0, e.g. '512'"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", WANTED),
        ("0", WANTED),
        ("0k", WANTED),
        ("-1", WANTED),
        ("+1", WANTED),
        ("1.0", WANTED),
        ("500m", WANTED),
        ("1e3", WANTED),
        ("NaN", WANTED),
        (" 1", WANTED),
        ("1\n", WANTED),
        ("٣", f"{WANTED}; it contains U+0663 (arabic-indic digit three): type it anew"),
        ("8０", f"{WANTED}; it contains U+FF10 (fullwidth digit zero): type it anew"),  # noqa: RUF001
        ("8Gi", f"{WANTED}; the resource counts MiB, so write '8192'"),
        ("1.5Gi", f"{WANTED}; the resource counts MiB, so write '1536'"),
        ("0Gi", WANTED),
        ("99999Ti", WANTED),
        (
            "8589934592",
            "at most 16777216 MiB; the number looks like bytes, but the resource counts MiB",
        ),
        ("8G", "at most 16777216 MiB; the number looks like bytes, but the resource counts MiB"),
    ],
)
def test_a_limit_that_is_no_whole_mib_is_refused_in_these_words(text: str, words: str) -> None:
    assert refusal(parse_mib, text) == words


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("8Gi", 8192),
        ("8000Mi", 8000),
        ("1.5Gi", 1536),
        ("1Ti", 1024 * 1024),
        ("1024Ki", 1),
        ("1025Ki", 2),
        ("2M", 2),
        ("8G", 7630),
        ("16Ti", MAX_MIB),
    ],
)
def test_memory_is_a_kubernetes_quantity_rounded_up(text: str, mib: int) -> None:
    assert parse_memory_mib(text, field="F") == mib


AT_LEAST = "at least 1Mi: memory of cards is counted in whole MiB"
QUANTITY = "a Kubernetes quantity with a unit, e.g. '8Gi' or '8000Mi'"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", QUANTITY),
        ("lots", QUANTITY),
        ("-8Gi", QUANTITY),
        ("8Pi", QUANTITY),
        ("0", QUANTITY),
        ("8000", f"{QUANTITY}; write '8000Mi' for MiB"),
        ("8.5", f"{QUANTITY}; write '8.5Gi' for GiB"),
        ("8589934592", f"{QUANTITY}; write '8192Mi' for that many bytes"),
        ("8gb", f"{QUANTITY}; write '8Gi'"),
        ("8GB", f"{QUANTITY}; write '8Gi'"),
        ("8 GiB", f"{QUANTITY}; write '8Gi'"),
        ("8gi", f"{QUANTITY}; write '8Gi'"),
        ("1Ki", f"{AT_LEAST}; write '1Mi' if MiB were meant"),
        ("1M", f"{AT_LEAST}; write '1Mi' if MiB were meant"),
        ("0.5Mi", AT_LEAST),
        ("0.3333333333333333Gi", "a number with at most 9 decimals; write '0.333333333Gi'"),
        ("0Gi", "an amount above 0, e.g. '8Gi'"),
        ("0.000Mi", "an amount above 0, e.g. '8Gi'"),
        ("17Ti", "at most 16Ti, which is more than any card has"),
    ],
)
def test_memory_that_cannot_be_read_is_refused_in_these_words(text: str, words: str) -> None:
    assert refusal(parse_memory_mib, text) == words


@given(st.integers(1024, 10**9), st.sampled_from(["Ki", "Mi", "Gi"]))
def test_memory_is_never_less_than_was_asked_and_less_than_one_mib_more(
    number: int, suffix: str
) -> None:
    asked_bytes = number * {"Ki": 1024, "Mi": ONE_MIB_IN_BYTES, "Gi": 1024**3}[suffix]
    if asked_bytes > MAX_MIB * ONE_MIB_IN_BYTES:
        return

    mib = parse_memory_mib(f"{number}{suffix}", field="F")

    assert 0 <= mib * ONE_MIB_IN_BYTES - asked_bytes < ONE_MIB_IN_BYTES


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("1", Fraction(1)),
        ("1.0", Fraction(1)),
        ("100%", Fraction(1)),
        ("0.5", Fraction(1, 2)),
        ("50%", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("12.5%", Fraction(1, 8)),
        ("0.000000001", Fraction(1, 10**9)),
    ],
)
def test_a_share_is_read_exactly(text: str, share: Fraction) -> None:
    assert parse_share(text, field="F") == share


SHARE = "a share of one card above 0 and at most 1, e.g. '0.5' or '50%'"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", SHARE),
        ("half", SHARE),
        ("0", SHARE),
        ("0.0", SHARE),
        ("0%", SHARE),
        ("-0.5", SHARE),
        ("+0.5", SHARE),
        ("nan", SHARE),
        ("inf", SHARE),
        ("1e-1", SHARE),
        ("0.5 ", SHARE),
        ("0.0000000001", "a number with at most 9 decimals"),
        ("0.3333333333333333", "a number with at most 9 decimals; write '0.333333333'"),
        ("33.3333333333%", "a number with at most 9 decimals; write '33.333333333%'"),
        (".5", f"{SHARE}; write '0.5'"),
        ("0,25", f"{SHARE}; write '0.25'"),
        ("1/4", f"{SHARE}; write '0.25'"),
        ("1/0", SHARE),
        (".0", SHARE),
        (
            "50",
            f"{SHARE}; write '50%' if percent was meant, or fracgpu.io/cards for several cards",
        ),
        ("200", f"{SHARE}; use fracgpu.io/cards for several cards"),
        ("150%", f"{SHARE}; use fracgpu.io/cards for several cards"),
    ],
)
def test_a_share_that_is_none_is_refused_in_these_words(text: str, words: str) -> None:
    assert refusal(parse_share, text) == words


@given(st.fractions(min_value=0, max_value=1).filter(bool), st.integers(1, MAX_MIB))
def test_a_share_is_rounded_up_and_never_gives_less_than_was_asked(
    share: Fraction, capacity: int
) -> None:
    mib = share_of(share, capacity_mib=Mib(capacity))

    assert share * capacity <= mib < share * capacity + 1
    assert 1 <= mib <= capacity


@given(st.integers(1, 999_999_999))
def test_a_share_and_its_percent_are_the_same(millionths: int) -> None:
    percent = f"{millionths / 10_000_000:.7f}%"
    if Fraction(percent[:-1]) == 0:
        return

    assert parse_share(percent, field="F") == Fraction(percent[:-1]) / 100


def test_a_count_is_a_whole_number_within_its_bounds() -> None:
    def parse(text: str, *, field: str) -> int:
        return parse_count(text, field=field, low=1, high=64, wanted="1 to 64")

    assert [parse(text, field="F") for text in ("1", "64", "07")] == [1, 64, 7]
    for text in ("", "0", "65", "-1", "1.0", "2 ", "x", "9" * 5000):
        with pytest.raises(RequestError, match="want 1 to 64"):
            parse(text, field="F")


@given(TEXTS)
def test_whatever_the_text_a_parser_answers_or_raises_a_request_error(text: str) -> None:
    for parse in (parse_mib, parse_memory_mib):
        with contextlib.suppress(RequestError):
            assert 1 <= parse(text, field="F") <= MAX_MIB
    with contextlib.suppress(RequestError):
        assert 0 < parse_share(text, field="F") <= 1
    with contextlib.suppress(RequestError):
        assert 3 <= parse_count(text, field="F", low=3, high=9, wanted="3 to 9") <= 9


HINTED = st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,3})?( ?[kKmMgGtT][iI]?[bB]?)?", fullmatch=True)


def problem(parse: Callable[..., object], text: str) -> RequestError | None:
    try:
        parse(text, field="F")
    except RequestError as error:
        return error
    return None


@given(HINTED)
def test_a_quantity_that_a_hint_suggests_can_be_read(text: str) -> None:
    for parse in (parse_mib, parse_memory_mib):
        first = problem(parse, text)
        if first is None or "write '" not in first.hint:
            continue
        suggested = first.hint.partition("write '")[2].partition("'")[0]

        second = problem(parse, suggested)

        # The unit is right; the number may still be more than any card has.
        assert second is None or second.wanted.startswith("at most")


@given(st.from_regex(r"(0?[.,][0-9]{1,9}|1/[0-9]{1,2})", fullmatch=True))
def test_a_share_that_a_hint_suggests_is_one_that_is_read(text: str) -> None:
    try:
        parse_share(text, field="F")
    except RequestError as error:
        if error.hint:
            suggested = error.hint.removeprefix("write '").removesuffix("'")
            assert 0 < parse_share(suggested, field="F") <= 1


@pytest.mark.parametrize(
    ("mib", "text"),
    [
        (1, "1 MiB"),
        (1023, "1023 MiB"),
        (1024, "1 GiB"),
        (8192, "8 GiB"),
        (8193, "8193 MiB"),
        (24_560, "24.0 GiB"),
        (20_275, "19.8 GiB"),
        (81_920, "80 GiB"),
    ],
)
def test_mib_are_written_for_people(mib: int, text: str) -> None:
    assert format_mib(mib) == text
