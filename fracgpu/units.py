"""Whole MiB and exact shares: how numbers in a request are read, and never rounded down."""

import math
import re
from fractions import Fraction
from typing import Final, NewType

from fracgpu.errors import RequestError

Mib = NewType("Mib", int)

# No card comes near 16 TiB; above it a number is a mistake (bytes written as MiB, say).
MAX_MIB: Final = Mib(16 * 1024 * 1024)

_BYTES_PER_MIB: Final = 1024 * 1024
_SUFFIX_BYTES: Final = {
    "Ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
    "Ti": 1024**4,
    "k": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
}
_QUANTITY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(Ki|Mi|Gi|Ti|k|M|G|T)?", re.ASCII)
_SHARE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(%?)", re.ASCII)
_WHOLE: Final = re.compile(r"\d{1,15}", re.ASCII)


def parse_mib(text: str, *, field: str) -> Mib:
    """Read a gpu-mem limit such as ``"512"``: whole MiB above 0, the unit of the resource.

    Raises:
        RequestError: *text* is not a whole, positive number of MiB.
    """
    wanted = "whole MiB above 0, e.g. '512'"
    if not _WHOLE.fullmatch(text):
        suffixed = _QUANTITY.fullmatch(text)
        hint = ""
        if suffixed and suffixed[2] in ("Mi", "Gi", "Ti"):
            mib = _to_mib(suffixed[1], suffixed[2])
            hint = f"the resource counts MiB, so write '{mib}'"
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint)
    return _bounded(int(text), text=text, field=field, wanted=wanted)


def parse_memory_mib(text: str, *, field: str) -> Mib:
    """Read a Kubernetes quantity such as ``"8Gi"`` or ``"8000Mi"`` into MiB, rounded up.

    A bare number is bytes to Kubernetes and MiB to most users of such annotations, so it is refused
    rather than guessed.

    Raises:
        RequestError: *text* is no positive quantity with a unit, or larger than any card.
    """
    wanted = "a Kubernetes quantity with a unit, e.g. '8Gi' or '8000Mi'"
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise RequestError(field=field, found=text, wanted=wanted)
    number, suffix = match[1], match[2]
    if suffix is None:
        whole = re.fullmatch(r"\d+", number) is not None
        hint = f"write '{int(number)}Mi' for MiB" if whole else f"write '{number}Gi' for GiB"
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint)
    return _bounded(_to_mib(number, suffix), text=text, field=field, wanted=wanted)


def parse_share(text: str, *, field: str) -> Fraction:
    """Read a share of one card, ``"0.5"``, ``"50%"`` or ``"1"``, exactly.

    Raises:
        RequestError: *text* is not a plain number with 0 < share ≤ 1.
    """
    wanted = "a share of one card above 0 and at most 1, e.g. '0.5' or '50%'"
    match = _SHARE.fullmatch(text)
    if not match:
        hint = "write '0.5'" if text in (".5", "0,5", "1/2") else ""
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint)
    share = Fraction(match[1]) / (100 if match[2] else 1)
    if share > 1:
        percent = Fraction(match[1])
        hint = (
            f"write '{match[1]}%' if percent was meant, or fracgpu.io/cards for several cards"
            if not match[2] and percent <= 100  # noqa: PLR2004 - per cent
            else "use fracgpu.io/cards for several cards"
        )
        raise RequestError(field=field, found=text, wanted=wanted, hint=hint)
    if share == 0:
        raise RequestError(field=field, found=text, wanted=wanted)
    return share


def parse_count(text: str, *, field: str, low: int, high: int, wanted: str) -> int:
    """Read a whole number with ``low ≤ n ≤ high``.

    Raises:
        RequestError: *text* is not such a number; the message says *wanted*.
    """
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise RequestError(field=field, found=text, wanted=wanted)
    return int(text)


def share_of(share: Fraction, *, capacity_mib: Mib) -> Mib:
    """Give the MiB of *share* of a card, rounded up so that nobody gets less than was asked."""
    return Mib(math.ceil(share * capacity_mib))


def format_mib(mib: int) -> str:
    """Write MiB for people: ``512 MiB``, ``8 GiB``, ``19.8 GiB``."""
    if mib < 1024 or (mib % 1024 and mib < 10 * 1024):  # noqa: PLR2004 - MiB in a GiB
        return f"{mib} MiB"
    gib = mib / 1024
    return f"{gib:.0f} GiB" if mib % 1024 == 0 else f"{gib:.1f} GiB"


def _to_mib(number: str, suffix: str) -> int:
    return math.ceil(Fraction(number) * _SUFFIX_BYTES[suffix] / _BYTES_PER_MIB)


def _bounded(mib: int, *, text: str, field: str, wanted: str) -> Mib:
    if mib < 1:
        raise RequestError(field=field, found=text, wanted=wanted)
    if mib > MAX_MIB:
        raise RequestError(
            field=field,
            found=text,
            wanted=f"at most {MAX_MIB} MiB",
            hint="the number looks like bytes; MiB are wanted",
        )
    return Mib(mib)
