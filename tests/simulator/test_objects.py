from __future__ import annotations

import pytest

from simulator.objects import decode, encode, thaw, without_nulls


def test_a_thawed_object_shares_nothing_with_the_stored_one() -> None:
    stored = {"metadata": {"labels": {"a": "b"}}, "list": [1, {"x": None}]}

    copy = thaw(stored)
    copy["metadata"]["labels"]["a"] = "c"
    copy["list"].append(2)

    assert stored == {"metadata": {"labels": {"a": "b"}}, "list": [1, {"x": None}]}


def test_nulls_are_dropped_at_any_depth_but_not_from_lists() -> None:
    assert without_nulls({"a": None, "b": {"c": None, "d": [None, {"e": None}]}}) == {
        "b": {"d": [None, {}]}
    }


def test_what_is_not_json_is_a_value_error() -> None:
    for body in (b"{", b"\xff", b""):
        with pytest.raises(ValueError, match=r".+"):
            decode(body)
    assert decode(encode({"a": 1})) == {"a": 1}
