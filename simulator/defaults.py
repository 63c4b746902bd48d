"""What the API server fills in: typed defaults, canonical quantities, and fields that it owns.

Source: the SetDefaults_* functions of k8s.io/kubernetes pkg/apis/{core,apps,batch}/v1 and the
PrepareForCreate methods of pkg/registry; only what a program of this size can notice.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from simulator import quantities, resources
from simulator.objects import Json, metadata
from simulator.status import bad_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulator.resources import Resource

_TEMPLATED: Final = frozenset(
    r.storage for r in (resources.DEPLOYMENTS, resources.REPLICASETS, resources.STATEFULSETS,
                        resources.JOBS)
)  # fmt: skip
_WEBHOOKS: Final = frozenset(
    {resources.MUTATING_WEBHOOKS.storage, resources.VALIDATING_WEBHOOKS.storage}
)


def apply_defaults(resource: Resource, value: Json) -> None:
    """Fill in what was left out, in place.

    Raises:
        ApiError: 400, a value has the wrong type for its field.
    """
    _check_strings(resource, value)
    setter = _SETTERS.get(resource.storage)
    if setter is not None:
        setter(value)
    if resource.storage in _TEMPLATED:
        template = _object(_object(value, "spec"), "template")
        _pod_defaults(resource, template)
    if resource.storage == resources.PODS.storage:
        _pod_defaults(resource, value)
    if resource.storage == resources.NODES.storage:
        for member in ("capacity", "allocatable"):
            _canonical(resource, (value.get("status") or {}).get(member))
    if resource.storage in _WEBHOOKS:
        for webhook in value.get("webhooks") or []:
            _webhook_defaults(webhook)


def apply_creation(resource: Resource, value: Json) -> None:
    """Set what only a new object gets, in place; its uid is already known."""
    if resource.has_status and resource.resets_status:
        value.pop("status", None)
    match resource.storage:
        case resources.PODS.storage:
            value["status"] = {"phase": "Pending", "qosClass": qos_class(value["spec"])}
        case resources.NAMESPACES.storage:
            meta = metadata(value)
            meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = meta["name"]
            value.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
            value["status"] = {"phase": "Active"}
        case resources.JOBS.storage:
            _job_selector(value)
        case _:
            pass


def qos_class(spec: Json) -> str:
    """Tell a pod's quality-of-service class; only cpu and memory count."""
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    asked, guaranteed = False, bool(containers)
    for container in containers:
        demands = container.get("resources") or {}
        limits, requests = demands.get("limits") or {}, demands.get("requests") or {}
        for name in ("cpu", "memory"):
            asked |= name in limits or name in requests
            guaranteed &= name in limits and requests.get(name, limits[name]) == limits[name]
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def pod_specs(resource: Resource, value: Json) -> Iterator[tuple[str, Json]]:
    """Yield each pod spec inside *value* with its path."""
    if resource.storage == resources.PODS.storage:
        yield "spec", _object(value, "spec")
    elif resource.storage in _TEMPLATED:
        template = _object(_object(value, "spec"), "template")
        yield "spec.template.spec", _object(template, "spec")


def containers_of(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield each container of a pod spec with its path inside the spec."""
    for member in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(member) or []):
            yield f"{member}[{index}]", container


def _object(parent: Json, member: str) -> Json:
    value = parent.get(member)
    if value is None:
        value = parent[member] = {}
    if not isinstance(value, dict):
        raise bad_request(f"{member} is {type(value).__name__}; want an object")
    return value


def _check_strings(resource: Resource, value: Json) -> None:
    # An unquoted number in a label or annotation never reaches a webhook of the real server.
    for member in ("labels", "annotations"):
        for key, text in (metadata(value).get(member) or {}).items():
            if not isinstance(text, str):
                kind = "bool" if isinstance(text, bool) else "number"
                raise bad_request(
                    f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                    f"{resource.kind}: json: cannot unmarshal {kind} into Go struct field "
                    f"ObjectMeta.metadata.{member} of type string (key {key})"
                )


def _canonical(resource: Resource, amounts: Json | None) -> None:
    if not amounts:
        return
    for name, amount in amounts.items():
        try:
            amounts[name] = quantities.canonical(amount)
        except ValueError as error:
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                f"{resource.kind}: {error}"
            ) from error


def _pod_defaults(resource: Resource, pod: Json) -> None:
    spec = _object(pod, "spec")
    for key, default in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
    ):
        spec.setdefault(key, default)
    spec.setdefault("securityContext", {})
    for _path, container in containers_of(spec):
        demands = _object(container, "resources")
        for member in ("limits", "requests"):
            _canonical(resource, demands.get(member))
        if demands.get("limits"):
            demands["requests"] = {**demands["limits"], **(demands.get("requests") or {})}


def _deployment(value: Json) -> None:
    spec = _object(value, "spec")
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _replicaset(value: Json) -> None:
    _object(value, "spec").setdefault("replicas", 1)


def _statefulset(value: Json) -> None:
    spec = _object(value, "spec")
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})


def _job(value: Json) -> None:
    spec = _object(value, "spec")
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)


def _job_selector(value: Json) -> None:
    if value["spec"].get("manualSelector"):
        return
    meta = metadata(value)
    own = {"batch.kubernetes.io/controller-uid": meta["uid"]}
    value["spec"]["selector"] = {"matchLabels": own}
    template = metadata(value["spec"]["template"])
    template["labels"] = {
        **(template.get("labels") or {}),
        **own,
        "controller-uid": meta["uid"],
        "batch.kubernetes.io/job-name": meta["name"],
        "job-name": meta["name"],
    }


def _secret(value: Json) -> None:
    value.setdefault("type", "Opaque")
    clear = value.pop("stringData", None)
    if clear:
        encoded = {k: base64.b64encode(str(v).encode()).decode() for k, v in clear.items()}
        value["data"] = {**(value.get("data") or {}), **encoded}


def _webhook_defaults(webhook: Json) -> None:
    for key, default in (
        ("failurePolicy", "Fail"),
        ("matchPolicy", "Equivalent"),
        ("timeoutSeconds", 10),
    ):
        webhook.setdefault(key, default)
    webhook.setdefault("namespaceSelector", {})
    webhook.setdefault("objectSelector", {})
    for rule in webhook.get("rules") or []:
        rule.setdefault("scope", "*")
    service = (webhook.get("clientConfig") or {}).get("service")
    if isinstance(service, dict):
        service.setdefault("port", 443)


_SETTERS: Final[dict[str, Callable[[Any], None]]] = {
    resources.DEPLOYMENTS.storage: _deployment,
    resources.REPLICASETS.storage: _replicaset,
    resources.STATEFULSETS.storage: _statefulset,
    resources.JOBS.storage: _job,
    "secrets": _secret,
}
