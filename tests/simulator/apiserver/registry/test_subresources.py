from __future__ import annotations

from typing import Any

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.request_info import Context
from simulator.apiserver.apimachinery.resources import NAMESPACES, PDBS, PODS
from simulator.apiserver.registry import subresources
from simulator.objects import Json
from tests.simulator.harness import Harness, a_pod, at

READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def a_binding(node: str = "n1", **metadata: Any) -> Json:
    return {"metadata": {"name": "a", **metadata}, "target": {"kind": "Node", "name": node}}


async def bind(harness: Harness, binding: Json, *, dry_run: bool = False) -> Json:
    context = Context(dry_run=dry_run)
    return await subresources.bind(harness.registry, at(PODS, "a", "binding"), binding, context)


async def evict(harness: Harness, *, dry_run: bool = False, **options: Any) -> Json:
    eviction = {"metadata": {"name": "a"}, "deleteOptions": options}
    context = Context(dry_run=dry_run)
    return await subresources.evict(harness.registry, at(PODS, "a", "eviction"), eviction, context)


async def test_node_and_annotations_are_one_write(registry_harness: Harness) -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {"kept": "1"}
    made = await registry_harness.create(PODS, pod)
    before = registry_harness.store.revision

    answer = await bind(registry_harness, a_binding(annotations={"fracgpu.io/assignment": "{}"}))

    found = registry_harness.get(PODS, "a")
    assert (answer["status"], answer["code"]) == ("Success", 201)
    assert registry_harness.store.revision == before + 1
    assert found["spec"]["nodeName"] == "n1"
    assert found["metadata"]["annotations"] == {"kept": "1", "fracgpu.io/assignment": "{}"}
    assert found["metadata"]["generation"] == made["metadata"]["generation"]
    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")


async def test_a_pod_that_is_being_deleted_is_not_bound(registry_harness: Harness) -> None:
    await registry_harness.pod()
    await bind(registry_harness, a_binding())
    await registry_harness.delete(PODS, "a")

    with pytest.raises(ApiError, match="is being deleted, cannot be assigned to a host"):
        await bind(registry_harness, a_binding())


async def a_running_pod(harness: Harness, **labels: str) -> None:
    pod = a_pod(nodeName="n1")
    pod["metadata"]["labels"] = labels or {"app": "a"}
    await harness.create(PODS, pod)
    await harness.change(PODS, "a", "status", status=READY)


async def a_budget(
    harness: Harness, name: str = "b", *, spec: Json | None = None, **status: Any
) -> None:
    selector = {"matchLabels": {"app": "a"}}
    value = {"metadata": {"name": name}, "spec": {"selector": selector, **(spec or {})}}
    await harness.create(PDBS, value)
    if status:
        counted = {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, **status}
        await harness.change(PDBS, name, "status", status=counted)


async def test_a_version_precondition_holds_for_the_version_it_names(
    registry_harness: Harness,
) -> None:
    await a_running_pod(registry_harness)
    version = registry_harness.get(PODS, "a")["metadata"]["resourceVersion"]

    await evict(registry_harness, preconditions={"resourceVersion": version})

    assert "deletionTimestamp" in registry_harness.get(PODS, "a")["metadata"]


async def test_a_namespace_goes_when_its_last_finalizer_does(registry_harness: Harness) -> None:
    await registry_harness.create(NAMESPACES, {"metadata": {"name": "ml"}})
    target = at(NAMESPACES, "ml", "finalize")

    subresources.finalize_namespace(registry_harness.registry, target, {"spec": {}}, Context())
    assert registry_harness.get(NAMESPACES, "ml")["spec"] == {"finalizers": []}
    await registry_harness.create(NAMESPACES, {"metadata": {"name": "ai"}})
    await registry_harness.delete(NAMESPACES, "ai")
    subresources.finalize_namespace(
        registry_harness.registry, at(NAMESPACES, "ai", "finalize"), {"spec": {}}, Context()
    )

    with pytest.raises(ApiError, match="not found"):
        registry_harness.get(NAMESPACES, "ai")
