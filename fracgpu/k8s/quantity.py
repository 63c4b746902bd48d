"""Kubernetes quantities, parsed into millicores, MiB and exact numbers, and in canonical form."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Final

from fracgpu.units import BYTES_PER_MIB, FACTORS

_SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(factor) for suffix, factor in FACTORS.items()},
}

_MOST: Final = Decimal(2) ** 63
_LONGEST: Final = 64  # characters of an amount that is counted; none needs as many
_MOST_CPU_MILLI: Final = 2**40


@lru_cache(maxsize=4096)
def cpu_milli(text: str) -> int:
    """Return a CPU quantity in millicores, rounded up as Kubernetes does; 2**40 at most.

    No machine has a billion cores, and the sums of such amounts fit into 64 bits.
    """
    return min(math.ceil(parse_or_zero(text) * 1000), _MOST_CPU_MILLI)


@lru_cache(maxsize=4096)
def memory_mib(text: str) -> int:
    """Return a memory quantity in MiB, rounded up: a request is never counted too small."""
    return math.ceil(parse_or_zero(text) / BYTES_PER_MIB)


@lru_cache(maxsize=4096)
def parse_or_zero(text: str) -> Decimal:
    """Return a quantity as a number; 0 for text that the API server would have rejected."""
    digits = text.rstrip("numkKMGTPEi")
    try:
        amount = Decimal(digits) * _SUFFIXES[text[len(digits) :]]
    except (InvalidOperation, KeyError):
        return Decimal(0)
    return min(max(Decimal(0), amount), _MOST) if amount.is_finite() else Decimal(0)


def integer_amount(text: str) -> int | None:
    """Return the amount of an extended resource, or None when it is not a whole number ≥ 0.

    The API server writes 4000 as ``4k``. Source: kubernetes.io "Quantity", canonical form.
    """
    try:
        amount = parse(text) if len(text) <= _LONGEST else Fraction(-1)
    except ValueError:
        return None
    return amount.numerator if amount.denominator == 1 and 0 <= amount < _MOST else None


_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")

_BY_EXPONENT: Final = dict(zip(range(-9, 21, 3), ("n", "u", "m", "", *"kMGTPE"), strict=True))

# No amount needs an exponent of more than three digits, and a longer one would take long.
_FORM: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)

REFUSAL: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)

_KIBI: Final = 1024


class _Form(Enum):
    BINARY = "Ki"
    DECIMAL = "k"
    EXPONENT = "e3"


def parse(quantity: str | int | float) -> Fraction:
    """Parse a quantity into an exact number.

    Raises:
        ValueError: it is not a quantity; the message is the API server's.
    """
    return _read(quantity)[0]


def canonical(quantity: str | int | float) -> str:
    """Return a quantity in the canonical form of the API server.

    Raises:
        ValueError: it is not a quantity.
    """
    value, form = _read(quantity)
    if form is _Form.BINARY and abs(value) >= _KIBI and value.denominator == 1:
        return _canonical_binary(value.numerator)
    return _canonical_decimal(value, form)


def _read(quantity: str | int | float) -> tuple[Fraction, _Form]:
    match = _FORM.fullmatch(str(quantity).strip())
    if match is None or isinstance(quantity, bool):
        raise ValueError(REFUSAL)
    number = Fraction(match["number"])
    if match["exponent"]:
        return number * Fraction(10) ** int(match["exponent"]), _Form.EXPONENT
    suffix = match["suffix"] or ""
    form = _Form.BINARY if suffix in _BINARY[1:] else _Form.DECIMAL
    return number * Fraction(_SUFFIXES[suffix]), form


def _canonical_binary(amount: int) -> str:
    power = 0
    while amount % _KIBI == 0 and power < len(_BINARY) - 1:
        amount //= _KIBI
        power += 1
    return f"{amount}{_BINARY[power]}"


def _canonical_decimal(value: Fraction, form: _Form) -> str:
    if value == 0:
        return "0"
    nanos = value * 10**9
    amount = -(-nanos.numerator // nanos.denominator)
    exponent = -9
    while amount % 1000 == 0 and exponent < max(_BY_EXPONENT):
        amount //= 1000
        exponent += 3
    if form is _Form.EXPONENT:
        return f"{amount}e{exponent}" if exponent else str(amount)
    return f"{amount}{_BY_EXPONENT[exponent]}"
