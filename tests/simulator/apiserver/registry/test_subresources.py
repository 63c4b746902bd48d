from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.request_info import Context
from simulator.apiserver.apimachinery.resources import DEPLOYMENTS, NAMESPACES, PDBS, PODS
from simulator.apiserver.registry import subresources
from simulator.objects import Json
from tests.simulator.harness import Harness, a_pod, at

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.resources import Resource

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


@pytest.mark.parametrize(
    ("binding", "code", "words"),
    [
        (a_binding(uid="other"), 409, "UID in precondition: other"),
        (a_binding(resourceVersion="1"), 409, "ResourceVersion in precondition: 1"),
        (a_binding(namespace="other"), 400, "the namespace of the provided object"),
        ({"metadata": {"name": "b"}, "target": {"name": "n"}}, 400, "name in URL does not match"),
        ({"metadata": {"name": "a"}}, 500, "target.name: Required value"),
        ({"metadata": {"name": "a"}, "target": {"name": "n", "kind": "Pod"}}, 500, "target.kind"),
    ],
)
async def test_a_binding_that_does_not_fit_writes_nothing(
    registry_harness: Harness, binding: Json, code: int, words: str
) -> None:
    await registry_harness.pod()
    before = registry_harness.store.revision

    with pytest.raises(ApiError, match=words) as caught:
        await bind(registry_harness, binding)

    assert caught.value.code == code
    assert registry_harness.store.revision == before


async def test_a_pod_is_bound_once_and_only_while_it_may_run(registry_harness: Harness) -> None:
    await registry_harness.pod(schedulingGates=[{"name": "x"}])
    with pytest.raises(ApiError, match=r"non-empty .spec.schedulingGates"):
        await bind(registry_harness, a_binding())
    await registry_harness.delete(PODS, "a")
    await registry_harness.pod()
    await bind(registry_harness, a_binding())

    with pytest.raises(ApiError, match='pod a is already assigned to node "n1"') as caught:
        await bind(registry_harness, a_binding("n2"))
    assert caught.value.body()["details"]["kind"] == "pods/binding"

    await registry_harness.delete(PODS, "a")
    with pytest.raises(ApiError, match="is being deleted, cannot be assigned to a host"):
        await bind(registry_harness, a_binding())


async def test_a_dry_binding_binds_nothing(registry_harness: Harness) -> None:
    await registry_harness.pod()

    await bind(registry_harness, a_binding(), dry_run=True)

    assert "nodeName" not in registry_harness.get(PODS, "a")["spec"]


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


async def test_an_eviction_marks_the_pod_and_asks_for_its_end(registry_harness: Harness) -> None:
    await a_running_pod(registry_harness)

    answer = await evict(registry_harness, gracePeriodSeconds=7)

    found = registry_harness.get(PODS, "a")
    assert answer["status"] == "Success"
    assert found["metadata"]["deletionGracePeriodSeconds"] == 7
    assert {condition["type"] for condition in found["status"]["conditions"]} == {
        "Ready",
        "DisruptionTarget",
    }


async def test_a_budget_that_allows_none_says_why(registry_harness: Harness) -> None:
    await a_running_pod(registry_harness)
    await a_budget(registry_harness, disruptionsAllowed=0)

    with pytest.raises(ApiError) as caught:
        await evict(registry_harness)

    assert caught.value.code == 429
    assert caught.value.retry_after_s == 0
    assert caught.value.body()["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
        }
    ]
    assert "deletionTimestamp" not in registry_harness.get(PODS, "a")["metadata"]


async def test_a_budget_not_yet_counted_says_when_to_come_back(registry_harness: Harness) -> None:
    await a_running_pod(registry_harness)
    await a_budget(registry_harness)

    with pytest.raises(ApiError, match="Cannot evict pod") as caught:
        await evict(registry_harness)

    assert caught.value.retry_after_s == 10


async def test_an_eviction_is_taken_off_its_budget(registry_harness: Harness) -> None:
    await a_running_pod(registry_harness)
    await a_budget(registry_harness, disruptionsAllowed=1)

    await evict(registry_harness)

    status = registry_harness.get(PDBS, "b")["status"]
    assert status["disruptionsAllowed"] == 0
    assert status["disruptedPods"] == {"a": "2026-01-05T12:00:00Z"}
    assert status["conditions"][0]["reason"] == "InsufficientPods"


async def test_a_dry_eviction_asks_the_budget_and_changes_nothing(
    registry_harness: Harness,
) -> None:
    await a_running_pod(registry_harness)
    await a_budget(registry_harness, disruptionsAllowed=1)
    before = registry_harness.store.revision

    await evict(registry_harness, dry_run=True)
    await evict(registry_harness, dryRun=["All"])

    assert registry_harness.store.revision == before


