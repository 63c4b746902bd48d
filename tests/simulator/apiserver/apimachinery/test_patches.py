from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.apiserver.apimachinery.patches import (
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


def test_ports_of_a_service_merge_by_port() -> None:
    before = {"ports": [{"port": 80, "targetPort": 8080}, {"port": 81}]}
    patch = {"ports": [{"port": 80, "targetPort": 1}]}

    after = strategic_merge_patch(before, patch)

    assert after == {"ports": [{"port": 80, "targetPort": 1}, {"port": 81}]}
