"""What a pod's controller says of itself: how many pods it wants, and whether it is settled."""

from typing import Any

import pytest

from fracgpu.state.move_object import OwnerReference
from kube.client import KubeClient
from kube.kinds import DEPLOYMENTS, NAMESPACES, REPLICASETS
from rebalancer.moves.observer import Owners, is_current, is_observed, selects_by
from rebalancer.moves.steps import OwnerFacts

NAMESPACE, HASH = "ml", "5d4f8c"
LABELS = {"app": "web", "pod-template-hash": HASH}


def template(*, image: str = "web:1", hashed: bool = True) -> dict[str, Any]:
    labels = LABELS if hashed else {"app": "web"}
    return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}}


def a_deployment(*, image: str = "web:1", **status: int) -> dict[str, Any]:
    found = {"replicas": 2, "updatedReplicas": 2, "observedGeneration": 3}
    return {
        "metadata": {"generation": 3},
        "spec": {"template": template(image=image, hashed=False)},
        "status": found | status,
    }


def test_a_replicaset_is_current_while_it_is_all_that_its_deployment_wants() -> None:
    replicaset = {"spec": {"template": template()}}

    assert is_current(replicaset, a_deployment())
    assert not is_current(replicaset, a_deployment(image="web:2"))
    assert not is_current(replicaset, a_deployment(replicas=3))  # one of another ReplicaSet
    deleted = a_deployment()
    deleted["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"
    assert not is_current(replicaset, deleted)


def test_a_deployment_that_is_being_scaled_is_not_rolled_out() -> None:
    """Until its controller has seen the new number, its status is that of the old one."""
    being_scaled = a_deployment(observedGeneration=2)

    assert is_current({"spec": {"template": template()}}, being_scaled)
    assert not is_observed(being_scaled)


async def test_an_owner_whose_deployment_is_being_scaled_is_current_and_not_settled(
    kube: KubeClient,
) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}}
    body = {"metadata": {"name": "web"}, "spec": spec | {"template": template(hashed=False)}}
    made = await kube.create(DEPLOYMENTS, body, namespace=NAMESPACE)
    observed = {"status": {"observedGeneration": made["metadata"]["generation"] - 1}}
    await kube.patch(DEPLOYMENTS, "web", observed, namespace=NAMESPACE, subresource="status")
    reference = {"kind": "Deployment", "name": "web", "uid": made["metadata"]["uid"]}
    replicaset = {
        "metadata": {
            "name": "web-1",
            "namespace": NAMESPACE,
            "ownerReferences": [reference | {"controller": True}],
        },
        "spec": {"replicas": 1, "template": made["spec"]["template"]},
        "status": {"readyReplicas": 1},
    }

    facts = await Owners(kube).facts(replicaset, kind="ReplicaSet")

    assert facts.current
    assert not facts.observed
    assert not facts.satisfied


def test_a_controller_that_does_not_select_by_the_hash_selects_by_nothing() -> None:
    assert selects_by({"spec": {"selector": {"matchLabels": LABELS}}}) == HASH
    assert selects_by({"spec": {"selector": {"matchLabels": {"app": "web"}}}}) == ""
    assert selects_by({"spec": {"selector": {"app": "web"}}}) == ""  # a ReplicationController


@pytest.mark.parametrize(
    ("spec", "status", "desired", "ready"),
    [
        ({"parallelism": 3, "completions": 5}, {"ready": 2}, 3, 2),
        ({"parallelism": 3, "completions": 5}, {"succeeded": 4, "ready": 1}, 1, 1),
        ({"parallelism": 3, "completions": 5, "suspend": True}, {}, 0, 0),
        ({}, {"conditions": [{"type": "Complete", "status": "True"}]}, 0, 0),
    ],
)
async def test_a_job_wants_what_is_left_of_it(
    kube: KubeClient, spec: dict[str, Any], status: dict[str, Any], desired: int, ready: int
) -> None:
    job = {"metadata": {"name": "train", "namespace": NAMESPACE}, "spec": spec, "status": status}

    facts = await Owners(kube).facts(job, kind="Job")

    assert (facts.desired, facts.ready) == (desired, ready)


async def test_a_statefulset_that_is_being_updated_is_not_current(kube: KubeClient) -> None:
    metadata = {"name": "db", "namespace": NAMESPACE, "generation": 2}
    revisions = {"currentRevision": "a", "updateRevision": "b"}
    status = {"replicas": 1, "readyReplicas": 1} | revisions
    found = {"metadata": metadata, "spec": {}, "status": status}

    facts = await Owners(kube).facts(found, kind="StatefulSet")

    assert facts == OwnerFacts(there=True, observed=True, desired=1, ready=1, current=False)
    assert facts.satisfied


async def test_it_reads_the_very_controller_and_what_it_could_not_do(kube: KubeClient) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    meta = {"name": "web", "namespace": NAMESPACE}
    selector = {"matchLabels": {"app": "web"}}
    deployment = {
        "metadata": meta,
        "spec": {"selector": selector, "template": template(hashed=False)},
    }
    parent = await kube.create(DEPLOYMENTS, deployment)
    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "web",
        "uid": parent["metadata"]["uid"],
        "controller": True,
    }
    body = {
        "metadata": {**meta, "name": f"web-{HASH}", "labels": LABELS, "ownerReferences": [owner]},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": LABELS},
            "template": template(image="old"),
        },
    }
    stored = await kube.create(REPLICASETS, body)
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "no",
    }
    status = {"replicas": 1, "readyReplicas": 1, "conditions": [failure]}
    name = stored["metadata"]["name"]
    patch = {"status": status}
    await kube.patch(REPLICASETS, name, patch, namespace=NAMESPACE, subresource="status")
    reference = OwnerReference(
        api_version="apps/v1", kind="ReplicaSet", name=name, uid=stored["metadata"]["uid"]
    )

    found = await Owners(kube).read(reference, namespace=NAMESPACE)

    assert (found.there, found.desired, found.ready) == (True, 2, 1)
    assert not found.satisfied
    assert not found.current  # the Deployment's template has another image
    assert found.failure == "FailedCreate: no"
    assert found.selects_by == HASH
    assert await Owners(kube).with_hash(HASH, namespace=NAMESPACE) == found
    gone = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name=name, uid="another")
    assert not (await Owners(kube).read(gone, namespace=NAMESPACE)).there
    assert not (await Owners(kube).with_hash("other", namespace=NAMESPACE)).there
