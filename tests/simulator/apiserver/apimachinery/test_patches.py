from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.apiserver.apimachinery.patches import (
    BadPatchError,
    MergeError,
    PatchError,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_a_json_patch_reads_slashes_in_keys() -> None:
    document = {"metadata": {"annotations": {"fracgpu.io/a": "1"}}}
    steps = [{"op": "replace", "path": "/metadata/annotations/fracgpu.io~1a", "value": "2"}]

    assert json_patch(document, steps) == {"metadata": {"annotations": {"fracgpu.io/a": "2"}}}
    assert document == {"metadata": {"annotations": {"fracgpu.io/a": "1"}}}


@pytest.mark.parametrize(
    "step",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "/gone"},
        {"op": "add", "path": "/gone/b", "value": 1},
        {"op": "frob", "path": "/a"},
        {"path": "/a"},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "add", "path": "/a"},
    ],
)
def test_a_json_patch_that_does_not_apply_is_a_patch_error(step: dict[str, Any]) -> None:
    with pytest.raises(PatchError):
        json_patch({"a": 1}, [step])


def test_a_json_patch_is_a_list() -> None:
    with pytest.raises(BadPatchError, match="list of operations"):
        json_patch({}, {"op": "add"})


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_is_rfc_7386(before: Any, patch: Any, after: Any) -> None:
    assert merge_patch(before, patch) == after


@given(JSON, JSON)
def test_no_patch_changes_the_document_it_was_given(document: Any, patch: Any) -> None:
    kept = copy.deepcopy(document)

    merge_patch(document, patch)

    assert document == kept


def containers(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"containers": [{"name": name, "image": image} for name, image in pairs]}


def test_a_strategic_patch_merges_containers_by_name() -> None:
    after = strategic_merge_patch(
        containers(("a", "1"), ("b", "1")),
        {"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "1"}]},
    )

    assert after == containers(("a", "1"), ("b", "2"), ("c", "1"))


def test_an_element_is_removed_by_its_key() -> None:
    patch = {"containers": [{"name": "a", "$patch": "delete"}]}

    assert strategic_merge_patch(containers(("a", "1"), ("b", "1")), patch) == containers(
        ("b", "1")
    )


def test_an_owner_is_released_by_its_uid() -> None:
    before = {"ownerReferences": [{"uid": "1"}, {"uid": "2"}]}
    patch = {"ownerReferences": [{"$patch": "delete", "uid": "1"}]}

    assert strategic_merge_patch(before, patch) == {"ownerReferences": [{"uid": "2"}]}


def test_a_new_condition_comes_before_those_that_the_patch_does_not_name() -> None:
    before = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    patch = {"conditions": [{"type": "Ready", "status": "True"}]}

    after = strategic_merge_patch(before, patch)

    assert [condition["type"] for condition in after["conditions"]] == ["Ready", "PodScheduled"]


def test_the_order_may_be_given() -> None:
    patch = {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c", "image": "1"}],
    }

    after = strategic_merge_patch(containers(("a", "1"), ("b", "1")), patch)

    assert [container["name"] for container in after["containers"]] == ["c", "a", "b"]


def test_ports_merge_by_the_key_of_their_kind() -> None:
    of_container = {"ports": [{"containerPort": 80, "name": "web"}]}
    of_service = {"ports": [{"port": 80, "targetPort": 8080}]}

    assert strategic_merge_patch(of_container, {"ports": [{"containerPort": 80, "name": "x"}]}) == {
        "ports": [{"containerPort": 80, "name": "x"}]
    }
    assert strategic_merge_patch(of_service, {"ports": [{"port": 80, "targetPort": 1}]}) == {
        "ports": [{"port": 80, "targetPort": 1}]
    }


def test_lists_without_a_key_are_replaced_and_sets_are_united() -> None:
    before = {"args": ["a"], "tolerations": [{"key": "a"}], "finalizers": ["x", "y"]}
    patch = {
        "args": ["b"],
        "tolerations": [{"key": "b"}],
        "finalizers": ["y", "z"],
    }

    assert strategic_merge_patch(before, patch) == {
        "args": ["b"],
        "tolerations": [{"key": "b"}],
        "finalizers": ["x", "y", "z"],
    }
    gone = {"$deleteFromPrimitiveList/finalizers": ["x"]}
    assert strategic_merge_patch(before, gone)["finalizers"] == ["y"]


def test_an_object_may_be_replaced_or_some_keys_kept() -> None:
    before = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}

    replaced = strategic_merge_patch(
        before, {"strategy": {"$patch": "replace", "type": "Recreate"}}
    )
    kept = strategic_merge_patch(
        before, {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}
    )
    deleted = strategic_merge_patch(before, {"strategy": {"$patch": "delete"}})

    assert replaced == kept == {"strategy": {"type": "Recreate"}}
    assert deleted == {"strategy": {}}


def test_null_removes_a_member() -> None:
    assert strategic_merge_patch({"a": 1, "b": 2}, {"a": None}) == {"b": 2}


def test_a_whole_list_may_be_replaced() -> None:
    patch = {"containers": [{"$patch": "replace"}, {"name": "z", "image": "1"}]}

    assert strategic_merge_patch(containers(("a", "1")), patch) == containers(("z", "1"))


def test_broken_rules_are_told_in_the_api_servers_words() -> None:
    with pytest.raises(MergeError, match="does not contain declared merge key: name"):
        strategic_merge_patch(containers(("a", "1")), {"containers": [{"image": "2"}]})
    with pytest.raises(MergeError, match="unknown patch type: frob"):
        strategic_merge_patch({"a": {}}, {"a": {"$patch": "frob"}})
    with pytest.raises(BadPatchError):
        strategic_merge_patch({}, [1])
