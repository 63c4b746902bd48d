"""The results of admission: patched, allowed or denied."""

from typing import Final

import msgspec

from webhook.admission.pod_edits import Edit, read_patch

UNPROCESSABLE: Final = 422

UNAVAILABLE: Final = 503

NOT_FOUND: Final = 404

OURS: Final = "fracgpu"

OTHER: Final = "other"

NO_DIALECT: Final = "none"


class Patched(msgspec.Struct, frozen=True, kw_only=True):
    """The object is allowed with a JSONPatch; *granted* describes the grant for people."""

    patch: bytes
    granted: str
    warnings: tuple[str, ...] = ()
    dialect: str = OURS

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits in the patch."""
        return read_patch(self.patch)


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """The object is allowed unchanged: it requests nothing, or already has its grant."""

    warnings: tuple[str, ...] = ()
    dialect: str = NO_DIALECT


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """The object is denied, for a reason its author can act on; *code* is an HTTP status."""

    message: str
    code: int = UNPROCESSABLE
    reason: str = "Invalid"
    dialect: str = OURS


AdmissionResult = Patched | Allowed | Denied
