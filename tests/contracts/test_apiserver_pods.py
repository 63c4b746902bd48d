"""What the API server promises about pods: binding in one write, and eviction."""

from typing import Any

import pytest

from kube.client import KubeClient
from kube.errors import Conflict, Invalid, NotFound, TooManyRequests
from kube.kinds import PDBS, PODS
from tests.support.objects import Json, a_budget, a_pod, running

TO_N1: Json = {"target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}


def to_n1(pod: Json, **metadata: Any) -> Json:
    """Return a Binding of exactly this version of *pod* to the node n1."""
    seen = {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}
    return {"metadata": seen | metadata, **TO_N1}


async def budget_status(
    client: KubeClient, namespace: str, *, allowed: int, healthy: int = 1, desired: int = 1
) -> None:
    """Write the budget's status as the disruption controller would."""
    found = await client.get_object(PDBS, "budget", namespace=namespace)
    status = {
        "observedGeneration": found["metadata"]["generation"],
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": healthy,
    }
    await client.patch(
        PDBS, "budget", {"status": status}, namespace=namespace, subresource="status"
    )


async def a_running_pod(client: KubeClient, namespace: str, name: str) -> Json:
    """Create a pod with the label app=a that is bound, running and ready."""
    await client.create(PODS, a_pod(name, labels={"app": "a"}), namespace=namespace)
    await client.bind(TO_N1, namespace=namespace, name=name)
    return await client.patch(PODS, name, running(), namespace=namespace, subresource="status")


async def test_a_binding_writes_the_node_and_merges_its_annotations(
    client: KubeClient, namespace: str
) -> None:
    pod = await client.create(PODS, a_pod("a", annotations={"old": "1"}), namespace=namespace)

    binding = to_n1(pod, annotations={"new": "2"})
    await client.bind(binding, namespace=namespace, name="a")

    bound = await client.get_object(PODS, "a", namespace=namespace)
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"old": "1", "new": "2"}
    scheduled = [one for one in bound["status"]["conditions"] if one["type"] == "PodScheduled"]
    assert [one["status"] for one in scheduled] == ["True"]


async def test_a_bindings_labels_come_to_the_pod_too(client: KubeClient, namespace: str) -> None:
    """Since Kubernetes 1.35 (PodTopologyLabelsAdmission)."""
    pod = await client.create(PODS, a_pod("a", labels={"old": "1"}), namespace=namespace)

    await client.bind(to_n1(pod, labels={"new": "2"}), namespace=namespace, name="a")

    bound = await client.get_object(PODS, "a", namespace=namespace)
    assert bound["metadata"]["labels"] == {"old": "1", "new": "2"}


async def test_an_annotation_written_through_the_status_makes_an_older_binding_conflict(
    client: KubeClient, namespace: str
) -> None:
    pod = await client.create(PODS, a_pod("a", annotations={"old": "1"}), namespace=namespace)

    def mark(uid: str) -> Json:
        return {"metadata": {"uid": uid, "annotations": {"mark": "x"}}}

    with pytest.raises(Invalid, match=r"metadata\.uid"):
        await client.patch(PODS, "a", mark("another"), namespace=namespace, subresource="status")
    marked = await client.patch(
        PODS, "a", mark(pod["metadata"]["uid"]), namespace=namespace, subresource="status"
    )

    assert marked["metadata"]["annotations"] == {"old": "1", "mark": "x"}
    assert marked["metadata"]["resourceVersion"] != pod["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await client.bind(to_n1(pod), namespace=namespace, name="a")
    await client.bind(to_n1(marked), namespace=namespace, name="a")


@pytest.mark.parametrize("precondition", ["uid", "resourceVersion"])
async def test_a_binding_of_another_pod_or_version_conflicts_and_writes_nothing(
    client: KubeClient, namespace: str, precondition: str
) -> None:
    old = await client.create(PODS, a_pod("a"), namespace=namespace)
    if precondition == "uid":
        await client.delete(PODS, "a", namespace=namespace)
        now = await client.create(PODS, a_pod("a"), namespace=namespace)
    else:
        labels = {"metadata": {"labels": {"x": "1"}}}
        now = await client.patch(PODS, "a", labels, namespace=namespace)
    seen = {precondition: old["metadata"][precondition], "annotations": {"new": "2"}}

    with pytest.raises(Conflict):
        await client.bind({"metadata": seen, **TO_N1}, namespace=namespace, name="a")

    assert await client.get_object(PODS, "a", namespace=namespace) == now


async def test_a_bound_pod_cannot_be_bound_again(client: KubeClient, namespace: str) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)
    await client.bind(TO_N1, namespace=namespace, name="a")

    again = {"metadata": {"annotations": {"new": "2"}}, "target": {"kind": "Node", "name": "n2"}}
    with pytest.raises(Conflict):
        await client.bind(again, namespace=namespace, name="a")

    found = await client.get_object(PODS, "a", namespace=namespace)
    assert found["spec"]["nodeName"] == "n1"
    assert "annotations" not in found["metadata"]


