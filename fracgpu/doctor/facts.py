"""What the checks know of a cluster; what could not be read says why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from fracgpu import names
from fracgpu.state.pod_info import PodInfo

T = TypeVar("T")

Json = Mapping[str, Any]
Objects = tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Unread:
    """A fact that could not be read; *reason* is for people."""

    reason: str


class NotKnownError(Exception):
    """A check needs a fact that is unknown."""


def known(fact: T | Unread) -> T:
    """Return a fact.

    Raises:
        NotKnownError: it could not be read.
    """
    if isinstance(fact, Unread):
        raise NotKnownError(fact.reason)
    return fact


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFact:
    """One certificate: the Secret, when it expires (None if unreadable) and what is wrong."""

    secret: str
    not_after: datetime | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustFact:
    """A webhook that does not trust the authority of the serving certificate."""

    webhook: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificatesFact:
    """All certificates, and the webhooks whose CA bundle does not match."""

    certificates: tuple[CertificateFact, ...]
    mistrust: tuple[TrustFact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionAnswer:
    """What became of a pod with an impossible request, sent as a dry run.

    Attributes:
        refused_by_webhook: our webhook has read and refused it.
        message: what the API server said; empty if it accepted the pod.
    """

    refused_by_webhook: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusFact:
    """What Prometheus said.

    Attributes:
        url: the address that the rebalancer uses, or that the caller named.
        error: why it gave no answer; empty if it did.
        series: how many series there are now of each metric that was asked for.
        interval_s: the longest scrape interval of any card; None if nothing tells.
    """

    url: str
    error: str = ""
    series: Mapping[str, int] = field(default_factory=dict)
    interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the checks look at; lists are objects as the API server has them.

    Attributes:
        now: by the API server's clock; where that is not known, by the clock of whoever asks.
        caller_ahead: how far the clock of whoever asks is ahead of the API server's, at least;
            negative where it is behind.
        own_version: of the program that asks, e.g. ``0.1.0``.
        system_namespace: where FracGPU runs.
        server_version: ``gitVersion`` of the API server.
        deployments: those of the system namespace, as the other lists in this paragraph;
            ``slices`` are EndpointSlices, ``leases`` Leases, ``pods`` Pods.
        access_roles: the ClusterRoles, and the Roles of the system namespace.
        access_bindings: what binds them to accounts.
        node_leases: of ``kube-node-lease``, which kubelets renew.
        definitions: the CustomResourceDefinition of Moves; empty if there is none.
        namespace: the system namespace itself; empty if there is none.
        requesting: pods of all namespaces that have not ended and carry a key of FracGPU.
        queued: workloads of all namespaces that a queue of Kueue admits.
        device_classes: of the cluster; they and the next two count where claims are the wiring.
        card_slices: the ResourceSlices of FracGPU's driver.
        claims: the ResourceClaims that FracGPU made.
        scheduler_configurations: by ``ConfigMap NAME, key KEY``: what kube-scheduler reads there.
        config_mistakes: of ``fracgpu-config``: the mistakes of each key; None: no such ConfigMap.
        ignored_keys: of ``fracgpu-config``: what the rebalancer's key has from earlier versions.
        by_claims: whether ``fracgpu-config`` has ``wiring: claims``.
        overcommits: whether ``fracgpu-config`` has an ``overcommit`` above 1.
    """

    now: datetime
    caller_ahead: timedelta | Unread
    own_version: str
    system_namespace: str
    server_version: str | Unread
    mutating_webhooks: Objects | Unread
    validating_webhooks: Objects | Unread
    policies: Objects | Unread
    policy_bindings: Objects | Unread
    definitions: Objects | Unread
    deployments: Objects | Unread
    daemon_sets: Objects | Unread
    slices: Objects | Unread
    leases: Objects | Unread
    pods: Objects | Unread
    config_maps: Objects | Unread
    access_roles: Objects | Unread
    access_bindings: Objects | Unread
    nodes: Objects | Unread
    node_leases: Objects | Unread
    runtime_classes: Objects | Unread
    namespace: Objects | Unread
    requesting: tuple[PodInfo, ...] | Unread
    queued: Objects | Unread
    scheduler_configurations: Mapping[str, Json] | Unread
    config_mistakes: Mapping[str, str] | Unread | None
    ignored_keys: tuple[str, ...] | Unread
    certificates: CertificatesFact | Unread
    admission: AdmissionAnswer | Unread
    prometheus: PrometheusFact | Unread
    device_classes: Objects | Unread = ()
    card_slices: Objects | Unread = ()
    claims: Objects | Unread = ()
    overcommits: bool | Unread = False
    by_claims: bool | Unread = False


def name_of(body: Json) -> str:
    """Return an object's name."""
    return str(body.get("metadata", {}).get("name", ""))


def labels_of(body: Json) -> Mapping[str, str]:
    """Return an object's labels."""
    return body.get("metadata", {}).get("labels") or {}


def annotations_of(body: Json) -> Mapping[str, str]:
    """Return an object's annotations."""
    return body.get("metadata", {}).get("annotations") or {}


def template_of(workload: Json) -> Json:
    """Return the pod template of a workload."""
    template: Json = workload.get("spec", {}).get("template") or {}
    return template


def named(objects: Objects, name: str) -> Json | None:
    """Return the object with that name, or None."""
    return next((body for body in objects if name_of(body) == name), None)


def requests_memory(pod: Json) -> bool:
    """Report whether a container of a pod, or of a pod template, has a limit of gpu-mem."""
    return any(
        names.GPU_MEM in ((container.get("resources") or {}).get("limits") or {})
        for container in pod.get("spec", {}).get("containers") or ()
    )


def limits_memory(pod: PodInfo) -> bool:
    """Report whether a container of a pod has a limit of gpu-mem."""
    return any(names.GPU_MEM in container.limits for container in pod.record.containers)


def waiting(facts: Facts) -> list[PodInfo]:
    """Return the pods that carry a key of FracGPU and have not been started yet.

    Raises:
        NotKnownError: the pods could not be read.
    """
    return [pod for pod in known(facts.requesting) if pod.phase == "Pending"]


def is_ready(body: Json) -> bool:
    """Report whether a pod or a node has the condition Ready."""
    return is_true(body, "Ready")


def condition_of(body: Json, kind: str) -> Json | None:
    """Return a condition of an object's status, or None."""
    conditions = body.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), None)


def is_true(body: Json, kind: str) -> bool:
    """Report whether an object's status has a condition, and it is true."""
    return (condition_of(body, kind) or {}).get("status") == "True"


def time_of(text: object) -> datetime | None:
    """Return a time as the API server writes it, or None."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
