"""Decodes AdmissionReview v1 requests and encodes the answers.

Source: k8s.io/api/admission/v1 types.go.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from fracgpu.errors import shorten_bytes
from webhook.admission.pod import MalformedReviewError, Pod, decode, read_pod, read_stored_pod

_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_NULL: Final = msgspec.Raw(b"null")

# kube-apiserver truncates every warning to 256 characters once all of them together exceed 4096
# (apiserver, endpoints/filters/warning.go), and our warnings end with what to do.
_MOST_WARNINGS_CHARS: Final = 4000


class Operation(Enum):
    """The operation under review."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"


_OPERATIONS: Final = {operation.value: operation for operation in Operation}


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """One admission request of the API server.

    Attributes:
        uid: of the request, repeated in the answer.
        group: API group of the object, empty for the core.
        name: of the object; the prefix of its name while it has none.
        user: who makes the request.
        dry_run: nothing is stored, whatever the answer.
        object: JSON of the object.
        old: JSON of the stored object, for UPDATE.
    """

    uid: str
    operation: Operation
    group: str
    kind: str
    namespace: str
    name: str
    user: str
    dry_run: bool
    object: msgspec.Raw
    old: msgspec.Raw | None = None


class _GroupKind(msgspec.Struct):
    kind: str
    group: str = ""


class _User(msgspec.Struct):
    username: str = ""


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    kind: _GroupKind
    operation: str
    name: str = ""
    namespace: str = ""
    user_info: _User = msgspec.field(default_factory=_User)
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL
    dry_run: bool | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: _Request


class _Status(msgspec.Struct):
    code: int
    message: str
    reason: str


class _Response(msgspec.Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    patch_type: str | None = None
    patch: bytes | None = None  # base64 in JSON, as the API server wants it
    warnings: list[str] | None = None
    status: _Status | None = None


class _Answer(msgspec.Struct, rename="camel"):
    response: _Response
    api_version: str = _API_VERSION
    kind: str = _KIND


_review_decoder: Final = msgspec.json.Decoder(_Review)
_encoder: Final = msgspec.json.Encoder()


def read_review(body: bytes) -> Review:
    """Decode an AdmissionReview; the objects in it stay raw JSON.

    Raises:
        MalformedReviewError: the body is not an AdmissionReview; the message says why.
    """
    wire = decode(_review_decoder, body, what="the body")
    if (wire.api_version, wire.kind) != (_API_VERSION, _KIND):
        found = f"{wire.api_version[:80]} {wire.kind[:80]}"
        raise MalformedReviewError(f"the body is {found}; want {_API_VERSION} {_KIND}")
    request = wire.request
    if not request.uid:
        raise MalformedReviewError("request.uid is empty; want the uid that the answer repeats")
    operation = _OPERATIONS.get(request.operation)
    if operation is None:
        raise MalformedReviewError(
            f"request.operation is {request.operation[:40]!r}; want CREATE or UPDATE"
        )
    if request.object == _NULL:
        raise MalformedReviewError("request.object is null; want the object")
    if operation is Operation.UPDATE and request.old_object == _NULL:
        raise MalformedReviewError("request.oldObject is null; want the object before the update")
    return Review(
        uid=request.uid,
        operation=operation,
        group=request.kind.group,
        kind=request.kind.kind,
        namespace=request.namespace,
        name=request.name,
        user=request.user_info.username,
        dry_run=bool(request.dry_run),
        object=request.object,
        old=request.old_object if operation is Operation.UPDATE else None,
    )


def read_pods(review: Review) -> tuple[Pod, Pod | None]:
    """Decode the pod of a review, and for an update the stored one.

    Raises:
        MalformedReviewError: the review is of another kind, or a pod cannot be decoded.
    """
    if (review.group, review.kind) != ("", "Pod"):
        raise MalformedReviewError(
            f"request.kind is {kind_of(review)}; want core Pod, as the webhook's rules say"
        )
    pod = read_pod(review.object, what="request.object")
    if review.old is None:
        return pod, None
    return pod, read_stored_pod(review.old, what="request.oldObject")


def kind_of(review: Review) -> str:
    """Return the group and kind of the object, for messages."""
    return f"{review.group[:80] or 'core'} {review.kind[:80]}"


def write_allowed(uid: str, *, patch: bytes | None = None, warnings: Sequence[str] = ()) -> bytes:
    """Return the answer that allows the object, with a JSONPatch if there is one."""
    response = _Response(uid=uid, allowed=True, warnings=_bounded(warnings) or None)
    if patch is not None:
        response.patch_type = "JSONPatch"
        response.patch = patch
    return _encoder.encode(_Answer(response=response))


def write_refused(uid: str, *, message: str, code: int, reason: str) -> bytes:
    """Return the answer that denies the object; ``kubectl`` shows the message."""
    status = _Status(code=code, message=shorten_bytes(message), reason=reason)
    return _encoder.encode(_Answer(response=_Response(uid=uid, allowed=False, status=status)))


def _bounded(warnings: Sequence[str]) -> list[str]:
    """Return as many warnings as the API server passes on untruncated, and a count of the rest."""
    kept: list[str] = []
    left = _MOST_WARNINGS_CHARS
    for number, warning in enumerate(warnings):
        text = shorten_bytes(warning)
        left -= len(text)
        if left < 0:
            return [*kept, f"and {len(warnings) - number} more warnings like these"]
        kept.append(text)
    return kept
