"""XID errors: what each code means, and whether it makes the card unhealthy.

Sources: NVIDIA, "Xid Errors", the catalog for Ampere and newer cards and its columns of actions
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), and, for what a program can
cause, the codes that NVIDIA's own device plugin ignores: 13, 31, 43, 45, 68 and 109
(NVIDIA/k8s-device-plugin, internal/rm/health.go). The descriptions are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Severity(Enum):
    """What an XID error means for the card.

    PROGRAM: a program can cause it, so a tenant can; the catalog says to restart the program.
    NOTICE: from the card or the driver, and the catalog says to ignore it.
    CARD: the card is not reliable: it needs a reset, a repair or an investigation.
    """

    PROGRAM = "program"
    NOTICE = "notice"
    CARD = "card"


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """What one code means."""

    name: str
    severity: Severity


# The catalog's immediate action is RESTART_APP, or for 43 to ignore it and for 45 to follow the
# error that it came with. For 109 it is a reset; but a program that runs too long on the card
# causes it, and a tenant must not be able to make a card unhealthy.
_OF_PROGRAMS: Final = {
    8: "GPU stopped processing",
    11: "invalid push buffer",
    13: "graphics engine exception",
    25: "illegal push buffer",
    31: "GPU memory page fault",
    32: "corrupted push buffer",
    39: "copy engine exception",
    40: "copy engine exception",
    41: "copy engine exception",
    43: "GPU stopped processing: the program was ended",
    45: "preemptive cleanup after another error",
    60: "video processor exception",
    68: "video decoder exception",
    69: "graphics engine class error",
    80: "corrupted data sent to the GPU",
    86: "optical flow engine exception",
    94: "contained memory error",
    109: "context switch timeout",
    139: "optical flow engine exception",
    **dict.fromkeys((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
    **dict.fromkeys((82, *range(99, 106)), "JPEG engine error"),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder error"),
}
# The catalog's immediate action is to ignore it. 157, a retirement that failed, is not here.
_NOTICES: Final = {
    37: "driver firmware error",
    38: "driver firmware error",
    44: "graphics engine fault during a context switch",
    63: "row remapping or page retirement recorded",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    92: "high rate of corrected memory errors",
    93: "limit of writes to the InfoROM exceeded",
    106: "test message",
    107: "test message",
    121: "chip-to-chip link error",
    137: "NVLink privilege error",
    141: "CUDA fast path error",
    152: "deep learning accelerator memory error",
    153: "deep learning accelerator timeout",
    160: "channel retirement",
    161: "channel retirement failed",
}
_OF_THE_CARD: Final = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    78: "vGPU start error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialisation failed",
    151: "key rotation error",
    154: "GPU recovery action changed",
    155: "NVLink error found by software",
    156: "resource retirement",
    157: "resource retirement failed",
    158: "GPU fatal timeout",
    **dict.fromkeys(range(144, 151), "NVLink error"),
}

XIDS: Final[Mapping[int, Xid]] = {
    code: Xid(name=name, severity=severity)
    for severity, names in (
        (Severity.PROGRAM, _OF_PROGRAMS),
        (Severity.NOTICE, _NOTICES),
        (Severity.CARD, _OF_THE_CARD),
    )
    for code, name in names.items()
}


def severity(code: int) -> Severity:
    """Return the severity of a code; an unknown one is the card's."""
    known = XIDS.get(code)
    return known.severity if known is not None else Severity.CARD


def xid_text(code: int) -> str:
    """Return a code with its description, for messages."""
    known = XIDS.get(code)
    return f"XID {code} ({known.name})" if known is not None else f"XID {code}"


def xid_meaning(code: int) -> str:
    """Return what the last error means: "no error" for 0, "unknown error" for an unknown code."""
    if code == 0:
        return "no error"
    known = XIDS.get(code)
    return known.name if known is not None else "unknown error"
