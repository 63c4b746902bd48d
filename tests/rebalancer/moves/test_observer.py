"""Which pod is the replacement, and what is seen of the pod that is moved."""

import json
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from fracgpu import names
from fracgpu.disruption.candidates import OWNERS
from fracgpu.k8s.pod import decode_pod
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import OwnerReference
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import KubeDecodeError
from kube.kinds import DEPLOYMENTS, NAMESPACES, REPLICASETS
from rebalancer.moves.observer import (
    OWNER_KINDS,
    Observer,
    Owners,
    candidate,
    has_retry,
    is_current,
    is_observed,
    orphans_of,
    replacement_of,
    selects_by,
    victim_of,
    why_stuck,
)
from rebalancer.moves.steps import DELETION_COST, LOWEST_COST, OwnerFacts, StepContext
from tests.fakes.clock import NOON
from tests.support.rebalancing import ACTIVE, COOL_CARD, a_disruption_state, a_move, a_placed_pod
from tests.support.records import a_record
from tests.support.scripted import a_server

RECORD = a_record(move=a_move(pod_uid="pod-a", owner_uid="owner-1"), created=NOON)
LATER = NOON + timedelta(seconds=20)
CONSUMED = {"move": RECORD.name}


def a_pod(uid: str, **facts: Any) -> PlacedPod:
    return a_placed_pod(uid, created_at=facts.pop("created_at", LATER), **facts)


def chosen(*pods: PlacedPod, wanted: int = 1) -> str:
    found = candidate(RECORD, pods, wanted=wanted)
    return found.uid if found else ""


def test_the_pod_that_consumed_the_reservation_is_the_replacement() -> None:
    unbound = a_pod("new", record={"node": ""})
    mine = a_pod("mine", record=CONSUMED, created_at=NOON)

    assert chosen(unbound, mine) == "mine"


def test_until_then_it_may_be_any_pod_made_since_and_first_one_that_is_not_bound() -> None:
    bound, unbound = a_pod("bound"), a_pod("unbound", record={"node": ""})

    assert chosen(bound, unbound) == "unbound"
    assert chosen(bound) == "bound"


def test_a_bound_pod_is_not_the_replacement_while_its_controller_lacks_one() -> None:
    """A Job makes pods all the time, and the reservation would end with the wrong one."""
    bound, mine = a_pod("bound"), a_pod("mine", record=CONSUMED)

    assert chosen(bound, wanted=2) == ""
    assert chosen(bound, a_pod("pod-a"), wanted=2) == ""
    assert chosen(bound, a_pod("unbound", record={"node": ""}), wanted=2) == "unbound"
    assert chosen(mine, wanted=2) == "mine"


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("pod-a"),
        a_pod("sibling", created_at=NOON),
        a_pod("stranger", owner=("ReplicaSet", "other", "owner-2")),
        a_pod("going", record={"terminating": True}),
    ],
)
def test_neither_the_pod_itself_nor_a_sibling_is_its_replacement(pod: PlacedPod) -> None:
    assert chosen(pod) == ""


def test_what_is_seen_of_the_moved_pod() -> None:
    labels, notes = {"pod-template-hash": "5d4f8c.moved"}, {names.MOVED_BY: "m"}
    info = a_placed_pod("pod-a", owner=None, labels=labels, annotations=notes).info

    found = victim_of(info, uid="pod-a")

    assert found.there
    assert found.released
    assert (found.controller_uid, found.moved_by) == ("", "m")
    assert victim_of(info, uid="other").why_gone == "ml/pod-a is another pod now"
    assert victim_of(None, uid="pod-a").why_gone == "there is no such pod"
    ending = a_placed_pod("pod-a", record={"terminating": True}).info
    assert not victim_of(ending, uid="pod-a").there


def test_what_is_seen_of_the_replacement() -> None:
    notes = {names.MOVE: RECORD.name, DELETION_COST: LOWEST_COST}
    pod = a_placed_pod("pod-c", COOL_CARD, node="n2", annotations=notes, ready=False)

    found = replacement_of(pod.info, stuck="")

    assert (found.node, found.card, found.ready) == ("n2", COOL_CARD, False)
    assert found.demoted


