"""What the API server sets: typed defaults, canonical quantities, and fields that it owns.

Source: the SetDefaults_* functions of k8s.io/kubernetes pkg/apis/{core,apps,batch}/v1 and the
PrepareForCreate methods of pkg/registry; only what FracGPU can notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fracgpu.k8s import quantity
from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import bad_request
from simulator.apiserver.registry.schemas import prune
from simulator.objects import Json, labels, metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulator.apiserver.apimachinery.resources import Resource

_TEMPLATED: Final = frozenset(
    resource.qualified
    for resource in (
        resources.DEPLOYMENTS,
        resources.REPLICASETS,
        resources.STATEFULSETS,
        resources.JOBS,
    )
)
_EVICTED_AFTER_S: Final = 300  # admission plugin DefaultTolerationSeconds
_NODE_TROUBLES: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_INFO: Final = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
    "kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture",
)  # fmt: skip
_FRESH_STATUS: Final[dict[str, Json]] = {
    resources.PODS.qualified: {"phase": "Pending"},
    resources.REPLICASETS.qualified: {"replicas": 0},
    resources.STATEFULSETS.qualified: {"replicas": 0, "availableReplicas": 0},
    resources.PDBS.qualified: {
        "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
    },
    resources.NAMESPACES.qualified: {"phase": "Active"},
}  # fmt: skip
_WEBHOOKS: Final = frozenset(
    {resources.MUTATING_WEBHOOKS.qualified, resources.VALIDATING_WEBHOOKS.qualified}
)


def apply_defaults(resource: Resource, value: Json) -> None:
    """Set defaults in place.

    Raises:
        ApiError: 400, a value has the wrong type for its field.
    """
    _check_strings(resource, value)
    if resource.schema is not None:
        prune(resource.schema, value)
    setter = _SETTERS.get(resource.qualified)
    if setter is not None:
        setter(value)
    if resource.qualified in _TEMPLATED:
        template = _object(_object(value, "spec"), "template")
        _template_defaults(resource, template)
    if resource.qualified == resources.PODS.qualified:
        _template_defaults(resource, value)
        _pod_defaults(value)
    if resource.qualified == resources.NODES.qualified:
        _node_defaults(resource, value)
    if resource.qualified in _WEBHOOKS:
        for webhook in value.get("webhooks") or []:
            _webhook_defaults(webhook)


def apply_creation(resource: Resource, value: Json) -> None:
    """Set, in place, what only a new object gets; its uid is already set."""
    if resource.schema is not None and resource.has_status:
        value.pop("status", None)
    elif resource.has_status and resource.resets_status:
        value["status"] = dict(_FRESH_STATUS.get(resource.qualified, {}))
    match resource.qualified:
        case resources.PODS.qualified:
            value["status"]["qosClass"] = qos_class(value["spec"])
            if value["spec"].get("schedulingGates"):
                value["status"]["conditions"] = [_gated(metadata(value)["creationTimestamp"])]
        case resources.NAMESPACES.qualified:
            meta = metadata(value)
            meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = meta["name"]
            value.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        case _:
            pass


def _gated(moment: str) -> Json:
    return {
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": moment,
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }


def qos_class(spec: Json) -> str:
    """Return a pod's quality-of-service class; only cpu and memory count."""
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
    if resource.qualified == resources.PODS.qualified:
        yield "spec", _object(value, "spec")
    elif resource.qualified in _TEMPLATED:
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
        for text in (metadata(value).get(member) or {}).values():
            if not isinstance(text, str):
                raise bad_request(
                    f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                    f"{resource.kind}: json: cannot unmarshal {_go_type(text)} into Go struct "
                    f"field ObjectMeta.metadata.{member} of type string"
                )


def _go_type(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def _canonical(resource: Resource, amounts: Json | None) -> None:
    if not amounts:
        return
    for name, amount in amounts.items():
        try:
            amounts[name] = quantity.canonical(amount)
        except ValueError as error:
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                f"{resource.kind}: {error}"
            ) from error


