from __future__ import annotations

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.resources import DEPLOYMENTS, PODS
from simulator.apiserver.endpoints.bodies import (
    apply_patch,
    check_kind,
    check_namespace,
    check_same_uid,
    object_of,
    patch_of,
)
from simulator.objects import Json
from tests.simulator.harness import at

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def test_objects_come_as_json() -> None:
    assert object_of("application/json", b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"[]", 400),
        ("application/json", b"", 400),
        ("application/json", b'{"metadata": []}', 400),
        ("application/yaml", b"a: 1", 415),
        ("text/plain", b"{}", 415),
    ],
)
def test_what_is_no_object_is_refused(content_type: str, body: bytes, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        object_of(content_type, body)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        (MERGE, b"{", 400),
        ("application/json", b"{}", 415),
        ("application/apply-patch+yaml", b"{}", 415),
    ],
)
def test_only_three_kinds_of_patch_are_known(content_type: str, body: bytes, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        patch_of(content_type, body, PODS)
    assert caught.value.code == code


def test_each_kind_of_patch_is_applied_in_its_way() -> None:
    value: Json = {"finalizers": ["a"]}

    assert apply_patch(MERGE, value, {"finalizers": ["b"]}) == {"finalizers": ["b"]}
    assert apply_patch(STRATEGIC, value, {"finalizers": ["b"]}) == {"finalizers": ["a", "b"]}
    step = {"op": "add", "path": "/finalizers/-", "value": "c"}
    assert apply_patch(JSON_PATCH, value, [step]) == {"finalizers": ["a", "c"]}


@pytest.mark.parametrize(
    ("content_type", "patch", "code"),
    [
        (JSON_PATCH, [{"op": "test", "path": "/a", "value": 2}], 422),
        (JSON_PATCH, {}, 400),
        (JSON_PATCH, [{"op": "replace", "path": "", "value": []}], 400),
        (MERGE, [], 400),
        (STRATEGIC, [], 400),
        (STRATEGIC, {"containers": [{}]}, 500),
    ],
)
def test_a_patch_that_fails_has_its_code(content_type: str, patch: object, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        apply_patch(content_type, {"a": 1}, patch)
    assert caught.value.code == code


def test_a_body_must_fit_its_url() -> None:
    check_kind(PODS, {})
    check_kind(DEPLOYMENTS, {"kind": "Deployment", "apiVersion": "apps/v1"})
    for wrong in ({"kind": "Node"}, {"apiVersion": "v2"}):
        with pytest.raises(ApiError, match="cannot be handled as a Pod"):
            check_kind(PODS, wrong)
    check_namespace(at(PODS), {"metadata": {"namespace": "default"}})
    check_namespace(at(PODS), {})
    with pytest.raises(ApiError, match="does not match the namespace sent"):
        check_namespace(at(PODS), {"metadata": {"namespace": "other"}})


def test_a_patch_may_name_its_object_by_uid_but_not_another() -> None:
    before = {"metadata": {"uid": "1"}}

    check_same_uid(at(PODS, "a"), before, {"metadata": {"uid": "1"}})
    check_same_uid(at(PODS, "a"), before, {"metadata": {}})
    with pytest.raises(ApiError, match="field is immutable") as caught:
        check_same_uid(at(PODS, "a"), before, {"metadata": {"uid": "2"}})
    assert caught.value.code == 422