@pytest.mark.parametrize(
    ("field", "waiting", "why"),
    [
        (
            "containerStatuses",
            {"reason": "ImagePullBackOff", "message": "no such image"},
            "container train: ImagePullBackOff: no such image",
        ),
        (
            "initContainerStatuses",
            {"reason": "InvalidImageName"},
            "container train: InvalidImageName",
        ),
        ("containerStatuses", {"reason": "ContainerCreating", "message": "soon"}, ""),
        ("containerStatuses", None, ""),
    ],
)
def test_a_container_that_time_alone_does_not_start_is_named(
    field: str, waiting: dict[str, str] | None, why: str
) -> None:
    states = [{"name": "other"}, {"name": "train", "state": {"waiting": waiting}}]
    body = json.dumps({"status": {field: states}}).encode()

    assert why_stuck(decode_pod(body)) == why


def test_orphans_are_the_pods_that_a_deleted_replicaset_left_behind() -> None:
    labels = {"pod-template-hash": "5d4f8c"}
    left = a_placed_pod("left", owner=None, labels=labels)
    owned = a_placed_pod("owned", labels=labels)

    assert orphans_of([left, owned], "ml", hash_value="5d4f8c") == [left]
    assert orphans_of([left], "other", hash_value="5d4f8c") == []
    assert orphans_of([a_placed_pod("bare", owner=None)], "ml", hash_value="") == []


@pytest.mark.parametrize("kind", ["pods", "nodes"])
async def test_an_object_that_cannot_be_read_is_left_to_the_next_cycle(kind: str) -> None:
    """As from a proxy with a page of its own; the controller goes on after a KubeError."""

    async def answer(request: web.Request) -> web.Response:
        if f"/{kind}/" in request.path:
            return web.Response(text="<html>sign in</html>", content_type="text/html")
        return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)

    context = StepContext(state=a_disruption_state(), nodes={}, policy=ACTIVE, now=NOON)
    async with a_server(answer) as server, connect_to(server.url) as client:
        with pytest.raises(KubeDecodeError):
            await Observer(client).observe(RECORD, context)


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


async def test_of_a_rollout_of_argo_another_replicaset_with_pods_is_a_rollout(
    kube: KubeClient,
) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    rollout = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web", "uid": "r1"}
    made = []
    for value in ("5d4f8c", "77aa11"):
        labels = {"app": "web", "rollouts-pod-template-hash": value}
        body = {
            "metadata": {
                "name": f"web-{value}",
                "namespace": NAMESPACE,
                "labels": labels,
                "ownerReferences": [rollout | {"controller": True}],
            },
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": template(hashed=False) | {"metadata": {"labels": labels}},
            },
        }
        made.append(await kube.create(REPLICASETS, body))
    owners = Owners(kube)

    during = await owners.facts(made[0], kind="ReplicaSet")
    none = {"spec": {"replicas": 0}}
    await kube.patch(REPLICASETS, "web-77aa11", none, namespace=NAMESPACE)
    after = await owners.facts(made[0], kind="ReplicaSet")

    assert (during.current, after.current) == (False, True)
    assert during.selects_by == "5d4f8c"
    argos = "rollouts-pod-template-hash"
    assert (await owners.with_hash("5d4f8c", namespace=NAMESPACE, key=argos)).there


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
    assert not facts.fragile


def on_eviction(action: str) -> dict[str, Any]:
    return {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


@pytest.mark.parametrize(
    ("spec", "goes_on"),
    [
        ({}, True),
        ({"backoffLimit": 2}, True),
        ({"backoffLimit": 1}, False),
        ({"backoffLimit": 2147483647, "backoffLimitPerIndex": 1}, False),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": [on_eviction("Ignore")]}}, True),
        ({"podFailurePolicy": {"rules": [on_eviction("FailJob")]}}, False),
        ({"backoffLimit": 1, "podFailurePolicy": {"rules": [on_eviction("Count")]}}, False),
    ],
)
def test_a_job_that_one_more_failure_would_end_has_no_retry(
    spec: dict[str, Any], goes_on: bool
) -> None:
    assert has_retry({"spec": spec, "status": {"failed": 1}}) == goes_on


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


def test_the_owners_that_are_read_are_those_whose_pods_are_moved() -> None:
    assert {name: kind.group_version for name, kind in OWNER_KINDS.items()} == OWNERS
