"""Decodes AdmissionReview v1 requests and the pods in them, and encodes the responses.

Source: k8s.io/api/admission/v1 types.go.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from fracgpu.errors import shorten_bytes
from fracgpu.k8s.affinity import NodeSelectorJson
from fracgpu.k8s.container import ContainerKind, ContainerSpec, init_container_kind
from fracgpu.k8s.node_affinity import Toleration

_T = TypeVar("_T")

_NULL: Final = msgspec.Raw(b"null")


class MalformedReviewError(Exception):
    """The body is not what the API server sends; the message says what was wanted."""


class ContainerClaim(msgspec.Struct, frozen=True, gc=False):
    """One of ``resources.claims``: an entry of the pod's ``resourceClaims``, or a part of it."""

    name: str = ""
    request: str = ""


class Resources(msgspec.Struct, frozen=True, gc=False):
    """``resources`` of a container; quantities may be JSON numbers."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None
    claims: list[ContainerClaim] | None = None


class EnvVar(msgspec.Struct, frozen=True, gc=False):
    """One environment variable; without a value it is empty or set by ``valueFrom``."""

    name: str
    value: str | None = None


class Container(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A container or init container."""

    name: str
    restart_policy: str | None = None
    resources: Resources | None = None
    env: list[EnvVar] | None = None

    @property
    def amounts(self) -> tuple[dict[str, str], dict[str, str]]:
        """The container's limits and requests, each amount as text."""
        resources = self.resources
        if resources is None:
            return {}, {}
        return _as_text(resources.limits), _as_text(resources.requests)


def _as_text(amounts: dict[str, str | int | float] | None) -> dict[str, str]:
    return {key: str(amount) for key, amount in amounts.items()} if amounts else {}


class NodeAffinity(msgspec.Struct, frozen=True):
    """``affinity.nodeAffinity``."""

    required: NodeSelectorJson | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None


