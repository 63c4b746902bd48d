"""What admission answers: a patch, a plain yes or a refusal."""

from dataclasses import dataclass
from typing import Final

from webhook.admission.patch import Edit

UNPROCESSABLE: Final = 422

UNAVAILABLE: Final = 503

OURS: Final = "fracgpu"

OTHER: Final = "other"

NO_DIALECT: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """Yes, with these edits; *granted* says in plain words what was understood."""

    edits: tuple[Edit, ...]
    granted: str
    warnings: tuple[str, ...] = ()
    dialect: str = OURS


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Yes, as it stands: it asks for nothing, or has its grant already."""

    warnings: tuple[str, ...] = ()
    dialect: str = NO_DIALECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """No, for a reason that its author can act on; *code* is an HTTP status."""

    message: str
    code: int = UNPROCESSABLE
    reason: str = "Invalid"
    dialect: str = OURS


AdmissionResult = Patched | Allowed | Denied
