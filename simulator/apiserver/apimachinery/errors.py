"""The API server's errors: ``Status`` objects with the real server's codes and messages.

Source: k8s.io/apimachinery pkg/api/errors, pkg/apis/meta/v1 (StatusReason, CauseType).
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.apiserver.apimachinery.request_info import Target
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.objects import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCause:
    """One field's fault: *reason* as a CauseType, such as ``FieldValueInvalid``."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class ApiError(Exception):
    """An error answer with its HTTP code; :meth:`body` is what is sent."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Json | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    @property
    def retry_after_s(self) -> int:
        """Seconds for the Retry-After header; 0 says that there is none."""
        return int((self.details or {}).get("retryAfterSeconds", 0))

    def body(self) -> Json:
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if not self.reason:
            del status["reason"]
        if self.details is not None:
            status["details"] = self.details
        return status


def _details(resource: Resource, name: str) -> Json:
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return {k: v for k, v in details.items() if v}


def bad_request(message: str) -> ApiError:
    """Return a 400: the request cannot be read."""
    return ApiError(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def not_found(resource: Resource, name: str) -> ApiError:
    """Return the 404 for an object that does not exist."""
    return ApiError(
        HTTPStatus.NOT_FOUND,
        "NotFound",
        f'{resource.qualified} "{name}" not found',
        details=_details(resource, name),
    )


def unknown_resource() -> ApiError:
    """Return the 404 for a resource that no group serves."""
    return ApiError(
        HTTPStatus.NOT_FOUND,
        "NotFound",
        "the server could not find the requested resource",
        details={},
    )


def method_not_supported() -> ApiError:
    """Return a 405."""
    return ApiError(
        HTTPStatus.METHOD_NOT_ALLOWED,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        details={},
    )


def already_exists(resource: Resource, name: str) -> ApiError:
    """Return the 409 to the creation of an object that already exists."""
    return ApiError(
        HTTPStatus.CONFLICT,
        "AlreadyExists",
        f'{resource.qualified} "{name}" already exists',
        details=_details(resource, name),
    )


def conflict(resource: Resource, name: str, why: str, *, subresource: str = "") -> ApiError:
    """Return a 409; *why* follows the API server's opening words."""
    suffix = f"/{subresource}" if subresource else ""
    return ApiError(
        HTTPStatus.CONFLICT,
        "Conflict",
        f'Operation cannot be fulfilled on {resource.qualified}{suffix} "{name}": {why}',
        details={**_details(resource, name), "kind": f"{resource.plural}{suffix}"},
    )


def stale(resource: Resource, name: str) -> ApiError:
    """Return the 409 to a write based on an old resourceVersion."""
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version "
        "and try again",
    )


def wrong_uid(target: Target, *, wanted: str, found: str) -> ApiError:
    """Return a 409: the name exists, but belongs to another object."""
    return _storage_conflict(
        target,
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}",
    )


def wrong_version(target: Target, *, wanted: str, found: str) -> ApiError:
    """Return a 409: the name exists, but at another resourceVersion."""
    return _storage_conflict(
        target,
        f"Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in "
        f"object meta: {found}",
    )


def _storage_conflict(target: Target, why: str) -> ApiError:
    path = "/".join(filter(None, (target.resource.plural, target.namespace, target.name)))
    return conflict(
        target.resource,
        target.name,
        f"StorageError: invalid object, Code: 4, Key: /registry/{path}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: {why}",
    )


def precondition_failed(
    resource: Resource, name: str, *, field: str, wanted: str, found: str
) -> ApiError:
    """Return the 409 to a delete or an eviction of another object or another version."""
    what = "deleted and then recreated" if field == "UID" else "modified"
    return ApiError(
        HTTPStatus.CONFLICT,
        "Conflict",
        f'Operation cannot be fulfilled on {_kind(resource)} "{name}": the {field} in the '
        f"precondition ({wanted}) does not match the {field} in record ({found}). The object "
        f"might have been {what}",
        details={**_details(resource, name), "kind": resource.kind},
    )


def invalid(resource: Resource, name: str, causes: Sequence[StatusCause]) -> ApiError:
    """Return a 422 with every fault found; there must be at least one."""
    listed = [str(cause) for cause in causes]
    message = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "Invalid",
        f'{_kind(resource)} "{name}" is invalid: {message}',
        details={
            **_details(resource, name),
            "kind": resource.kind,
            "causes": [
                {"reason": cause.reason, "message": cause.message, "field": cause.field}
                for cause in causes
            ],
        },
    )


def _kind(resource: Resource) -> str:
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


def version_required(resource: Resource, name: str) -> ApiError:
    """Return the 422 to an update without a resourceVersion of a kind that requires one."""
    fault = StatusCause(
        field="metadata.resourceVersion",
        reason="FieldValueInvalid",
        message="Invalid value: 0: must be specified for an update",
    )
    error = invalid(resource, name, [fault])
    return ApiError(
        error.code,
        error.reason,
        f'{resource.qualified} "{name}" is invalid: {fault}',
        details={**(error.details or {}), "kind": resource.plural},
    )


def unprocessable_patch() -> ApiError:
    """Return the 422 to a JSON patch that does not apply; the operation is not named, as there."""
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "Invalid",
        "the server rejected our request due to an error in our request",
        details={},
    )


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    """Return a 403; *why* follows the API server's opening words."""
    return ApiError(
        HTTPStatus.FORBIDDEN,
        "Forbidden",
        f'{resource.qualified} "{name}" is forbidden: {why}',
        details=_details(resource, name),
    )


def expired(message: str) -> ApiError:
    """Return a 410: the requested revision is older than the history kept."""
    return ApiError(HTTPStatus.GONE, "Expired", message)


def too_many_requests(message: str, *, retry_after_s: int, cause: str) -> ApiError:
    """Return the 429 to an eviction that a disruption budget forbids; *cause* describes it."""
    details: Json = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    return ApiError(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", message, details=details)


def internal(message: str) -> ApiError:
    """Return a 500."""
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "InternalError",
        f"Internal error occurred: {message}",
        details={"causes": [{"message": message}]},
    )


def unsupported_media_type(message: str, *, details: Json | None = None) -> ApiError:
    """Return a 415."""
    code = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    return ApiError(code, "UnsupportedMediaType", message, details=details)
