"""Parsing of memory and shares in requests: whole MiB and exact fractions, never rounded down."""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NewType

from fracgpu.errors import RequestError

Mib = NewType("Mib", int)

# No card comes near 16 TiB; a larger number is a mistake, such as bytes written as MiB.
MAX_MIB: Final = Mib(16 * 1024 * 1024)

# Compute is counted in percent of one card.
FULL_CORES: Final = 100

BYTES_PER_MIB: Final = 1024 * 1024

FACTORS: Final[Mapping[str, int]] = {
    "": 1,
    "k": 1000,
    **{suffix: 1000 ** (index + 2) for index, suffix in enumerate("MGTPE")},
    **{f"{suffix}i": 1024 ** (index + 1) for index, suffix in enumerate("KMGTPE")},
}
"""What the suffixes of Kubernetes' quantities stand for, those of fractions left out."""

_QUANTITY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(Ki|Mi|Gi|Ti|k|M|G|T)?", re.ASCII)
_MISSPELT: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) *([kmgt])i?b?", re.ASCII | re.IGNORECASE)
_AMOUNT: Final = re.compile(r"(\d{1,15})(|k|M|G|T)", re.ASCII)
_SHARE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(%?)", re.ASCII)
_MOST_DECIMALS: Final = 9
_LONG: Final = re.compile(rf"(\d{{1,15}}\.\d{{{_MOST_DECIMALS}}})\d+(%|[KMGT]i|[kMGT])?", re.ASCII)
_INTEGER: Final = re.compile(r"\d{1,15}", re.ASCII)


def parse_amount(text: str) -> int | None:
    """Return the amount of a resource that is counted, or None if *text* is not a whole number.

    The API server returns an amount in its canonical form: 8000 comes back as ``8k``.
    """
    match = _AMOUNT.fullmatch(text)
    return int(match[1]) * FACTORS[match[2]] if match else None


def parse_mib(text: str, *, field: str) -> Mib:
    """Parse a gpu-mem limit such as ``"512"`` or ``"8k"``: whole MiB above 0.

    MiB are the unit of the resource, so ``8k``, the API server's canonical form of 8000, is 8000
    MiB. Binary suffixes are rejected, because ``8Gi`` of MiB is never what is meant.

    Raises:
        RequestError: *text* is not a whole, positive number of MiB.
    """
    wanted = "whole MiB above 0, e.g. '512'"
    mib = parse_amount(text)
    if mib is None:
        raise RequestError(field=field, found=text, wanted=wanted, hint=_mib_hint(text))
    if mib > MAX_MIB:
        raise RequestError(
            field=field,
            found=text,
            wanted=f"at most {MAX_MIB} MiB",
            hint="the number looks like bytes, but the resource counts MiB",
        )
    if mib < 1:
        raise RequestError(field=field, found=text, wanted=wanted)
    return Mib(mib)


def parse_memory_mib(text: str, *, field: str) -> Mib:
    """Parse a Kubernetes quantity such as ``"8Gi"`` or ``"8000Mi"`` into MiB, rounded up.

    A number without a unit means bytes to Kubernetes and MiB to most users of such annotations, so
    it is rejected rather than guessed.

    Raises:
        RequestError: *text* is not a positive quantity with a unit, or larger than any card.
    """
    wanted = "a Kubernetes quantity with a unit, e.g. '8Gi' or '8000Mi'"
    match = _QUANTITY.fullmatch(text)
    if not match or match[2] is None:
        _refuse_long(text, field=field)
        raise RequestError(field=field, found=text, wanted=wanted, hint=_memory_hint(text))
    mib = _to_mib(match[1], match[2])
    if mib < 1:
        raise RequestError(field=field, found=text, wanted="an amount above 0, e.g. '8Gi'")
    if _is_too_small(match[1], match[2]):
        raise RequestError(
            field=field,
            found=text,
            wanted="at least 1Mi: memory of cards is counted in whole MiB",
            hint=f"write '{match[1]}Mi' if MiB were meant" if Fraction(match[1]) >= 1 else "",
        )
    if mib > MAX_MIB:
        raise RequestError(
            field=field, found=text, wanted="at most 16Ti, which is more than any card has"
        )
    return Mib(mib)


