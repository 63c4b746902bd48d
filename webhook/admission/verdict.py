"""The three results of admission: patched, allowed or denied."""

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
    """The object is allowed with these edits; *granted* describes the grant for people."""

    edits: tuple[Edit, ...]
    granted: str
    warnings: tuple[str, ...] = ()
    dialect: str = OURS


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The object is allowed unchanged: it requests nothing, or already has its grant."""

    warnings: tuple[str, ...] = ()
    dialect: str = NO_DIALECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The object is denied, for a reason its author can act on; *code* is an HTTP status."""

    message: str
    code: int = UNPROCESSABLE
    reason: str = "Invalid"
    dialect: str = OURS


AdmissionResult = Patched | Allowed | Denied
