"""The numbers of other systems, read as strictly as our own; every refusal names its place."""

import math
import re
from fractions import Fraction
from typing import Final, NoReturn

from fracgpu.cards.card import FULL_CORES
from fracgpu.errors import RequestError, shorten
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.language import MAX_CARDS
from fracgpu.units import MAX_MIB, Mib, parse_memory_mib, parse_share

# The API server shows an amount in its shortest form: 8000 arrives as "8k".
_AMOUNT: Final = re.compile(r"(\d{1,15})(k|M|G|T)?", re.ASCII)
_TIMES: Final = {None: 1, "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BYTES_PER_MIB: Final = 1024 * 1024
_SHARE_GRAIN: Final = 10**9


def limit_field(key: str, spec: ContainerSpec) -> str:
    """Name a limit as refusals do."""
    return f"limits['{shorten(key)}'] of container '{spec.name}'"


def annotation_field(key: str) -> str:
    """Name a pod annotation as refusals do."""
    return f"annotation {shorten(key)}"


def whole(text: str, *, field: str, wanted: str, low: int, high: int) -> int:
    """Read a whole number with ``low ≤ n ≤ high``, in the API server's short form too.

    Raises:
        RequestError: *text* is not such a number; the message says *wanted*.
    """
    match = _AMOUNT.fullmatch(text)
    if match:
        amount = int(match[1]) * _TIMES[match[2]]
        if low <= amount <= high:
            return amount
    raise RequestError(field=field, found=text, wanted=wanted)


def card_count(text: str, *, field: str) -> int:
    """Read a number of cards.

    Raises:
        RequestError: it is none, or more than any node has.
    """
    wanted = f"a whole number of cards from 1 to {MAX_CARDS}, e.g. '1'"
    return whole(text, field=field, wanted=wanted, low=1, high=MAX_CARDS)


def percent(text: str, *, field: str, low: int = 1, step: int = 1) -> int:
    """Read percent of one card, a whole number from *low* to 100, a multiple of *step*.

    Raises:
        RequestError: it is not such a number.
    """
    multiple = f", a multiple of {step}" if step > 1 else ""
    least = step if step > 1 else low
    wanted = f"percent of one card, a whole number from {least} to 100{multiple}"
    amount = whole(text, field=field, wanted=wanted, low=low, high=FULL_CORES)
    if amount % step:
        raise RequestError(field=field, found=text, wanted=wanted)
    return amount


def memory_units(text: str, *, field: str, unit_mib: int) -> Mib:
    """Read an amount of memory counted in units of *unit_mib* MiB.

    Raises:
        RequestError: it is not a positive whole number, or more than any card has.
    """
    unit = {1: "MiB", 1024: "GiB"}.get(unit_mib, f"units of {unit_mib} MiB")
    most = MAX_MIB // unit_mib
    example = -(-8192 // unit_mib)
    of = "" if unit_mib == 1 else f" for {example * unit_mib} MiB"
    wanted = f"whole {unit} above 0 and at most {most}, e.g. '{example}'{of}"
    try:
        return Mib(whole(text, field=field, wanted=wanted, low=1, high=most) * unit_mib)
    except RequestError as error:
        hint = _units_hint(text, unit_mib=unit_mib, unit=unit)
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint) from error


def _units_hint(text: str, *, unit_mib: int, unit: str) -> str:
    try:
        mib = parse_memory_mib(text, field="")
    except RequestError:
        return ""
    if not text.endswith("i"):
        return ""  # 8G is eight thousand million units, which is what the message says already
    return f"this key counts {unit}, so write '{-(-mib // unit_mib)}'"


def memory_bytes(text: str, *, field: str) -> Mib:
    """Read a Kubernetes quantity of bytes, ``8Gi`` or ``8589934592``, into MiB, rounded up.

    Raises:
        RequestError: it is no quantity, or too small or too large to be memory of a card.
    """
    match = _AMOUNT.fullmatch(text)
    if not match:
        return parse_memory_mib(text, field=field)
    amount = int(match[1]) * _TIMES[match[2]]
    mib = math.ceil(Fraction(amount, _BYTES_PER_MIB))
    if amount < _BYTES_PER_MIB or mib > MAX_MIB:
        hint = f"write '{amount}Mi' for MiB" if 1 <= amount <= MAX_MIB else ""
        raise RequestError(
            field=field, found=text, wanted="bytes, from 1Mi to 16Ti, e.g. '8Gi'", hint=hint
        )
    return Mib(mib)


def part_of_card(text: str, *, field: str) -> Fraction:
    """Read a decimal with ``0 < share < 1``, exactly; percent and whole cards are refused.

    Raises:
        RequestError: it is anything else.
    """
    wanted = "a share of one card above 0 and below 1, e.g. '0.5'"
    try:
        share = parse_share(text, field=field)
    except RequestError as error:
        hint = error.hint if error.hint.startswith("write '0.") else ""
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint) from error
    if share == 1:
        hint = 'write fracgpu.io/fraction: "1" for a whole card'
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint)
    if text.endswith("%"):
        raise RequestError(
            field=field, found=text, wanted=wanted, hint=f"write '{float(share):.10g}'"
        )
    return share


def decimal_share(share: Fraction) -> Fraction:
    """Cut a share such as a third to what our language can write: nine decimals, never more.

    What is cut off is far below one MiB of any card, so as many of them fit as there are parts.
    """
    return Fraction(math.floor(share * _SHARE_GRAIN), _SHARE_GRAIN)


def evenly(total: int, *, cards: int, field: str, found: str, unit: str) -> int:
    """Split *total* over *cards*.

    Raises:
        RequestError: it does not divide.
    """
    if total % cards:
        raise RequestError(
            field=field,
            found=found,
            wanted=f"{unit} that divides evenly over {cards} cards",
            hint=f"'{max(total - total % cards, cards)}' would do",
        )
    return total // cards


def refuse_both(first: str, second: str, *, found: str, why: str = "they say the same") -> NoReturn:
    """Refuse two keys that cannot stand together.

    Raises:
        RequestError: always.
    """
    raise RequestError(field=first, found=found, wanted=f"either it or {second}, not both: {why}")


def refuse_orphan(field: str, *, found: str, needs: str, hint: str = "") -> NoReturn:
    """Refuse a key that means nothing without another.

    Raises:
        RequestError: always.
    """
    raise RequestError(field=field, found=found, wanted=f"{needs} beside it", hint=hint)