class PodMeta(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of a pod."""

    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    managed_fields: msgspec.Raw = _NULL


class PodOs(msgspec.Struct, frozen=True, gc=False):
    """``spec.os``."""

    name: str = ""


class PodClaim(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """One of ``spec.resourceClaims``."""

    name: str = ""
    resource_claim_name: str | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a pod's ``spec`` that admission reads."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    scheduler_name: str = ""
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    os: PodOs | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    resource_claims: list[PodClaim] | None = None

    @property
    def required_nodes(self) -> NodeSelectorJson | None:
        """The required node affinity."""
        found = self.affinity and self.affinity.node_affinity
        return found.required if found else None


NO_META: Final = PodMeta()


class Pod(msgspec.Struct, frozen=True):
    """A pod as the API server is about to store it; templates may lack ``metadata``."""

    spec: PodSpec
    metadata: PodMeta = NO_META

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def containers(self) -> tuple[Container, ...]:
        """All containers, init containers first."""
        spec = self.spec
        if not spec.init_containers:
            return tuple(spec.containers)
        return (*spec.init_containers, *spec.containers)


class _StoredSpec(msgspec.Struct, rename="camel"):
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None


class _StoredPod(msgspec.Struct):
    metadata: PodMeta = NO_META
    spec: _StoredSpec = msgspec.field(default_factory=_StoredSpec)


_pod_decoder: Final = msgspec.json.Decoder(Pod)
_stored_pod_decoder: Final = msgspec.json.Decoder(_StoredPod)


def read_pod(body: bytes | msgspec.Raw, *, what: str = "the pod") -> Pod:
    """Decode a pod.

    Raises:
        MalformedReviewError: the body is no pod; the message begins with *what*.
    """
    return decode(_pod_decoder, body, what=what)


def read_stored_pod(body: bytes | msgspec.Raw, *, what: str) -> Pod:
    """Decode the metadata and the node selectors of a stored pod; it has no containers.

    Raises:
        MalformedReviewError: the body is no pod; the message begins with *what*.
    """
    stored = decode(_stored_pod_decoder, body, what=what)
    spec = stored.spec
    selecting = PodSpec(containers=[], node_selector=spec.node_selector, affinity=spec.affinity)
    return Pod(spec=selecting, metadata=stored.metadata)


def decode(decoder: "msgspec.json.Decoder[_T]", body: bytes | msgspec.Raw, *, what: str) -> _T:
    """Decode JSON.

    Raises:
        MalformedReviewError: the body is not JSON, or of another shape.
    """
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise MalformedReviewError(shorten_bytes(f"{what} cannot be read: {error}")) from error


def places(pod: Pod) -> list[tuple[str, Container]]:
    """Return each container with its JSON pointer, init containers first."""
    found = [
        (f"/spec/initContainers/{index}", container)
        for index, container in enumerate(pod.spec.init_containers or ())
    ]
    for index, container in enumerate(pod.spec.containers):
        found.append((f"/spec/containers/{index}", container))
    return found


def specs(pod: Pod) -> tuple[ContainerSpec, ...]:
    """Return the pod's containers in the core's form, init containers first.

    Without the resources of a node itself: no request for a card is made in those.
    """
    apps = [_spec(each, ContainerKind.APP) for each in pod.spec.containers]
    written = _written_containers(pod) if len(apps) > 1 else ()
    if written:
        apps = [msgspec.structs.replace(spec, injected=spec.name not in written) for spec in apps]
    if not pod.spec.init_containers:
        return tuple(apps)
    init = [
        _spec(each, init_container_kind(each.restart_policy)) for each in pod.spec.init_containers
    ]
    return (*init, *apps)


class _SpecFields(msgspec.Struct):
    containers: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict, name="f:containers")


class _Fields(msgspec.Struct):
    spec: _SpecFields = msgspec.field(default_factory=_SpecFields, name="f:spec")


class _Manager(msgspec.Struct):
    """One of ``managedFields``."""

    fields: _Fields = msgspec.field(default_factory=_Fields, name="fieldsV1")


_managers_decoder: Final = msgspec.json.Decoder(list[_Manager])
_KEY_OF_ITEM: Final = "k:"


def _written_containers(pod: Pod) -> frozenset[str]:
    """Return the app containers that the request's author wrote; empty where that is not known.

    ``managedFields`` has the fields of the object as it was sent, and not what webhooks have added
    to it since (apiserver, pkg/endpoints/handlers/create.go).
    """
    with suppress(ValueError, RecursionError):  # as msgspec raises; a template may have anything
        found = _managers_decoder.decode(pod.metadata.managed_fields)
        items = [key for manager in found for key in manager.fields.spec.containers]
        return frozenset(
            msgspec.json.decode(key.removeprefix(_KEY_OF_ITEM), type=_ContainerName).name
            for key in items
            if key.startswith(_KEY_OF_ITEM)
        )
    return frozenset()


class _ContainerName(msgspec.Struct):
    name: str


def _spec(container: Container, kind: ContainerKind) -> ContainerSpec:
    resources = container.resources
    if resources is None:
        return ContainerSpec(name=container.name, kind=kind)
    return ContainerSpec(
        name=container.name,
        kind=kind,
        limits=_beside_host(resources.limits),
        requests=_beside_host(resources.requests),
    )


def _beside_host(amounts: dict[str, str | int | float] | None) -> dict[str, str]:
    found = amounts.items() if amounts else ()
    return {key: str(amount) for key, amount in found if key not in _OF_HOST}


_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_OF_HOST: Final = frozenset({"cpu", "memory", "ephemeral-storage"})

# kube-apiserver truncates every warning to 256 characters once all of them together exceed 4096
# (apiserver, endpoints/filters/warning.go), and our warnings end with what to do.
_MOST_WARNINGS_CHARS: Final = 4000


class Operation(StrEnum):
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
