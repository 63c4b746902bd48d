"""AdmissionReview v1 in and out: here JSON becomes types, and answers become JSON.

Source: k8s.io/api/admission/v1 types.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

import msgspec

_T = TypeVar("_T")

_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_NULL: Final = msgspec.Raw(b"null")


class MalformedReviewError(Exception):
    """Bytes that are no AdmissionReview of a pod; the message says what was wanted."""


class Operation(Enum):
    """What somebody wants to do with the pod."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"


class Resources(msgspec.Struct, frozen=True):
    """``resources`` of a container; JSON numbers are allowed where quantities stand."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class Container(msgspec.Struct, frozen=True, rename="camel"):
    """A container or init container."""

    name: str
    restart_policy: str | None = None
    resources: Resources | None = None


class Requirement(msgspec.Struct, frozen=True):
    """One node selector requirement; all of a term's must hold."""

    key: str
    operator: str
    values: list[str] | None = None


class Term(msgspec.Struct, frozen=True, rename="camel"):
    """One node selector term; one of a selector's must match, and an empty one matches nothing."""

    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(msgspec.Struct, frozen=True, rename="camel"):
    """The required part of a node affinity."""

    node_selector_terms: list[Term] | None = None


class NodeAffinity(msgspec.Struct, frozen=True):
    """``affinity.nodeAffinity``."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None


class PodMeta(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of a pod."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """``spec`` of a pod, as far as admission looks."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    scheduler_name: str = ""
    node_name: str = ""
    affinity: Affinity | None = None


class Pod(msgspec.Struct, frozen=True):
    """A pod as the API server is about to store it."""

    spec: PodSpec
    metadata: PodMeta = PodMeta()

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One question of the API server.

    Attributes:
        uid: of the question, repeated in the answer.
        old: the stored pod, for UPDATE.
        user: who asks.
        dry_run: nothing will be stored whatever we answer.
    """

    uid: str
    operation: Operation
    namespace: str
    name: str
    user: str
    dry_run: bool
    pod: Pod
    old: Pod | None = None


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
_pod_decoder: Final = msgspec.json.Decoder(Pod)
_encoder: Final = msgspec.json.Encoder()


def read_review(body: bytes) -> Review:
    """Read the API server's question about a pod.

    Raises:
        MalformedReviewError: it is not one, with the reason.
    """
    wire = _decode(_review_decoder, body, what="the body")
    if (wire.api_version, wire.kind) != (_API_VERSION, _KIND):
        raise MalformedReviewError(
            f"the body is {wire.api_version} {wire.kind}; want {_API_VERSION} {_KIND}"
        )
    request = wire.request
    if not request.uid:
        raise MalformedReviewError("request.uid is empty; want the uid that the answer repeats")
    if (request.kind.group, request.kind.kind) != ("", "Pod"):
        kind = f"{request.kind.group or 'core'} {request.kind.kind}"
        raise MalformedReviewError(f"request.kind is {kind}; want core Pod, the webhook's rules")
    try:
        operation = Operation(request.operation)
    except ValueError:
        raise MalformedReviewError(
            f"request.operation is {request.operation[:40]!r}; want CREATE or UPDATE"
        ) from None
    pod = _pod(request.object, what="request.object")
    if pod is None:
        raise MalformedReviewError("request.object is null; want the pod")
    old = _pod(request.old_object, what="request.oldObject")
    if operation is Operation.UPDATE and old is None:
        raise MalformedReviewError("request.oldObject is null; want the pod before the update")
    return Review(
        uid=request.uid,
        operation=operation,
        namespace=request.namespace or pod.metadata.namespace,
        name=request.name or pod.metadata.name or pod.metadata.generate_name,
        user=request.user_info.username,
        dry_run=bool(request.dry_run),
        pod=pod,
        old=old,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One JSONPatch operation: add, which also replaces a member that is there (RFC 6902 4.1).

    Attributes:
        path: a JSON pointer.
        value: plain JSON.
    """

    path: str
    value: object
    op: str = "add"


def write_allowed(uid: str, *, edits: Sequence[Edit] = (), warnings: Sequence[str] = ()) -> bytes:
    """Answer yes, with a JSONPatch if there is anything to change."""
    response = _Response(uid=uid, allowed=True, warnings=list(warnings) or None)
    if edits:
        response.patch_type = "JSONPatch"
        response.patch = _encoder.encode(edits)
    return _encoder.encode(_Answer(response=response))


def write_refused(uid: str, *, message: str, code: int, reason: str) -> bytes:
    """Answer no; ``kubectl`` shows the message."""
    status = _Status(code=code, message=message, reason=reason)
    return _encoder.encode(_Answer(response=_Response(uid=uid, allowed=False, status=status)))


def read_pod(body: bytes | msgspec.Raw) -> Pod:
    """Read a pod by itself.

    Raises:
        MalformedReviewError: it is not one.
    """
    return _decode(_pod_decoder, body, what="the pod")


def _pod(raw: msgspec.Raw, *, what: str) -> Pod | None:
    if raw == _NULL:
        return None
    return _decode(_pod_decoder, raw, what=what)


def _decode(decoder: "msgspec.json.Decoder[_T]", body: bytes | msgspec.Raw, *, what: str) -> _T:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise MalformedReviewError(f"{what} cannot be read: {error}") from error
