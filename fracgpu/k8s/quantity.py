"""Kubernetes quantities: thousandths of a core, MiB, and numbers."""

import math
import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

_SUFFIXES: Final = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(1000),
    **{suffix: Decimal(1000) ** (place + 2) for place, suffix in enumerate("MGTPE")},
    **{f"{suffix}i": Decimal(1024) ** (place + 1) for place, suffix in enumerate("KMGTPE")},
}

BYTES_PER_MIB: Final = 1024 * 1024

_MOST: Final = Decimal(2) ** 63


def cpu_milli(text: str) -> int:
    """Read a CPU quantity in thousandths of a core, rounded up as Kubernetes does."""
    return math.ceil(parse_or_zero(text) * 1000)


def memory_mib(text: str) -> int:
    """Read a memory quantity in MiB, rounded up: a request is never counted too small."""
    return math.ceil(parse_or_zero(text) / BYTES_PER_MIB)


@lru_cache(maxsize=4096)
def parse_or_zero(text: str) -> Decimal:
    """Read a quantity; what the API server would not have taken counts as nothing."""
    digits = text.rstrip("numkKMGTPEi")
    try:
        amount = Decimal(digits) * _SUFFIXES[text[len(digits) :]]
    except (InvalidOperation, KeyError):
        return Decimal(0)
    return min(max(Decimal(0), amount), _MOST) if amount.is_finite() else Decimal(0)


_FACTORS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

_WHOLE: Final = re.compile(r"(\d{1,15})(|k|M|G|Ki|Mi|Gi)", re.ASCII)


def whole_amount(text: str) -> int | None:
    """Read an extended resource's quantity; the API server writes 4000 as ``4k``.

    Source: kubernetes.io "Quantity", canonical form. None for anything that is no whole number.
    """
    match = _WHOLE.fullmatch(text)
    return int(match[1]) * _FACTORS[match[2]] if match else None
