"""Fields that a kind does not have."""

from typing import Any

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.request_info import Context, User
from simulator.apiserver.apimachinery.resources import DEPLOYMENTS, PODS
from simulator.apiserver.endpoints.field_validation import check_fields, unknown_fields
from simulator.apiserver.registry.custom_resources import defined_by
from simulator.demo.service_accounts import deployed

(DEFINITION,) = deployed("CustomResourceDefinition")
A_POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "x", "labels": {"any": "thing"}, "owner": "me"},
    "spec": {
        "containers": [{"name": "a", "imag": "b", "resources": {"limits": {"x.io/y": "1"}}}],
        "nodeSelector": {"any": "label"},
        "restart": True,
    },
}
UNKNOWN = ["metadata.owner", "spec.containers[0].imag", "spec.restart"]


def test_every_unknown_field_is_found_and_maps_may_have_any_key() -> None:
    assert sorted(unknown_fields(PODS, A_POD)) == UNKNOWN


def test_a_pod_template_is_looked_into() -> None:
    body = {"spec": {"template": {"spec": {"containers": [{"nam": "a"}]}}, "replica": 1}}

    assert sorted(unknown_fields(DEPLOYMENTS, body)) == [
        "spec.replica",
        "spec.template.spec.containers[0].nam",
    ]


def test_a_custom_resource_has_the_fields_of_its_schema() -> None:
    body = {"kind": "Move", "metadata": {"nam": "x"}, "spec": {"pod": {"nmae": "p"}}, "more": 1}

    found = sorted(unknown_fields(defined_by(DEFINITION), body))

    assert found == ["metadata.nam", "more", "spec.pod.nmae"]


def context() -> Context:
    return Context(user=User())


def test_strict_refuses_with_every_field() -> None:
    with pytest.raises(ApiError) as refused:
        check_fields(PODS, A_POD, "Strict", context())

    assert refused.value.code == 400
    listed = ", ".join(f'unknown field "{path}"' for path in UNKNOWN)
    assert str(refused.value) == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: ' + listed
    )


def test_warn_warns_and_ignore_does_nothing() -> None:
    warned = context()
    check_fields(PODS, A_POD, "Warn", warned)
    assert warned.warnings == [f'unknown field "{path}"' for path in UNKNOWN]

    silent = context()
    check_fields(PODS, A_POD, "Ignore", silent)
    check_fields(PODS, A_POD, "", silent)
    assert silent.warnings == []


def test_another_directive_is_refused() -> None:
    with pytest.raises(ApiError, match="want Ignore, Warn or Strict"):
        check_fields(PODS, A_POD, "Sometimes", context())