async def test_a_pod_that_is_on_its_way_out_cannot_be_bound(
    client: KubeClient, namespace: str
) -> None:
    await client.create(PODS, a_pod("a", finalizers=["example.com/wait"]), namespace=namespace)
    await client.delete(PODS, "a", namespace=namespace)

    with pytest.raises(Conflict):
        await client.bind(TO_N1, namespace=namespace, name="a")


async def test_a_missing_pod_cannot_be_bound(client: KubeClient, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.bind(TO_N1, namespace=namespace, name="nobody")


async def test_an_eviction_without_a_budget_ends_the_pod(
    client: KubeClient, namespace: str
) -> None:
    pod = await a_running_pod(client, namespace, "a")

    await client.evict(namespace=namespace, name="a", uid=pod["metadata"]["uid"])

    found = await client.get_object(PODS, "a", namespace=namespace)
    assert "deletionTimestamp" in found["metadata"]
    target = [one for one in found["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert [(one["status"], one["reason"]) for one in target] == [("True", "EvictionByEvictionAPI")]


async def test_an_eviction_that_breaks_a_budget_is_too_many_requests(
    client: KubeClient, namespace: str
) -> None:
    pod = await a_running_pod(client, namespace, "a")
    await client.create(PDBS, a_budget("budget", app="a", min_available=1), namespace=namespace)
    await budget_status(client, namespace, allowed=0)

    with pytest.raises(TooManyRequests) as caught:
        await client.evict(namespace=namespace, name="a", uid=pod["metadata"]["uid"])

    assert caught.value.by_disruption_budget
    assert (
        caught.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    )
    found = await client.get_object(PODS, "a", namespace=namespace)
    assert "deletionTimestamp" not in found["metadata"]


async def test_a_budget_nobody_has_counted_yet_allows_no_eviction(
    client: KubeClient, namespace: str
) -> None:
    pod = await a_running_pod(client, namespace, "a")
    await client.create(PDBS, a_budget("budget", app="a", min_available=0), namespace=namespace)

    with pytest.raises(TooManyRequests) as caught:
        await client.evict(namespace=namespace, name="a", uid=pod["metadata"]["uid"])

    assert caught.value.by_disruption_budget
    assert caught.value.retry_after_s == 10


async def test_an_eviction_uses_up_what_the_budget_allows(
    client: KubeClient, namespace: str
) -> None:
    first = await a_running_pod(client, namespace, "a")
    second = await a_running_pod(client, namespace, "b")
    await client.create(PDBS, a_budget("budget", app="a", min_available=1), namespace=namespace)
    await budget_status(client, namespace, allowed=1, healthy=2)

    await client.evict(namespace=namespace, name="a", uid=first["metadata"]["uid"])
    with pytest.raises(TooManyRequests):
        await client.evict(namespace=namespace, name="b", uid=second["metadata"]["uid"])

    status = (await client.get_object(PDBS, "budget", namespace=namespace))["status"]
    assert status["disruptionsAllowed"] == 0
    assert set(status["disruptedPods"]) == {"a"}


async def test_a_dry_run_of_an_eviction_asks_the_budget_and_changes_nothing(
    client: KubeClient, namespace: str
) -> None:
    pod = await a_running_pod(client, namespace, "a")
    uid = pod["metadata"]["uid"]
    await client.create(PDBS, a_budget("budget", app="a", min_available=1), namespace=namespace)

    await budget_status(client, namespace, allowed=0)
    with pytest.raises(TooManyRequests):
        await client.evict(namespace=namespace, name="a", uid=uid, dry_run=True)

    await budget_status(client, namespace, allowed=1, healthy=2)
    await client.evict(namespace=namespace, name="a", uid=uid, dry_run=True)

    found = await client.get_object(PODS, "a", namespace=namespace)
    assert "deletionTimestamp" not in found["metadata"]
    budget = await client.get_object(PDBS, "budget", namespace=namespace)
    assert budget["status"]["disruptionsAllowed"] == 1
    assert not budget["status"].get("disruptedPods")


async def test_a_budget_does_not_protect_a_pod_that_never_ran(
    client: KubeClient, namespace: str
) -> None:
    pod = await client.create(PODS, a_pod("a", labels={"app": "a"}), namespace=namespace)
    await client.create(PDBS, a_budget("budget", app="a", min_available=1), namespace=namespace)
    await budget_status(client, namespace, allowed=0)

    await client.evict(namespace=namespace, name="a", uid=pod["metadata"]["uid"])

    with pytest.raises(NotFound):
        await client.get(PODS, "a", namespace=namespace)


async def test_an_eviction_of_somebody_else_conflicts(client: KubeClient, namespace: str) -> None:
    await a_running_pod(client, namespace, "a")

    with pytest.raises(Conflict):
        await client.evict(namespace=namespace, name="a", uid="another")

    found = await client.get_object(PODS, "a", namespace=namespace)
    assert "deletionTimestamp" not in found["metadata"]


async def test_a_budget_is_asked_before_the_uid_is_compared(
    client: KubeClient, namespace: str
) -> None:
    await a_running_pod(client, namespace, "a")
    await client.create(PDBS, a_budget("budget", app="a", min_available=1), namespace=namespace)

    await budget_status(client, namespace, allowed=0)
    with pytest.raises(TooManyRequests) as caught:
        await client.evict(namespace=namespace, name="a", uid="another")
    assert caught.value.by_disruption_budget

    await budget_status(client, namespace, allowed=1, healthy=2)
    with pytest.raises(Conflict):
        await client.evict(namespace=namespace, name="a", uid="another", dry_run=True)
    with pytest.raises(Conflict):
        await client.evict(namespace=namespace, name="a", uid="another")
    status = (await client.get_object(PDBS, "budget", namespace=namespace))["status"]
    assert status["disruptionsAllowed"] == 0


async def test_an_eviction_of_a_pod_that_has_changed_since_conflicts_and_costs_the_budget(
    client: KubeClient, namespace: str
) -> None:
    pod = await a_running_pod(client, namespace, "a")
    uid, version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
    await client.create(PDBS, a_budget("budget", app="a", min_available=1), namespace=namespace)
    await budget_status(client, namespace, allowed=1, healthy=2)
    note = {"metadata": {"annotations": {"changed": "since"}}}
    await client.patch(PODS, "a", note, namespace=namespace)

    with pytest.raises(Conflict) as caught:
        await client.evict(namespace=namespace, name="a", uid=uid, version=version)

    assert f"the ResourceVersion in the precondition ({version})" in caught.value.message
    found = await client.get_object(PODS, "a", namespace=namespace)
    assert "deletionTimestamp" not in found["metadata"]
    assert "DisruptionTarget" not in {one["type"] for one in found["status"]["conditions"]}
    status = (await client.get_object(PDBS, "budget", namespace=namespace))["status"]
    assert status["disruptionsAllowed"] == 0


async def test_an_eviction_of_a_pod_as_it_is_ends_it_and_says_so(
    client: KubeClient, namespace: str
) -> None:
    pod = await a_running_pod(client, namespace, "a")
    uid, version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]

    await client.evict(namespace=namespace, name="a", uid=uid, version=version)

    found = await client.get_object(PODS, "a", namespace=namespace)
    assert "deletionTimestamp" in found["metadata"]
    assert "DisruptionTarget" in {one["type"] for one in found["status"]["conditions"]}


async def test_an_eviction_of_a_missing_pod_is_not_found(
    client: KubeClient, namespace: str
) -> None:
    with pytest.raises(NotFound):
        await client.evict(namespace=namespace, name="nobody", uid="any")


async def test_an_unbound_pod_is_deleted_at_once(client: KubeClient, namespace: str) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)

    await client.delete(PODS, "a", namespace=namespace)

    with pytest.raises(NotFound):
        await client.get(PODS, "a", namespace=namespace)
    with pytest.raises(NotFound):
        await client.delete(PODS, "a", namespace=namespace)


async def test_a_bound_pod_is_deleted_when_its_kubelet_says_so(
    client: KubeClient, namespace: str
) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)
    await client.bind({"target": {"kind": "Node", "name": "n1"}}, namespace=namespace, name="a")
    # A real server's delete first looks at the pod in its watch cache. Where that has not seen the
    # binding yet, the pod is still one without a node, and removed at once (6 of 750 pods that were
    # deleted right after their binding, 1.36.2). A list waits until the cache is as fresh.
    await client.list(PODS, namespace=namespace)

    await client.delete(PODS, "a", namespace=namespace, grace_s=20)
    metadata = (await client.get_object(PODS, "a", namespace=namespace))["metadata"]
    assert metadata["deletionTimestamp"].endswith("Z")
    assert metadata["deletionGracePeriodSeconds"] == 20

    await client.delete(PODS, "a", namespace=namespace, grace_s=0)
    with pytest.raises(NotFound):
        await client.get(PODS, "a", namespace=namespace)
