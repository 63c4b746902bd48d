from __future__ import annotations

from typing import Any

import pytest

from simulator.apiserver.admission.matching import webhooks_for
from simulator.apiserver.apimachinery.request_info import Attributes, Context, Operation, Target
from simulator.apiserver.apimachinery.resources import (
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from simulator.apiserver.apimachinery.storage import Key, Store
from simulator.objects import Json

RULE = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
    "scope": "*",
}


def a_webhook(name: str = "a.example.org", **parts: Any) -> Json:
    return {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [RULE],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
        **parts,
    }


def called(
    *webhooks: Json,
    resource: Resource = PODS,
    subresource: str = "",
    labels: Json | None = None,
) -> list[str]:
    """Return the names of the webhooks for a request of an object in namespace ml."""
    store = Store()
    for number, webhook in enumerate(webhooks):
        value = {"metadata": {"name": f"w{number}"}, "webhooks": [webhook]}
        store.write(Key(VALIDATING_WEBHOOKS.qualified, "", f"w{number}"), value, expected=0)
    namespace = {"metadata": {"name": "ml", "labels": {"team": "ml"}}}
    store.write(Key("namespaces", "", "ml"), namespace, expected=0)
    attributes = Attributes(
        target=Target(
            resource=resource,
            namespace="ml" if resource.namespaced else "",
            name="a",
            subresource=subresource,
        ),
        operation=Operation.CREATE,
        kind=(resource.group, resource.version, resource.kind),
        value={"metadata": {"name": "a", "labels": labels or {}}},
        before=None,
        context=Context(),
    )
    return [hook.name for hook in webhooks_for(store, VALIDATING_WEBHOOKS, attributes)]


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        ({}, True),
        ({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"]}, True),
        ({"resources": ["*"]}, True),
        ({"resources": ["*/*"]}, True),
        ({"resources": ["pods/*"]}, True),
        ({"resources": ["pods/status"]}, False),
        ({"resources": ["nodes"]}, False),
        ({"apiGroups": ["apps"]}, False),
        ({"apiVersions": ["v2"]}, False),
        ({"operations": ["UPDATE", "DELETE"]}, False),
        ({"scope": "Namespaced"}, True),
        ({"scope": "Cluster"}, False),
    ],
)
def test_rules_say_who_is_asked(rule: Json, asked: bool) -> None:
    assert bool(called(a_webhook(rules=[{**RULE, **rule}]))) is asked


@pytest.mark.parametrize(
    ("pattern", "asked"),
    [("pods", False), ("*", False), ("pods/status", True), ("*/status", True), ("*/*", True)],
)
def test_a_subresource_is_named_by_itself(pattern: str, asked: bool) -> None:
    webhook = a_webhook(rules=[{**RULE, "resources": [pattern]}])

    assert bool(called(webhook, subresource="status")) is asked


def test_a_namespace_is_selected_by_its_own_labels_and_a_node_by_none() -> None:
    anything = {**RULE, "apiGroups": ["*"], "resources": ["*"]}
    webhook = a_webhook(rules=[anything], namespaceSelector={"matchLabels": {"team": "ml"}})

    assert called(webhook, resource=NODES)
    assert not called(webhook, resource=NAMESPACES)
    assert called(webhook, resource=NAMESPACES, labels={"team": "ml"})
    assert called(webhook, resource=DEPLOYMENTS)
