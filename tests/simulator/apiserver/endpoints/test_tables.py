"""When a client gets a table, and what is in it."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.resources import CONFIGMAPS
from simulator.apiserver.endpoints.tables import Tables, wants_table
from simulator.objects import decode, encode

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
OLD = "application/json;as=Table;v=v1beta1;g=meta.k8s.io"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OBJECT: dict[str, Any] = {"metadata": {"name": "x", "resourceVersion": "7"}, "data": {"a": "b"}}


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (f"{TABLE},{OLD},application/json", True),
        (f"{OLD},{TABLE}", True),
        ("application/json; as=Table; v=v1; g=meta.k8s.io", True),
        (f"application/json,{TABLE}", False),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", False),
        (f"application/vnd.kubernetes.protobuf,{TABLE}", True),
        ("", False),
        ("*/*", False),
    ],
)
def test_a_client_gets_the_first_form_that_it_accepts(accept: str, wanted: bool) -> None:
    assert wants_table(accept) is wanted


def tables(include: str = "") -> Tables:
    return Tables(CONFIGMAPS, include, lambda: NOW)


def test_a_list_becomes_a_table_with_a_row_for_each_item() -> None:
    body = encode({"metadata": {"resourceVersion": "9", "continue": "t"}, "items": [OBJECT]})

    table = decode(tables().of_list(body))

    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert table["metadata"] == {"resourceVersion": "9", "continue": "t"}
    assert [one["name"] for one in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    (row,) = table["rows"]
    assert row["cells"] == ["x", 1, "<unknown>"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"] == OBJECT["metadata"]


@pytest.mark.parametrize(
    ("include", "shown"), [("None", None), ("Object", OBJECT)], ids=["none", "object"]
)
def test_a_row_has_as_much_of_the_object_as_is_asked_for(include: str, shown: Any) -> None:
    (row,) = decode(tables(include).of_object(encode(OBJECT)))["rows"]

    assert row.get("object") == shown


def test_an_unknown_part_of_the_object_is_refused() -> None:
    with pytest.raises(ApiError, match="unrecognized includeObject value"):
        tables("Everything")


async def lines(*events: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    for event in events:
        yield encode(event) + b"\n"


async def test_a_watch_sends_the_columns_once_and_errors_as_they_are() -> None:
    error = {"type": "ERROR", "object": {"kind": "Status"}}
    added = {"type": "ADDED", "object": OBJECT}

    found = [decode(line) async for line in tables().of_watch(lines(added, added, error))]

    assert [one["type"] for one in found] == ["ADDED", "ADDED", "ERROR"]
    assert [bool(one["object"].get("columnDefinitions")) for one in found[:2]] == [True, False]
    assert found[0]["object"]["metadata"] == {"resourceVersion": "7"}
    assert found[2] == error
