"""The errors of requests to the API server: one class tree, with details as attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MESSAGE_LIMIT = 1_000  # characters; a validation message may quote a whole object


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One entry of ``Status.details.causes``, e.g. type ``DisruptionBudget``."""

    type: str = ""
    message: str = ""
    field: str = ""


class KubeError(Exception):
    """The API server refused a request or did not answer; base of all errors of this package.

    Attributes:
        verb: the HTTP verb, e.g. ``"GET"``.
        path: the URL path, without the query.
        status: the HTTP status, or None when there was no answer.
        reason: ``Status.reason``, e.g. ``"AlreadyExists"``, or one of ours if there was none.
        message: ``Status.message``, shortened to 1,000 characters.
        causes: ``Status.details.causes``.
    """

    def __init__(
        self,
        *,
        verb: str,
        path: str,
        status: int | None,
        reason: str,
        message: str,
        causes: Sequence[Cause] = (),
    ) -> None:
        self.verb = verb
        self.path = path
        self.status = status
        self.reason = reason
        self.message = shortened(message)
        self.causes = tuple(causes)
        super().__init__(verb, path, status, reason, self.message)

    def __str__(self) -> str:
        if self.status is None:
            return f"no answer from kube-apiserver to {self.verb} {self.path}: {self.message}"
        return (
            f"kube-apiserver answered {self.status} {self.reason} "
            f"to {self.verb} {self.path}: {self.message}"
        )


class NotFound(KubeError):  # noqa: N818 - named as the API server names them
    """404: no such object (or no such kind)."""


class Conflict(KubeError):  # noqa: N818
    """409: the object changed since it was read, or a precondition (UID) does not hold."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists: the name is taken."""


class Gone(KubeError):  # noqa: N818
    """410: this resourceVersion or continue token is too old; list again."""


class Forbidden(KubeError):  # noqa: N818
    """403: RBAC or an admission plugin does not allow it."""


class Unauthorized(Forbidden):
    """401: the credentials were not accepted."""


class Invalid(KubeError):  # noqa: N818
    """400 or 422: the object or request is invalid, or an admission webhook denied it."""


class TooManyRequests(KubeError):  # noqa: N818
    """429: the server is busy, or an eviction would break a disruption budget.

    Attributes:
        retry_after_s: the Retry-After of the server, or None.
    """

    def __init__(  # noqa: PLR0913 - the fields of a Status
        self,
        *,
        verb: str,
        path: str,
        status: int | None,
        reason: str,
        message: str,
        causes: Sequence[Cause] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(
            verb=verb, path=path, status=status, reason=reason, message=message, causes=causes
        )
        self.retry_after_s = retry_after_s

    @property
    def by_disruption_budget(self) -> bool:
        """Whether a PodDisruptionBudget forbids the eviction, rather than the server being busy."""
        return any(cause.type == "DisruptionBudget" for cause in self.causes)


class Unavailable(KubeError):  # noqa: N818
    """No answer, no answer in time, or a 5xx: the outcome of a write is unknown."""


class KubeDecodeError(KubeError, ValueError):
    """An answer was not the JSON that the API defines."""


class AccessError(KubeError):
    """The API server cannot be reached: kubeconfig missing, invalid, or without credentials."""

    def __init__(self, message: str) -> None:
        super().__init__(verb="", path="", status=None, reason="NoAccess", message=message)

    def __str__(self) -> str:
        return self.message


def shortened(text: str) -> str:
    """Return *text*, cut to 1,000 characters with a mark when it was longer."""
    if len(text) <= _MESSAGE_LIMIT:
        return text
    return text[: _MESSAGE_LIMIT - 1] + "…"


def error_from_status(  # noqa: PLR0913 - the fields of a Status
    *,
    verb: str,
    path: str,
    status: int,
    reason: str,
    message: str,
    causes: Sequence[Cause] = (),
    retry_after_s: float | None = None,
) -> KubeError:
    """Return the error class that fits an HTTP status and ``Status.reason``."""
    if status == 429:  # noqa: PLR2004
        return TooManyRequests(
            verb=verb,
            path=path,
            status=status,
            reason=reason,
            message=message,
            causes=causes,
            retry_after_s=retry_after_s,
        )
    return _class_of(status, reason)(
        verb=verb, path=path, status=status, reason=reason, message=message, causes=causes
    )


_BY_STATUS: dict[int, type[KubeError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    422: Invalid,
}


def _class_of(status: int, reason: str) -> type[KubeError]:
    if reason == "AlreadyExists":
        return AlreadyExists
    # A watch reports an expired version as an ERROR event whose reason may be the only hint.
    if reason in {"Expired", "Gone"}:
        return Gone
    if status >= 500:  # noqa: PLR2004
        return Unavailable
    return _BY_STATUS.get(status, KubeError)
