"""When a client gets a table, and what is in it."""

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.resources import ALL, CONFIGMAPS, Resource, find
from simulator.apiserver.endpoints.tables import Column, Tables, age, columns_of, wants_table
from simulator.objects import decode, encode

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
OLD = "application/json;as=Table;v=v1beta1;g=meta.k8s.io"
NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
META = {"name": "x", "creationTimestamp": "2026-01-01T12:00:00Z"}


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


def row(columns: Sequence[Column], body: dict[str, Any]) -> dict[str, Any]:
    return {column.name: column.cell({"metadata": META, **body}, NOW) for column in columns}


def shown(plural: str, body: dict[str, Any]) -> dict[str, Any]:
    resource = find("", "v1", plural)
    assert resource is not None
    return row(columns_of(resource), body)


@pytest.mark.parametrize("resource", ALL, ids=lambda one: one.qualified)
def test_every_kind_has_a_row_even_when_there_is_little_to_tell(resource: Resource) -> None:
    assert row(columns_of(resource), {"spec": {"containers": []}})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (121, "2m"), (3 * 3600, "3h"), (49 * 3600, "2d")],
)
def test_an_age_has_one_unit(seconds: int, text: str) -> None:
    assert age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == text


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ({"phase": "Pending"}, "Pending"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        (
            {
                "phase": "Pending",
                "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
            },
            "ImagePullBackOff",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}],
            },
            "SchedulingGated",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_status_of_a_pod_is_the_reason_that_tells_most(
    status: dict[str, Any], wanted: str
) -> None:
    assert shown("pods", {"status": status, "spec": {"containers": []}})["Status"] == wanted


def test_a_pod_tells_what_is_ready_and_where_it_is() -> None:
    containers = [{"ready": True, "restartCount": 2}, {"ready": False}]
    spec = {"containers": [{}, {}], "nodeName": "n1"}
    body = {"spec": spec, "status": {"phase": "Running", "containerStatuses": containers}}
    gone = {"metadata": {**META, "deletionTimestamp": "2026-01-01T00:00:00Z"}}

    found = shown("pods", body)

    assert (found["Ready"], found["Restarts"], found["Age"]) == ("1/2", 2, "30s")
    assert (found["IP"], found["Node"]) == ("<none>", "n1")
    assert shown("pods", {**body, **gone})["Status"] == "Terminating"


OBJECT: dict[str, Any] = {"metadata": {"name": "x", "resourceVersion": "7"}, "data": {"a": "b"}}


@pytest.mark.parametrize(
    ("include", "shown"), [("None", None), ("Object", OBJECT)], ids=["none", "object"]
)
def test_a_row_has_as_much_of_the_object_as_is_asked_for(include: str, shown: Any) -> None:
    (row,) = decode(tables(include).of_object(encode(OBJECT)))["rows"]

    assert row.get("object") == shown


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


def test_an_unknown_part_of_the_object_is_refused() -> None:
    with pytest.raises(ApiError, match="unrecognized includeObject value"):
        tables("Everything")
