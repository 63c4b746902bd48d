"""Which nodes a pod may be scheduled to: selectors, required affinity and taints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fracgpu.k8s.affinity import read_affinity
from fracgpu.k8s.node import Taint, decode_node
from fracgpu.k8s.node_affinity import taints_of
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.k8s.selectors import label_selector, parse_label_selector
from simulator.apiserver.apimachinery.field_selectors import parse_field_selector
from simulator.apiserver.apimachinery.resources import NODES, PODS

A100 = {"zone": "a", "gpu": "A100", "count": "8"}


def rules_of(**spec: Any) -> Any:
    return scheduling_constraints_of(decode_pod(json.dumps({"spec": spec}).encode()))


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


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


@pytest.mark.parametrize("body", [b"", b"null", b"{}"])
def test_no_affinity_has_no_terms(body: bytes) -> None:
    found = read_affinity(body)

    assert (found.node_affinity, found.pod_affinity, found.pod_anti_affinity) == (None, None, None)
    assert not found.prefers


LABELS = {"app": "web", "tier": "gold", "size": "7"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web", True),
        ("app!=web", False),
        ("gone!=web", True),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db)", True),
        ("gone notin (db)", True),
        ("app", True),
        ("!app", False),
        ("!gone", True),
        ("size>5", True),
        ("size<5", False),
        ("app>5", False),
        ("gone>5", False),
        ("app=web,tier=gold", True),
        ("app in (web,db),tier!=gold", False),
        ("gone=", False),
    ],
)
def test_label_selectors(text: str, matches: bool) -> None:
    assert parse_label_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    "text", ["a b c", "=x", "a in", "a in (b", "a=b=c", ",", "a=b,", "a=b,,c=d", "a(b"]
)
def test_a_label_selector_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unable to parse requirement"):
        parse_label_selector(text)


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "gone", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        (
            {
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["tin"]}],
            },
            False,
        ),
    ],
)
def test_label_selector_objects(spec: dict[str, object], matches: bool) -> None:
    selector = label_selector(spec)
    assert selector is not None
    assert selector.matches(LABELS) is matches


def test_no_label_selector_is_not_an_empty_one() -> None:
    assert label_selector(None) is None


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="not a valid label selector operator"):
        label_selector({"matchExpressions": [{"key": "a", "operator": "Near"}]})


POD = {
    "metadata": {"name": "a", "namespace": "ml"},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("spec.nodeName=n1", True),
        ("spec.nodeName==n1", True),
        ("spec.nodeName!=n1", False),
        ("spec.nodeName=", False),
        ("spec.schedulerName=", True),
        ("metadata.name=a,metadata.namespace=ml", True),
        ("status.phase=Running,metadata.name!=a", False),
        ("spec.hostNetwork=false", True),
    ],
)
def test_field_selectors(text: str, matches: bool) -> None:
    assert parse_field_selector(text, PODS).matches(POD) is matches


def test_an_unset_boolean_field_is_false() -> None:
    selector = parse_field_selector("spec.unschedulable=false", NODES)

    assert selector.matches({"metadata": {"name": "n1"}, "spec": {}})
    assert not selector.matches({"metadata": {"name": "n1"}, "spec": {"unschedulable": True}})


def test_only_some_fields_select() -> None:
    with pytest.raises(ValueError, match=r"field label not supported: spec.containers"):
        parse_field_selector("spec.containers=x", PODS)
    with pytest.raises(ValueError, match=r"field label not supported: spec.nodeName"):
        parse_field_selector("spec.nodeName=x", NODES)
    with pytest.raises(ValueError, match="invalid field selector"):
        parse_field_selector("metadata.name", PODS)
