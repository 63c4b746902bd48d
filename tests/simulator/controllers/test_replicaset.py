from __future__ import annotations

from typing import TYPE_CHECKING

from kube.kinds import EVENTS, PODS, REPLICASETS, VALIDATING_WEBHOOKS
from simulator.objects import decode
from tests.simulator.controllers.harness import Harness, an_owner

if TYPE_CHECKING:
    from simulator.objects import Json


def owners(pod: Json) -> list[str]:
    return [reference["name"] for reference in pod["metadata"].get("ownerReferences") or []]


async def test_it_creates_as_many_pods_as_are_asked_for(harness: Harness) -> None:
    await harness.kube.create(REPLICASETS, an_owner("a", replicas=3), namespace=harness.namespace)

    pods = await harness.wait_count(3)

    assert all(pod["metadata"]["name"].startswith("a-") for pod in pods)
    assert [owners(pod) for pod in pods] == [["a"]] * 3
    await harness.wait_status(REPLICASETS, "a", replicas=3, readyReplicas=None)


async def test_a_terminating_pod_is_replaced_before_it_is_gone(harness: Harness) -> None:
    await harness.kube.create(REPLICASETS, an_owner("a", replicas=1), namespace=harness.namespace)
    (first,) = await harness.wait_count(1)
    name = first["metadata"]["name"]
    await harness.kube.bind({"target": {"name": "n1"}}, namespace=harness.namespace, name=name)

    await harness.kube.delete(PODS, name, namespace=harness.namespace)

    pods = await harness.wait_count(2)
    assert sum("deletionTimestamp" in pod["metadata"] for pod in pods) == 1


async def test_a_failed_pod_does_not_count(harness: Harness) -> None:
    await harness.kube.create(REPLICASETS, an_owner("a", replicas=1), namespace=harness.namespace)
    (first,) = await harness.wait_count(1)

    await harness.set_status(first["metadata"]["name"], {"status": {"phase": "Failed"}})

    await harness.wait_count(2)


async def test_surplus_goes_from_the_pods_that_are_not_ready(harness: Harness) -> None:
    await harness.kube.create(REPLICASETS, an_owner("a", replicas=3), namespace=harness.namespace)
    pods = await harness.wait_count(3)
    kept = pods[1]["metadata"]["name"]
    await harness.set_status(kept)

    await harness.kube.patch(
        REPLICASETS, "a", {"spec": {"replicas": 1}}, namespace=harness.namespace
    )

    (left,) = await harness.wait_count(1)
    assert left["metadata"]["name"] == kept


async def test_a_refused_pod_is_told_in_the_status(harness: Harness) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}
    nobody = {
        "name": "nobody.example.org",
        "rules": [rule],
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    configuration = {"metadata": {"name": "nobody"}, "webhooks": [nobody]}
    await harness.kube.create(VALIDATING_WEBHOOKS, configuration)

    await harness.kube.create(REPLICASETS, an_owner("a", replicas=1), namespace=harness.namespace)

    found = await harness.wait_object(
        REPLICASETS,
        "a",
        lambda replicaset: bool((replicaset.get("status") or {}).get("conditions")),
        what="a condition",
    )
    (condition,) = found["status"]["conditions"]
    assert condition["type"] == "ReplicaFailure"
    assert 'failed calling webhook "nobody.example.org"' in condition["message"]

    about = f"involvedObject.uid={found['metadata']['uid']},reason=FailedCreate"
    (raw,) = (
        await harness.kube.list(EVENTS, namespace=harness.namespace, field_selector=about)
    ).items
    assert decode(bytes(raw))["message"].startswith("Error creating: Internal error occurred")

    await harness.kube.delete(VALIDATING_WEBHOOKS, "nobody")
    await harness.wait_count(1)
    await harness.wait_status(REPLICASETS, "a", replicas=1, conditions=None)
