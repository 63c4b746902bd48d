"""Which nodes a pod may be scheduled to: selectors, required affinity and taints."""

import json
from typing import Any

import pytest

from fracgpu.k8s.node import decode_node
from fracgpu.k8s.node_affinity import Taint, taints_of
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of

A100 = {"zone": "a", "gpu": "A100", "count": "8"}


def rules_of(**spec: Any) -> Any:
    return scheduling_constraints_of(decode_pod(json.dumps({"spec": spec}).encode()))


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_a_pod_without_wishes_may_go_anywhere() -> None:
    rules = rules_of(containers=[{"name": "main"}])

    assert rules.allows({}, ())


def test_a_node_selector_must_match_in_full() -> None:
    rules = rules_of(nodeSelector={"zone": "a", "gpu": "A100"})

    assert rules.allows(A100, ())
    assert not rules.allows({"zone": "a"}, ())


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        (expression("gpu", "In", "A100", "H100"), True),
        (expression("gpu", "In", "H100"), False),
        (expression("absent", "In", "x"), False),
        (expression("gpu", "NotIn", "H100"), True),
        (expression("absent", "NotIn", "x"), True),
        (expression("gpu", "NotIn", "A100"), False),
        (expression("gpu", "Exists"), True),
        (expression("absent", "Exists"), False),
        (expression("absent", "DoesNotExist"), True),
        (expression("count", "Gt", "4"), True),
        (expression("count", "Gt", "8"), False),
        (expression("count", "Lt", "9"), True),
        (expression("gpu", "Lt", "9"), False),
        (expression("gpu", "Resembles", "A100"), False),
        ({}, False),
    ],
)
def test_required_affinity_is_judged_by_operator(wanted: dict[str, Any], holds: bool) -> None:
    assert rules_of(affinity=affinity(wanted)).allows(A100, ()) is holds


def test_terms_are_alternatives_and_expressions_add_up() -> None:
    both = {
        "matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a"]},
            {"key": "gpu", "operator": "In", "values": ["H100"]},
        ]
    }

    assert not rules_of(affinity=affinity(both)).allows(A100, ())
    assert rules_of(affinity=affinity(both, expression("count", "Exists"))).allows(A100, ())


@pytest.mark.parametrize(
    ("toleration", "holds"),
    [
        ({"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "ml"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "other"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_keeps_a_pod_away_unless_tolerated(toleration: dict[str, str], holds: bool) -> None:
    taints = (Taint(key="team", value="ml"),)

    assert rules_of(tolerations=[toleration]).allows({}, taints) is holds
    assert not rules_of().allows({}, taints)


def test_taints_that_only_advise_are_not_read() -> None:
    node = {
        "spec": {
            "taints": [
                {"key": "a", "effect": "NoSchedule"},
                {"key": "b", "effect": "PreferNoSchedule"},
                {"key": "c", "value": "x", "effect": "NoExecute"},
            ]
        }
    }

    assert taints_of(decode_node(json.dumps(node).encode())) == (
        Taint(key="a"),
        Taint(key="c", value="x", effect="NoExecute"),
    )


def test_a_node_can_be_named() -> None:
    named = affinity(
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    )

    assert rules_of(affinity=named).allows({}, (), node="n1")
    assert not rules_of(affinity=named).allows({}, (), node="n2")


def test_numbers_are_not_compared_by_tolerations() -> None:
    rules = rules_of(tolerations=[{"key": "load", "operator": "Lt", "value": "5"}])

    assert not rules.allows({}, (Taint(key="load", value="5"),))


def test_preferences_refuse_no_node() -> None:
    preferred = [{"weight": 1, "preference": expression("zone", "In", "b")}]
    wish = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}

    assert rules_of(affinity=wish).allows({"zone": "a"}, ())
