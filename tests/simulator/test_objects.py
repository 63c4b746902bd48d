from __future__ import annotations

from datetime import UTC, datetime

import pytest

from simulator.objects import decode, encode, format_time, labels, metadata, thaw, without_nulls


def test_a_thawed_object_shares_nothing_with_the_stored_one() -> None:
    stored = {"metadata": {"labels": {"a": "b"}}, "list": [1, {"x": None}]}

    copy = thaw(stored)
    copy["metadata"]["labels"]["a"] = "c"
    copy["list"].append(2)

    assert stored == {"metadata": {"labels": {"a": "b"}}, "list": [1, {"x": None}]}


def test_times_are_whole_seconds_in_utc() -> None:
    moment = datetime(2026, 1, 5, 12, 0, 7, 999_999, tzinfo=UTC)

    assert format_time(moment) == "2026-01-05T12:00:07Z"


def test_nulls_are_dropped_at_any_depth_but_not_from_lists() -> None:
    assert without_nulls({"a": None, "b": {"c": None, "d": [None, {"e": None}]}}) == {
        "b": {"d": [None, {}]}
    }


def test_metadata_that_was_missing_can_be_written_to() -> None:
    value: dict[str, object] = {}
    metadata(value)["name"] = "a"

    assert value == {"metadata": {"name": "a"}}


@pytest.mark.parametrize("value", [None, {}, {"metadata": None}, {"metadata": {"labels": None}}])
def test_what_has_no_labels_has_none(value: dict[str, object] | None) -> None:
    assert labels(value) == {}


def test_what_is_not_json_is_a_value_error() -> None:
    for body in (b"{", b"\xff", b""):
        with pytest.raises(ValueError, match=r".+"):
            decode(body)
    assert decode(encode({"a": 1})) == {"a": 1}
