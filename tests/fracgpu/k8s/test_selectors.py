from __future__ import annotations

import pytest

from fracgpu.k8s.selectors import label_selector, parse_label_selector
from simulator.apiserver.apimachinery.field_selectors import parse_field_selector
from simulator.apiserver.apimachinery.resources import NODES, PODS

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
