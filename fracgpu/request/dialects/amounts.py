"""Strict parsers for the amounts of other systems; every error names the key and its place."""

import math
from fractions import Fraction
from typing import Final, NoReturn

from fracgpu.cards.card import FULL_CORES
from fracgpu.errors import PodField, RequestError, shorten
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.language import MAX_CARDS
from fracgpu.units import BYTES_PER_MIB, MAX_MIB, Mib, parse_amount, parse_memory_mib, parse_share

_SHARE_GRAIN: Final = 10**9


def limit_field(key: str, spec: ContainerSpec) -> PodField:
    """Return the place of a limit as errors write it."""
    return PodField(key, container=spec.name, amounts="limits")


def annotation_field(key: str) -> str:
    """Return the name of a pod annotation as errors write it."""
    return f"annotation {shorten(key)}"


def integer(text: str, *, field: str, wanted: str, low: int, high: int) -> int:
    """Parse a whole number with ``low ≤ n ≤ high``, also in the API server's canonical form.

    Raises:
        RequestError: *text* is not such a number; the message says *wanted*.
    """
    amount = parse_amount(text)
    if amount is not None and low <= amount <= high:
        return amount
    raise RequestError(field=field, found=text, wanted=wanted)


def card_count(text: str, *, field: str) -> int:
    """Parse a number of cards.

    Raises:
        RequestError: *text* is not a number from 1 to the most cards of any node.
    """
    wanted = f"a whole number of cards from 1 to {MAX_CARDS}, e.g. '1'"
    return integer(text, field=field, wanted=wanted, low=1, high=MAX_CARDS)


def percent(text: str, *, field: str, low: int = 1, step: int = 1) -> int:
    """Parse percent of one card: a whole number from *low* to 100, a multiple of *step*.

    Raises:
        RequestError: *text* is not such a number.
    """
    multiple = f", a multiple of {step}" if step > 1 else ""
    least = step if step > 1 else low
    wanted = f"percent of one card, a whole number from {least} to 100{multiple}"
    amount = integer(text, field=field, wanted=wanted, low=low, high=FULL_CORES)
    if amount % step:
        raise RequestError(field=field, found=text, wanted=wanted)
    return amount


def memory_units(text: str, *, field: str, unit_mib: int) -> Mib:
    """Parse an amount of memory in units of *unit_mib* MiB, and return MiB.

    Raises:
        RequestError: *text* is not a positive whole number, or more than any card has.
    """
    unit = {1: "MiB", 1024: "GiB"}.get(unit_mib, f"units of {unit_mib} MiB")
    most = MAX_MIB // unit_mib
    example = -(-8192 // unit_mib)
    of = "" if unit_mib == 1 else f" for {example * unit_mib} MiB"
    wanted = f"whole {unit} above 0 and at most {most}, e.g. '{example}'{of}"
    try:
        return Mib(integer(text, field=field, wanted=wanted, low=1, high=most) * unit_mib)
    except RequestError as error:
        hint = _units_hint(text, unit_mib=unit_mib, unit=unit)
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint) from error


def _units_hint(text: str, *, unit_mib: int, unit: str) -> str:
    try:
        mib = parse_memory_mib(text, field="")
    except RequestError:
        return ""
    if not text.endswith("i"):
        return ""  # without a binary suffix, such as 8G, it is too many units, as the message says
    return f"this key counts {unit}, so write '{-(-mib // unit_mib)}'"


def memory_bytes(text: str, *, field: str) -> Mib:
    """Parse a Kubernetes quantity of bytes, ``8Gi`` or ``8589934592``, into MiB, rounded up.

    Raises:
        RequestError: *text* is not a quantity, or too small or too large for the memory of a card.
    """
    amount = parse_amount(text)
    if amount is None:
        return parse_memory_mib(text, field=field)
    mib = math.ceil(Fraction(amount, BYTES_PER_MIB))
    if amount < BYTES_PER_MIB or mib > MAX_MIB:
        hint = f"write '{amount}Mi' for MiB" if 1 <= amount <= MAX_MIB else ""
        raise RequestError(
            field=field, found=text, wanted="bytes, from 1Mi to 16Ti, e.g. '8Gi'", hint=hint
        )
    return Mib(mib)


def part_of_card(text: str, *, field: str, up_to_one: bool = False) -> Fraction:
    """Parse a decimal with ``0 < share < 1`` exactly, or up to 1 with *up_to_one*; no percent.

    Raises:
        RequestError: *text* is not such a decimal.
    """
    most = "at most 1" if up_to_one else "below 1"
    wanted = f"a share of one card above 0 and {most}, e.g. '0.5'"
    try:
        share = parse_share(text, field=field)
    except RequestError as error:
        hint = error.hint if error.hint.startswith("write '0.") else ""
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint) from error
    if share == 1 and not up_to_one:
        hint = 'write fracgpu.io/fraction: "1" for a whole card'
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint)
    if text.endswith("%"):
        decimal = f"{float(share):.9f}".rstrip("0.")  # as many decimals as are read
        hint = f"write '{decimal}'" if decimal else ""
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint)
    return share


def decimal_share(share: Fraction) -> Fraction:
    """Return a share such as 1/3 rounded down to the nine decimals that our language allows.

    The difference is far below one MiB of any card, so that three thirds still fit on one card.
    """
    return Fraction(math.floor(share * _SHARE_GRAIN), _SHARE_GRAIN)


def evenly(total: int, *, cards: int, field: str, found: str, unit: str) -> int:
    """Return *total* split evenly over *cards*.

    Raises:
        RequestError: *total* is not a multiple of *cards*.
    """
    if total % cards:
        raise RequestError(
            field=field,
            found=found,
            wanted=f"{unit} that divides evenly over {cards} cards",
            hint=f"'{max(total - total % cards, cards)}' would do",
        )
    return total // cards


def refuse_below(
    limit: Fraction | int, request: Fraction | int, *, key: str, found: str, asked: str
) -> None:
    """Raise for a limit, the annotation *key*, below the request.

    Raises:
        RequestError: it is.
    """
    if limit < request:
        wanted = f"at least the request, {asked}"
        raise RequestError(field=annotation_field(key), found=found, wanted=wanted)


def refuse_both(
    first: str, second: str, *, found: str, why: str = "they mean the same"
) -> NoReturn:
    """Raise for two keys that exclude each other.

    Raises:
        RequestError: always.
    """
    raise RequestError(field=first, found=found, wanted=f"either it or {second}, not both: {why}")


def refuse_orphan(field: str, *, found: str, needs: str, hint: str = "") -> NoReturn:
    """Raise for a key that has no meaning without another.

    Raises:
        RequestError: always.
    """
    raise RequestError(field=field, found=found, wanted=f"{needs} beside it", hint=hint)
