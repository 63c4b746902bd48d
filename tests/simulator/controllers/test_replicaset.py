from kube.kinds import EVENTS, PODS, REPLICASETS, VALIDATING_WEBHOOKS
from simulator.objects import decode
from tests.simulator.controllers.harness import Harness, an_owner


async def test_a_terminating_pod_is_replaced_before_it_is_gone(harness: Harness) -> None:
    await harness.kube.create(REPLICASETS, an_owner("a", replicas=1), namespace=harness.namespace)
    (first,) = await harness.wait_count(1)
    name = first["metadata"]["name"]
    # A node of its own: the pod garbage collector keeps a missing node that it hears of first for
    # 40 s in quarantine, and deletes pods at once on one that another test has used before.
    node = f"node-{harness.namespace}"
    await harness.kube.bind({"target": {"name": node}}, namespace=harness.namespace, name=name)

    await harness.kube.delete(PODS, name, namespace=harness.namespace)

    pods = await harness.wait_count(2)
    assert sum("deletionTimestamp" in pod["metadata"] for pod in pods) == 1


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
