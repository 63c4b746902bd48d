"""deploy/policies-rebalancer.yaml and the rebalancer's roles: what it may write, rule by rule."""

import copy
from typing import Any

import pytest

from fracgpu import names
from tests.support.policies import ADMIN, DEPLOY, REBALANCER, Sender, policy, refusals
from tests.support.yaml_files import read_documents

Json = dict[str, Any]

NODES, RECORDS = "fracgpu-rebalancer-nodes", "fracgpu-rebalancer-records"
PODS = "fracgpu-rebalancer-pods"
ONLY_CORDONS = "The FracGPU rebalancer may change only the annotation fracgpu.io/cordons of a node."
ONLY_OWN = "The FracGPU rebalancer may create only its own Lease, fracgpu-rebalancer."
ONLY_MOVES = (
    "The FracGPU rebalancer may change only the hash label of a pod, its deletion cost, and the "
    "annotations fracgpu.io/moved-by, fracgpu.io/move-notice and fracgpu.io/move-ready."
)
POD: Json = {
    "metadata": {
        "name": "web-1",
        "namespace": "ml",
        "labels": {"app": "web", "pod-template-hash": "5d4f8c"},
        "annotations": {"fracgpu.io/assignment": "{}", "example.com/a": "b"},
    },
    "spec": {"nodeName": "n1"},
}
NODE: Json = {
    "metadata": {
        "name": "n1",
        "labels": {"fracgpu.io/share": "true"},
        "annotations": {"fracgpu.io/cards": "{}", "example.com/a": "b"},
    },
    "spec": {"podCIDR": "10.0.0.0/24"},
    "status": {"capacity": {"cpu": "8"}},
}


def changed(**parts: Json) -> Json:
    node = copy.deepcopy(NODE)
    for part, fields in parts.items():
        node[part].update(fields)
    return node


def noted(**notes: str) -> Json:
    return changed(metadata={"annotations": {**NODE["metadata"]["annotations"], **notes}})


@pytest.mark.parametrize(
    "new",
    [
        changed(metadata={"labels": {}}),
        changed(metadata={"labels": {"fracgpu.io/share": "false"}}),
        changed(metadata={"annotations": {"fracgpu.io/cards": "{}"}}),
        changed(metadata={"finalizers": ["example.com/f"]}),
        changed(metadata={"ownerReferences": [{"uid": "x"}]}),
        changed(spec={"unschedulable": True}),
        changed(spec={"taints": [{"key": "a", "effect": "NoExecute"}]}),
        changed(status={"capacity": {"cpu": "1"}}),
        noted(**{"example.com/a": "c"}),
        noted(**{"fracgpu.io/out-of-service": "GPU-1"}),
        noted(**{"fracgpu.io/cordons": "{}", "example.com/c": "d"}),
    ],
)
def test_of_a_node_the_rebalancer_changes_nothing_but_the_cordons(new: Json) -> None:
    assert refusals(NODES, new, old=NODE, sender=REBALANCER) == [ONLY_CORDONS]
    assert refusals(NODES, new, old=NODE, sender=ADMIN) == []


def test_it_sets_changes_and_removes_the_cordons() -> None:
    first, second = (noted(**{names.NODE_CORDONS: cordons}) for cordons in ("{}", '{"GPU-1":{}}'))

    for old, new in ((NODE, first), (first, second), (second, NODE)):
        assert refusals(NODES, new, old=old, sender=REBALANCER) == []


def test_it_creates_no_node() -> None:
    assert refusals(NODES, NODE, sender=REBALANCER) == [ONLY_CORDONS]


@pytest.mark.parametrize(
    ("name", "said"),
    [("fracgpu-rebalancer", []), ("fracgpu-scheduler", [ONLY_OWN]), ("", [ONLY_OWN])],
)
def test_it_creates_its_own_lease_alone(name: str, said: list[str]) -> None:
    metadata = {"name": name} if name else {"generateName": "fracgpu-rebalancer"}
    new = {"metadata": {**metadata, "namespace": "fracgpu-system"}}

    assert refusals(RECORDS, new, sender=REBALANCER, resource="leases") == said
    assert refusals(RECORDS, new, sender=Sender(username="x"), resource="leases") == []


def pod(
    *, labels: dict[str, str | None] | None = None, notes: dict[str, str | None] | None = None
) -> Json:
    """Return the pod with some labels and annotations changed, or removed where they are None."""
    new = copy.deepcopy(POD)
    for part, changes in (("labels", labels), ("annotations", notes)):
        merged = {**new["metadata"][part], **(changes or {})}
        new["metadata"][part] = {key: value for key, value in merged.items() if value is not None}
    return new