def _node_defaults(resource: Resource, node: Json) -> None:
    node.setdefault("spec", {})
    status = _object(node, "status")
    _null_times(status.get("conditions"), "lastHeartbeatTime", "lastTransitionTime")
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = {**dict.fromkeys(_NODE_INFO, ""), **(status.get("nodeInfo") or {})}
    for member in ("capacity", "allocatable"):
        _canonical(resource, status.get(member))
    if status.get("capacity"):  # only until a kubelet says otherwise
        status.setdefault("allocatable", dict(status["capacity"]))


def _null_times(conditions: list[Json] | None, *members: str) -> None:
    """Set missing times to null, as typed objects are encoded; strict decoders must accept it."""
    for condition in conditions or []:
        for member in members:
            condition.setdefault(member, None)


def _event(value: Json) -> None:
    _null_times([value], "eventTime", "firstTimestamp", "lastTimestamp")
    value.setdefault("source", {})
    value.setdefault("reportingComponent", "")
    value.setdefault("reportingInstance", "")


def _pod_defaults(pod: Json) -> None:
    conditions = (pod.get("status") or {}).get("conditions")
    _null_times(conditions, "lastProbeTime", "lastTransitionTime")
    spec = pod["spec"]
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    tolerations = spec.setdefault("tolerations", [])
    for trouble in _NODE_TROUBLES:
        if not any(toleration.get("key") in (None, "", trouble) for toleration in tolerations):
            tolerations.append(
                {
                    "key": trouble,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _EVICTED_AFTER_S,
                }
            )


def _template_defaults(resource: Resource, pod: Json) -> None:
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
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", _pull_policy(container.get("image") or ""))
        demands = _object(container, "resources")
        for member in ("limits", "requests"):
            _canonical(resource, demands.get(member))
        if demands.get("limits"):
            demands["requests"] = {**demands["limits"], **(demands.get("requests") or {})}


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if "@" not in image and tag in ("", "latest") else "IfNotPresent"


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
    _labels_of_template(value)


def _labels_of_template(value: Json) -> None:
    found = labels(_object(_object(value, "spec"), "template"))
    if found and not labels(value):
        metadata(value)["labels"] = dict(found)


def _configmap(value: Json) -> None:
    for text in (value.get("data") or {}).values():
        if not isinstance(text, str):
            raise bad_request(
                'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot '
                f"unmarshal {_go_type(text)} into Go struct field ConfigMap.data of type string"
            )


def _secret(value: Json) -> None:
    value.setdefault("type", "Opaque")


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


def _claim(value: Json) -> None:
    for request in ((value.get("spec") or {}).get("devices") or {}).get("requests") or []:
        exactly = request.get("exactly")
        if exactly and exactly.setdefault("allocationMode", "ExactCount") == "ExactCount":
            exactly.setdefault("count", 1)
        amounts = ((exactly or {}).get("capacity") or {}).get("requests")
        _canonical(resources.RESOURCE_CLAIMS, amounts)
    allocation = (value.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or []:
        _canonical(resources.RESOURCE_CLAIMS, result.get("consumedCapacity"))


def _slice(value: Json) -> None:
    for device in (value.get("spec") or {}).get("devices") or []:
        for capacity in (device.get("capacity") or {}).values():
            policy = capacity.get("requestPolicy") or {}
            for amounts, members in (
                (capacity, ("value",)),
                (policy, ("default",)),
                (policy.get("validRange") or {}, ("min", "max", "step")),
            ):
                found = {member: amounts[member] for member in members if member in amounts}
                _canonical(resources.RESOURCE_SLICES, found)
                amounts.update(found)


_SETTERS: Final[dict[str, Callable[[Any], None]]] = {
    resources.DEPLOYMENTS.qualified: _deployment,
    resources.REPLICASETS.qualified: _replicaset,
    resources.RESOURCE_CLAIMS.qualified: _claim,
    resources.RESOURCE_SLICES.qualified: _slice,
    resources.CONFIGMAPS.qualified: _configmap,
    resources.EVENTS.qualified: _event,
    resources.SECRETS.qualified: _secret,
}