async def test_two_budgets_are_one_too_many(registry_harness: Harness) -> None:
    await a_running_pod(registry_harness)
    await a_budget(registry_harness, "b", disruptionsAllowed=1)
    await a_budget(registry_harness, "c", disruptionsAllowed=1)

    with pytest.raises(ApiError, match="more than one PodDisruptionBudget") as caught:
        await evict(registry_harness)
    assert (caught.value.code, caught.value.reason) == (500, "")


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
async def test_pods_that_do_not_run_bypass_budgets(registry_harness: Harness, phase: str) -> None:
    await a_running_pod(registry_harness)
    await registry_harness.change(PODS, "a", "status", status={"phase": phase})
    await a_budget(registry_harness, disruptionsAllowed=0)

    assert (await evict(registry_harness))["status"] == "Success"


@pytest.mark.parametrize(
    ("spec", "status", "goes"),
    [
        ({}, {"currentHealthy": 1, "desiredHealthy": 1}, True),
        ({}, {"currentHealthy": 0, "desiredHealthy": 1}, False),
        ({"unhealthyPodEvictionPolicy": "AlwaysAllow"}, {"currentHealthy": 0}, True),
    ],
)
async def test_an_unready_pod_goes_where_its_budget_can_bear_it(
    registry_harness: Harness, spec: Json, status: Json, goes: bool
) -> None:
    await a_running_pod(registry_harness)
    await registry_harness.change(PODS, "a", "status", status={"phase": "Running"})
    await a_budget(registry_harness, spec=spec, disruptionsAllowed=0, **status)

    if goes:
        await evict(registry_harness)
        assert registry_harness.get(PDBS, "b")["status"]["disruptionsAllowed"] == 0
    else:
        with pytest.raises(ApiError, match="Cannot evict"):
            await evict(registry_harness)


async def test_a_budget_gone_negative_forbids(registry_harness: Harness) -> None:
    await a_running_pod(registry_harness)
    await a_budget(registry_harness, disruptionsAllowed=-1)

    with pytest.raises(ApiError, match="pdb disruptions allowed is negative") as caught:
        await evict(registry_harness)
    assert caught.value.code == 403


async def test_an_eviction_of_another_pod_of_that_name_is_refused_and_costs_the_budget(
    registry_harness: Harness,
) -> None:
    await a_running_pod(registry_harness)
    await a_budget(registry_harness, disruptionsAllowed=1)

    with pytest.raises(ApiError, match="might have been deleted and then recreated"):
        await evict(registry_harness, preconditions={"uid": "other"})

    # As the real API server does: tests/contracts runs on both.
    assert registry_harness.get(PDBS, "b")["status"]["disruptionsAllowed"] == 0
    assert "deletionTimestamp" not in registry_harness.get(PODS, "a")["metadata"]


async def test_a_version_precondition_holds_for_the_version_it_names(
    registry_harness: Harness,
) -> None:
    await a_running_pod(registry_harness)
    version = registry_harness.get(PODS, "a")["metadata"]["resourceVersion"]

    await evict(registry_harness, preconditions={"resourceVersion": version})

    assert "deletionTimestamp" in registry_harness.get(PODS, "a")["metadata"]


async def test_what_is_not_there_is_neither_bound_nor_evicted(registry_harness: Harness) -> None:
    for attempt in (bind(registry_harness, a_binding()), evict(registry_harness)):
        with pytest.raises(ApiError, match='pods "a" not found'):
            await attempt


async def a_deployment(harness: Harness) -> None:
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": a_pod()["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    await harness.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})


async def scale(harness: Harness, replicas: object, resource: Resource = DEPLOYMENTS) -> Json:
    return await subresources.write_scale(
        harness.registry,
        at(resource, "d", "scale"),
        lambda found: {**found, "spec": {"replicas": replicas}},
        Context(),
    )


async def test_a_scale_is_a_view_of_replicas(registry_harness: Harness) -> None:
    await a_deployment(registry_harness)

    found = subresources.read_scale(registry_harness.registry, at(DEPLOYMENTS, "d", "scale"))
    assert found["spec"] == {"replicas": 2}
    assert found["status"] == {"replicas": 0, "selector": "app=a"}

    assert (await scale(registry_harness, 5))["spec"] == {"replicas": 5}
    assert registry_harness.get(DEPLOYMENTS, "d")["spec"]["replicas"] == 5
    assert (await scale(registry_harness, 0))["spec"] == {}


@pytest.mark.parametrize("replicas", [-1, "many"])
async def test_a_scale_is_a_count(registry_harness: Harness, replicas: object) -> None:
    await a_deployment(registry_harness)

    with pytest.raises(ApiError, match=r'Scale.autoscaling "d" is invalid: spec.replicas'):
        await scale(registry_harness, replicas)


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