def parse_share(text: str, *, field: str) -> Fraction:
    """Parse a share of one card, ``"0.5"``, ``"50%"`` or ``"1"``, exactly.

    Raises:
        RequestError: *text* is not a plain number with 0 < share ≤ 1.
    """
    wanted = "a share of one card above 0 and at most 1, e.g. '0.5' or '50%'"
    match = _SHARE.fullmatch(text)
    if not match:
        _refuse_long(text, field=field)
        raise RequestError(field=field, found=text, wanted=wanted, hint=_share_hint(text))
    integer, _, decimals = match[1].partition(".")
    parts, of = int(integer + decimals), 10 ** len(decimals) * (100 if match[2] else 1)
    if parts > of:
        percent = Fraction(match[1])
        hint = (
            f"write '{match[1]}%' if percent was meant, or fracgpu.io/cards for several cards"
            if not match[2] and percent <= 100  # noqa: PLR2004 - per cent
            else "use fracgpu.io/cards for several cards"
        )
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint)
    if not parts:
        raise RequestError(field=field, found=text, wanted=wanted)
    return Fraction(parts, of)


def parse_count(text: str, *, field: str, low: int, high: int, wanted: str) -> int:
    """Parse a whole number with ``low ≤ n ≤ high``.

    Raises:
        RequestError: *text* is not such a number; the message says *wanted*.
    """
    if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
        raise RequestError(field=field, found=text, wanted=wanted)
    return int(text)


def share_of(share: Fraction, *, capacity_mib: Mib) -> Mib:
    """Return *share* of a card in MiB, rounded up so that no pod gets less than it asked for."""
    return Mib(-(-share.numerator * capacity_mib // share.denominator))


def format_mib(mib: int) -> str:
    """Return MiB in a readable form: ``512 MiB``, ``8 GiB``, ``19.8 GiB``."""
    if mib < 1024 or (mib % 1024 and mib < 10 * 1024):  # noqa: PLR2004 - MiB in a GiB
        return f"{mib} MiB"
    gib = mib / 1024
    return f"{gib:.0f} GiB" if mib % 1024 == 0 else f"{gib:.1f} GiB"


def _refuse_long(text: str, *, field: str) -> None:
    match = _LONG.fullmatch(text)
    if match:
        raise RequestError(
            field=field,
            found=text,
            wanted=f"a number with at most {_MOST_DECIMALS} decimals",
            hint=f"write '{match[1]}{match[2] or ''}'" if float(match[1]) else "",
        )


def _is_too_small(number: str, suffix: str) -> bool:
    return Fraction(number) * FACTORS[suffix] < BYTES_PER_MIB


def _to_mib(number: str, suffix: str) -> int:
    return math.ceil(Fraction(number) * FACTORS[suffix] / BYTES_PER_MIB)


def _share_hint(text: str) -> str:
    decimal = re.fullmatch(r"0?[.,](\d{1,9})|1/(\d{1,2})", text, re.ASCII)
    if not decimal or int(decimal[1] or decimal[2]) == 0:
        return ""
    return f"write '0.{decimal[1]}'" if decimal[1] else f"write '{1 / int(decimal[2]):.4g}'"


def _mib_hint(text: str) -> str:
    quantity = _QUANTITY.fullmatch(text)
    if not quantity or quantity[2] not in ("Mi", "Gi", "Ti"):
        return ""
    mib = _to_mib(quantity[1], quantity[2])
    return f"the resource counts MiB, so write '{mib}'" if 1 <= mib <= MAX_MIB else ""


def _memory_hint(text: str) -> str:
    bare, misspelt = _QUANTITY.fullmatch(text), _MISSPELT.fullmatch(text)
    match = bare or misspelt
    if not match or Fraction(match[1]) == 0:
        return ""
    number = match[1]
    if misspelt:
        suffix = f"{misspelt[2].upper()}i"
        return "" if _is_too_small(number, suffix) else f"write '{number}{suffix}'"
    if "." in number:
        return f"write '{number}Gi' for GiB"
    if int(number) > MAX_MIB:
        return f"write '{-(-int(number) // BYTES_PER_MIB)}Mi' for that many bytes"
    return f"write '{int(number)}Mi' for MiB"
