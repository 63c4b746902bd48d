"""Kubernetes quantities, read exactly and written in the canonical form the API server returns.

Source: k8s.io/apimachinery pkg/api/resource/quantity.go. The canonical form is worth having in a
simulator because it surprises: ``"8000"`` comes back as ``"8k"`` and ``"0.5"`` as ``"500m"``.
"""

from __future__ import annotations

import re
from enum import Enum
from fractions import Fraction
from typing import Final

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15,
                   "E": 18}  # fmt: skip
_BY_EXPONENT: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_FORM: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?"
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
    """Read a quantity as an exact number.

    Raises:
        ValueError: it is not a quantity; the message is the API server's.
    """
    return _read(quantity)[0]


def canonical(quantity: str | int | float) -> str:
    """Write a quantity as the API server would return it.

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
    suffix = match["suffix"] or ""
    if suffix in _BINARY[1:]:
        return number * _KIBI ** _BINARY.index(suffix), _Form.BINARY
    if match["exponent"]:
        return number * Fraction(10) ** int(match["exponent"]), _Form.EXPONENT
    return number * Fraction(10) ** _DECIMAL[suffix], _Form.DECIMAL


def _canonical_binary(whole: int) -> str:
    power = 0
    while whole % _KIBI == 0 and power < len(_BINARY) - 1:
        whole //= _KIBI
        power += 1
    return f"{whole}{_BINARY[power]}"


def _canonical_decimal(value: Fraction, form: _Form) -> str:
    if value == 0:
        return "0"
    nanos = value * 10**9
    whole = -(-nanos.numerator // nanos.denominator)
    exponent = -9
    while whole % 1000 == 0 and exponent < max(_BY_EXPONENT):
        whole //= 1000
        exponent += 3
    if form is _Form.EXPONENT:
        return f"{whole}e{exponent}" if exponent else str(whole)
    return f"{whole}{_BY_EXPONENT[exponent]}"
