"""The subresources with logic of their own: binding and eviction.

Source: k8s.io/kubernetes pkg/registry/core/pod/storage/{storage,eviction}.go, policy and apps
registries, 1.36; the messages are the same because clients parse them.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from fracgpu.k8s.pod import has_ended
from fracgpu.k8s.selectors import label_selector
from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.errors import (
    ApiError,
    bad_request,
    conflict,
    too_many_requests,
    wrong_uid,
    wrong_version,
)
from simulator.apiserver.apimachinery.request_info import Attributes, Context, Operation, Target
from simulator.apiserver.registry.strategy import check_preconditions
from simulator.objects import Json, format_time, labels, metadata, thaw

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.apiserver.apimachinery.storage import Stored
    from simulator.apiserver.registry.registry import Registry

SUCCESS: Final[Json] = {
    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
}  # fmt: skip
_BUDGET_SPENT: Final = "Cannot evict pod as it would violate the pod's disruption budget."


async def bind(registry: Registry, target: Target, binding: Json, context: Context) -> Json:
    """Set a pod's node, and the binding's annotations and labels, in one write.

    Raises:
        ApiError: 409 when the pod is already bound, terminating, gated, or does not match the
            binding's uid and resourceVersion.
    """
    meta = metadata(binding)
    _check_name(meta, target, "Binding")
    node = (binding.get("target") or {}).get("name")
    if not node:
        why = "target.name: Required value"
        raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "", why)
    await _admit_create(registry, target, ("", "v1", "Binding"), binding, context)

    def assign(pod: Json) -> Json:
        _check_bindable(target, pod, meta)
        pod["spec"]["nodeName"] = node
        mine = metadata(pod)
        if meta.get("annotations"):
            mine["annotations"] = {**(mine.get("annotations") or {}), **meta["annotations"]}
        if meta.get("labels"):  # since Kubernetes 1.35, PodTopologyLabelsAdmission
            mine["labels"] = {**(mine.get("labels") or {}), **meta["labels"]}
        _set_condition(
            registry, pod, {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        )
        return pod

    _write(registry, target, assign, context)
    return {**SUCCESS, "code": HTTPStatus.CREATED}


def _check_bindable(target: Target, pod: Json, wanted: Json) -> None:
    mine = metadata(pod)
    if wanted.get("uid") and wanted["uid"] != mine["uid"]:
        raise wrong_uid(target, wanted=wanted["uid"], found=mine["uid"])
    if wanted.get("resourceVersion") not in (None, "", mine["resourceVersion"]):
        version = mine["resourceVersion"]
        raise wrong_version(target, wanted=wanted["resourceVersion"], found=version)
    why = ""
    if "deletionTimestamp" in mine:
        why = f"pod {target.name} is being deleted, cannot be assigned to a host"
    elif pod["spec"].get("nodeName"):
        why = f'pod {target.name} is already assigned to node "{pod["spec"]["nodeName"]}"'
    elif pod["spec"].get("schedulingGates"):
        why = f"pod {target.name} has non-empty .spec.schedulingGates"
    if why:
        raise conflict(target.resource, target.name, why, subresource="binding")


async def evict(registry: Registry, target: Target, eviction: Json, context: Context) -> Json:
    """Delete a pod if its disruption budget allows.

    Raises:
        ApiError: 429 with cause DisruptionBudget, 500 for more than one budget, 409 for a
            precondition, 404, 403 for a budget with a negative count.
    """
    _check_name(metadata(eviction), target, "Eviction")
    options = eviction.get("deleteOptions") or {}
    dry_run = context.dry_run or bool(options.get("dryRun"))
    context = Context(
        user=context.user, dry_run=dry_run, options=options, warnings=context.warnings
    )
    await _admit_create(registry, target, ("policy", "v1", "Eviction"), eviction, context)
    pod = registry.get(target).object
    # The budget is checked, and decremented, before the preconditions, as in the real server.
    if not _bypasses_budgets(pod):
        _spend_budget(registry, target, pod, dry_run=dry_run)
    check_preconditions(target, pod, options)
    if not dry_run:
        disrupted = {
            "type": "DisruptionTarget",
            "lastProbeTime": None,
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }

        def mark(current: Json) -> Json:
            _set_condition(registry, current, disrupted)
            return current

        _write(registry, target, mark, context)
        # The condition has changed the resourceVersion, so the precondition has served its purpose.
        preconditions = {**(options.get("preconditions") or {}), "resourceVersion": None}
        context = replace(context, options={**options, "preconditions": preconditions})
    registry.remove(target, context)
    return {**SUCCESS, "code": HTTPStatus.CREATED}


def _bypasses_budgets(pod: Json) -> bool:
    phase = (pod.get("status") or {}).get("phase", "")
    return has_ended(phase) or phase == "Pending" or "deletionTimestamp" in pod["metadata"]


def _spend_budget(registry: Registry, target: Target, pod: Json, *, dry_run: bool) -> None:
    budgets = [
        stored
        for stored in registry.store.list(resources.PDBS.qualified, target.namespace)
        if (selector := label_selector((stored.object.get("spec") or {}).get("selector")))
        is not None
        and selector.matches(labels(pod))
    ]
    if not budgets:
        return
    if len(budgets) > 1:
        raise ApiError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support.",
        )
    budget = budgets[0]
    if not _is_ready(pod) and _lets_unready_go(budget.object):
        return
    _check_budget(budget)
    if dry_run:
        return

    def decrement(value: Json) -> Json:
        status = value["status"]
        status["disruptionsAllowed"] -= 1
        if status["disruptionsAllowed"] == 0:
            _set_condition(
                registry,
                value,
                {
                    "type": "DisruptionAllowed",
                    "status": "False",
                    "reason": "InsufficientPods",
                    "message": "",
                    "observedGeneration": status["observedGeneration"],
                },
            )
        status.setdefault("disruptedPods", {})[target.name] = format_time(registry.clock.now())
        return value

    where = Target(
        resource=resources.PDBS,
        namespace=target.namespace,
        name=budget.key.name,
        subresource="status",
    )
    _write(registry, where, decrement, Context())


def _lets_unready_go(budget: Json) -> bool:
    status = budget.get("status") or {}
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _check_budget(budget: Stored) -> None:
    name, status = budget.key.name, budget.object.get("status") or {}
    if status.get("observedGeneration", 0) != budget.object["metadata"].get("generation"):
        raise too_many_requests(
            _BUDGET_SPENT,
            retry_after_s=10,
            cause=f"The disruption budget {name} is still being processed by the server.",
        )
    if status.get("disruptionsAllowed", 0) == 0:
        desired, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        cause = f"The disruption budget {name} does not allow evicting pods currently"
        if healthy <= desired:
            cause = (
                f"The disruption budget {name} needs {desired} healthy pods and has {healthy} "
                "currently"
            )
        raise too_many_requests(_BUDGET_SPENT, retry_after_s=0, cause=cause)


def _write(
    registry: Registry, target: Target, change: Callable[[Json], Json], context: Context
) -> Json:
    """Write without admission and without awaiting, so no other write can intervene."""
    current = registry.get(target)
    value = change(thaw(current.object))
    if context.dry_run or value == current.object:
        return value
    return registry.store.write(target.key, value, expected=current.revision).object


async def _admit_create(
    registry: Registry, target: Target, kind: tuple[str, str, str], value: Json, context: Context
) -> None:
    attributes = Attributes(
        target=target,
        operation=Operation.CREATE,
        kind=kind,
        value=value,
        before=None,
        context=context,
    )
    registry.get(Target(resource=target.resource, namespace=target.namespace, name=target.name))
    mutated = await registry.admission.mutate(attributes)
    if mutated is not value:
        value.clear()
        value.update(mutated)
    await registry.admission.validate(attributes)


def _check_name(meta: Json, target: Target, kind: str) -> None:
    if meta.get("name") != target.name:
        raise bad_request(f"name in URL does not match name in {kind} object")
    if meta.get("namespace") not in (None, "", target.namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in conditions
    )


def _set_condition(registry: Registry, value: Json, condition: Json) -> None:
    status = value.setdefault("status", {})
    others = [
        other for other in status.get("conditions") or [] if other.get("type") != condition["type"]
    ]
    moment = format_time(registry.clock.now())
    status["conditions"] = [*others, {**condition, "lastTransitionTime": moment}]
