from __future__ import annotations

import pytest

from fracgpu.k8s.selectors import parse_label_selector
from simulator.apiserver.apimachinery.field_selectors import FieldSelector, parse_field_selector
from simulator.apiserver.apimachinery.request_info import ListSelection, Target, User
from simulator.apiserver.apimachinery.resources import PODS
from simulator.apiserver.apimachinery.storage import Key

POD = {"metadata": {"name": "a", "namespace": "ml", "labels": {"app": "x"}}, "spec": {}}


@pytest.mark.parametrize(
    ("selection", "matches", "narrowed"),
    [
        (ListSelection(), True, False),
        (ListSelection(namespace="ml"), True, False),
        (ListSelection(namespace="other"), False, False),
        (ListSelection(labels=parse_label_selector("app=x")), True, True),
        (ListSelection(labels=parse_label_selector("app=y")), False, True),
        (ListSelection(fields=parse_field_selector("metadata.name=b", PODS)), False, True),
        (ListSelection(fields=FieldSelector()), True, False),
    ],
)
def test_a_selection_holds_namespace_labels_and_fields(
    selection: ListSelection, matches: bool, narrowed: bool
) -> None:
    assert selection.matches(POD) is matches
    assert selection.is_narrowed is narrowed


def test_a_subresource_lies_where_its_object_does() -> None:
    target = Target(resource=PODS, namespace="ml", name="a", subresource="status")

    assert target.key == Key("pods", "ml", "a")


def test_who_says_nothing_is_the_administrator() -> None:
    assert "system:masters" in User().groups