@pytest.mark.parametrize(
    "new",
    [
        pod(labels={"pod-template-hash": "5d4f8c.moved"}, notes={names.MOVED_BY: "m"}),
        pod(notes={names.NOTICE: "2026-01-05T12:00:00Z"}),
        pod(notes={names.MOVE_READY: "true"}),
        pod(notes={"controller.kubernetes.io/pod-deletion-cost": "-2147483648"}),
    ],
)
def test_of_a_pod_it_changes_what_a_move_needs(new: Json) -> None:
    assert refusals(PODS, new, old=POD, sender=REBALANCER) == []
    assert refusals(PODS, POD, old=new, sender=REBALANCER) == []


@pytest.mark.parametrize(
    "new",
    [
        pod(labels={"app": "other"}),
        pod(labels={"pod-template-hash": None}),
        pod(labels={"new": "label"}),
        pod(notes={names.ASSIGNMENT: '{"train": []}'}),
        pod(notes={names.ASSIGNMENT: None}),
        pod(notes={names.MOVE: "m"}),
        pod(notes={"example.com/a": None}),
        POD | {"spec": {"nodeName": "n2"}},
        POD | {"metadata": POD["metadata"] | {"finalizers": ["example.com/f"]}},
        POD | {"metadata": POD["metadata"] | {"ownerReferences": [{"uid": "x"}]}},
    ],
)
def test_of_a_pod_it_changes_nothing_else(new: Json) -> None:
    assert refusals(PODS, new, old=POD, sender=REBALANCER) == [ONLY_MOVES]
    assert refusals(PODS, new, old=POD, sender=ADMIN) == []


def test_of_a_pod_of_a_rollout_it_changes_the_label_that_argo_selects_by() -> None:
    old = pod(labels={"rollouts-pod-template-hash": "5d4f8c"})
    new = pod(labels={"rollouts-pod-template-hash": "5d4f8c.moved"}, notes={names.MOVED_BY: "m"})

    assert refusals(PODS, new, old=old, sender=REBALANCER) == []
    assert refusals(PODS, new, old=POD, sender=REBALANCER) == [ONLY_MOVES]


def test_a_pod_without_the_hash_does_not_get_one() -> None:
    bare = pod(labels={"pod-template-hash": None})

    assert refusals(PODS, POD, old=bare, sender=REBALANCER) == [ONLY_MOVES]


def test_a_move_is_written_by_the_rebalancer_alone_and_deleted_by_whom_rbac_allows() -> None:
    said = [
        "A Move is created and changed only by the FracGPU rebalancer's service account; delete it "
        "to release what it reserves."
    ]
    move = {"metadata": {"name": "m"}, "spec": {}}

    for sender in (ADMIN, Sender(username="x")):
        assert refusals("fracgpu-moves", move, sender=sender) == said
    assert refusals("fracgpu-moves", move, sender=REBALANCER) == []
    approved = {"metadata": {"name": "m", "annotations": {names.APPROVED: "true"}}, "spec": {}}
    assert refusals("fracgpu-moves", approved, old=move, sender=ADMIN) == []
    assert refusals("fracgpu-moves", approved, sender=ADMIN) == said
    for other in (
        approved | {"spec": {"mode": "Evict"}},
        {"metadata": {"name": "m", "annotations": {"x": "y"}}, "spec": {}},
        {"metadata": {"name": "m", "labels": {"x": "y"}}, "spec": {}},
    ):
        assert refusals("fracgpu-moves", other, old=move, sender=ADMIN) == said
    (rule,) = policy("fracgpu-moves")["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert rule["resources"] == ["moves", "moves/*"]


def test_its_roles_allow_evictions_of_pods_and_no_write_to_the_configuration() -> None:
    rules = [
        (rule["apiGroups"][0], resource, tuple(rule.get("resourceNames", ())), verb)
        for document in read_documents((DEPLOY / "rebalancer.yaml").read_text())
        if document["kind"] in ("Role", "ClusterRole")
        for rule in document["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    ]

    assert sorted(rules) == [
        ("", "events", (), "create"),
        ("", "events", (), "patch"),
        ("", "nodes", (), "patch"),
        ("", "pods", (), "patch"),
        ("", "pods/eviction", (), "create"),
        ("coordination.k8s.io", "leases", (), "create"),
        ("coordination.k8s.io", "leases", ("fracgpu-rebalancer",), "update"),
        ("fracgpu.io", "moves", (), "create"),
        ("fracgpu.io", "moves", (), "delete"),
        ("fracgpu.io", "moves/status", (), "update"),
    ]
