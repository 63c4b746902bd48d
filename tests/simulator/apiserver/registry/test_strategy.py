from __future__ import annotations

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    Resource,
)
from simulator.apiserver.apimachinery.storage import Key, Stored
from simulator.apiserver.registry.strategy import (
    check_lock,
    check_preconditions,
    cleaned,
    grace_s,
    keep_all_but_status,
    resource_finalizers,
)
from simulator.objects import Json
from tests.simulator.harness import a_pod, at


def test_what_is_kept_outside_the_object_is_taken_out() -> None:
    value = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "a", "labels": {}, "managedFields": [{}], "annotations": {"x": None}},
        "spec": None,
    }

    assert cleaned(PODS, value) == {"metadata": {"name": "a"}}


@pytest.mark.parametrize("member", ["labels", "annotations", "ownerReferences", "finalizers"])
def test_metadata_of_the_wrong_type_is_a_bad_request(member: str) -> None:
    with pytest.raises(ApiError, match=f"metadata.{member}"):
        cleaned(PODS, {"metadata": {member: "text"}})


@pytest.mark.parametrize(
    ("resource", "spec", "phase", "asked", "wanted_s"),
    [
        (PODS, {"nodeName": "n"}, "Running", None, 30),
        (PODS, {"nodeName": "n"}, "Running", 5, 5),
        (PODS, {"nodeName": "n"}, "Running", -1, 1),
        (PODS, {"nodeName": "n"}, "Failed", 5, 0),
        (PODS, {}, "Pending", 5, 0),
        (CONFIGMAPS, {}, "", 5, 0),
    ],
)
def test_only_pods_on_a_node_get_grace(
    resource: Resource, spec: Json, phase: str, asked: int | None, wanted_s: int
) -> None:
    value = {"spec": {"terminationGracePeriodSeconds": 30, **spec}, "status": {"phase": phase}}

    assert grace_s(resource, value, {"gracePeriodSeconds": asked}) == wanted_s


def a_stored() -> Stored:
    key = Key("pods", "default", "a")
    value = {"metadata": {"name": "a", "uid": "u1", "resourceVersion": "7"}}
    return Stored(key=key, revision=7, object=value, encoded=b"")


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({}, None),
        ({"resourceVersion": "7", "uid": "u1", "name": "a"}, None),
        ({"resourceVersion": "0"}, None),
        ({"resourceVersion": "6"}, 409),
        ({"uid": "u2"}, 409),
        ({"name": "b"}, 400),
    ],
)
def test_an_update_is_for_this_object_and_version(meta: Json, code: int | None) -> None:
    if code is None:
        check_lock(at(PODS, "a"), meta, a_stored())
        return
    with pytest.raises(ApiError) as caught:
        check_lock(at(PODS, "a"), meta, a_stored())
    assert caught.value.code == code


def test_preconditions_that_hold_or_are_absent_pass() -> None:
    found = a_stored().object

    check_preconditions(at(PODS, "a"), found, {})
    check_preconditions(at(PODS, "a"), found, {"preconditions": None})
    check_preconditions(
        at(PODS, "a"), found, {"preconditions": {"uid": "u1", "resourceVersion": "7"}}
    )


@pytest.mark.parametrize(("resource", "kept"), [(PODS, "new"), (DEPLOYMENTS, "old")])
def test_a_status_write_may_change_metadata_of_pods_only(resource: Resource, kept: str) -> None:
    before: Json = {**a_pod(), "status": {"phase": "Pending"}}
    before["metadata"]["labels"] = {"a": "old"}
    value: Json = {
        "metadata": {"name": "a", "labels": {"a": "new"}},
        "status": {"phase": "Running"},
    }

    keep_all_but_status(resource, value, before)

    assert value["status"] == {"phase": "Running"}
    assert value["metadata"]["labels"] == {"a": kept}
    assert value["spec"] == before["spec"]


def test_only_namespaces_have_finalizers_in_their_spec() -> None:
    value = {"spec": {"finalizers": ["kubernetes"]}}

    assert resource_finalizers(NAMESPACES, value) == ["kubernetes"]
    assert resource_finalizers(PODS, value) == []
