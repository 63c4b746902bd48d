"""Decodes AdmissionReview v1 requests and the pods in them, and encodes the responses.

Source: k8s.io/api/admission/v1 types.go.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    owner_references: list[msgspec.Raw] | None = None


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
    spec = pod.spec
    apps = [_spec(each, ContainerKind.APP) for each in spec.containers]
    written = _written_containers(pod.metadata.managed_fields) if len(apps) > 1 else ()
    if written:
        apps = [msgspec.structs.replace(each, injected=each.name not in written) for each in apps]
    if not spec.init_containers:
        return tuple(apps)
    init = [_spec(each, init_container_kind(each.restart_policy)) for each in spec.init_containers]
    return (*init, *apps)


class _SpecFields(msgspec.Struct, frozen=True, gc=False):
    containers: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict, name="f:containers")


class _Fields(msgspec.Struct, frozen=True, gc=False):
    spec: _SpecFields = msgspec.field(default=_SpecFields(), name="f:spec")


class _Manager(msgspec.Struct, frozen=True, gc=False):
    """One of ``managedFields``; a hostile one may have very many that are empty."""

    fields: _Fields = msgspec.field(default=_Fields(), name="fieldsV1")


_managers_decoder: Final = msgspec.json.Decoder(list[_Manager])
_KEY_OF_ITEM: Final = "k:"


def _written_containers(managed_fields: msgspec.Raw) -> frozenset[str]:
    """Return the app containers that the request's author wrote; empty where that is not known.

    ``managedFields`` has the fields of the object as it was sent, and not what webhooks have added
    to it since (apiserver, pkg/endpoints/handlers/create.go).
    """
    if managed_fields is _NULL:
        return frozenset()
    with suppress(ValueError, RecursionError):  # as msgspec raises; a template may have anything
        found = _managers_decoder.decode(managed_fields)
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
    if not amounts or amounts.keys() <= _OF_HOST:
        return {}  # nearly every container
    return {key: str(amount) for key, amount in amounts.items() if key not in _OF_HOST}


_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_OF_HOST: Final = frozenset({"cpu", "memory", "ephemeral-storage"})

# kube-apiserver truncates every warning to 256 characters once all of them together exceed 4096
# (apiserver, endpoints/filters/warning.go), and our warnings end with what to do.
_MOST_WARNINGS_CHARS: Final = 4000


CREATE: Final = "CREATE"

UPDATE: Final = "UPDATE"


class GroupKind(msgspec.Struct, frozen=True):
    """The kind of an object; the core's group is empty."""

    kind: str
    group: str = ""


class UserInfo(msgspec.Struct, frozen=True):
    """Who makes a request."""

    username: str = ""


class Review(msgspec.Struct, frozen=True, rename="camel"):
    """One admission request of the API server.

    Attributes:
        uid: of the request, repeated in the answer.
        operation: ``CREATE`` or ``UPDATE``.
        name: of the object; the prefix of its name while it has none.
        object: JSON of the object.
        old_object: JSON of the stored object, for UPDATE.
        dry_run: nothing is stored, whatever the answer.
    """

    uid: str
    kind: GroupKind
    operation: str
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL
    dry_run: bool | None = None

    @property
    def old(self) -> msgspec.Raw | None:
        """JSON of the object before an update; None for a new one."""
        return self.old_object if self.operation == UPDATE else None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: Review


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
    if wire.api_version != _API_VERSION or wire.kind != _KIND:
        found = f"{wire.api_version[:80]} {wire.kind[:80]}"
        raise MalformedReviewError(f"the body is {found}; want {_API_VERSION} {_KIND}")
    review = wire.request
    if not review.uid:
        raise MalformedReviewError("request.uid is empty; want the uid that the answer repeats")
    if review.operation not in (CREATE, UPDATE):
        raise MalformedReviewError(
            f"request.operation is {review.operation[:40]!r}; want CREATE or UPDATE"
        )
    if review.object == _NULL:
        raise MalformedReviewError("request.object is null; want the object")
    if review.operation == UPDATE and review.old_object == _NULL:
        raise MalformedReviewError("request.oldObject is null; want the object before the update")
    return review


def read_pods(review: Review) -> tuple[Pod, Pod | None]:
    """Decode the pod of a review, and for an update the stored one.

    Raises:
        MalformedReviewError: the review is of another kind, or a pod cannot be decoded.
    """
    if review.kind.group or review.kind.kind != "Pod":
        raise MalformedReviewError(
            f"request.kind is {kind_of(review)}; want core Pod, as the webhook's rules say"
        )
    pod = read_pod(review.object, what="request.object")
    old = review.old
    return pod, None if old is None else read_stored_pod(old, what="request.oldObject")


def kind_of(review: Review) -> str:
    """Return the group and kind of the object, for messages."""
    return f"{review.kind.group[:80] or 'core'} {review.kind.kind[:80]}"


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
