"""The fields of a pod, or of a workload's pod template, that admission reads."""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from fracgpu.errors import shorten_bytes
from fracgpu.k8s.affinity import NodeSelectorJson
from fracgpu.k8s.container import ContainerKind, ContainerSpec, init_container_kind

_T = TypeVar("_T")


class MalformedReviewError(Exception):
    """The body is not what the API server sends; the message says what was wanted."""


class Resources(msgspec.Struct, frozen=True, gc=False):
    """``resources`` of a container; quantities may be JSON numbers."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


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


class PodOs(msgspec.Struct, frozen=True, gc=False):
    """``spec.os``."""

    name: str = ""


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a pod's ``spec`` that admission reads."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    scheduler_name: str = ""
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    os: PodOs | None = None
    affinity: Affinity | None = None

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
    """Return the pod's containers in the core's form, init containers first."""
    apps = [_spec(each, ContainerKind.APP) for each in pod.spec.containers]
    if not pod.spec.init_containers:
        return tuple(apps)
    init = [
        _spec(each, init_container_kind(each.restart_policy)) for each in pod.spec.init_containers
    ]
    return (*init, *apps)


def _spec(container: Container, kind: ContainerKind) -> ContainerSpec:
    resources = container.resources
    if resources is None or not (resources.limits or resources.requests):
        return ContainerSpec(name=container.name, kind=kind)  # nearly every container
    limits, requests = container.amounts
    return ContainerSpec(name=container.name, kind=kind, limits=limits, requests=requests)
