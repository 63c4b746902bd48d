"""Server-side apply as a client asks for it."""

from typing import Any

import pytest

from simulator.apiserver.endpoints.handlers import Reply
from simulator.objects import decode
from tests.simulator.apiserver.endpoints.test_handlers import Caller

PATH = "/api/v1/namespaces/default/configmaps/x"


@pytest.fixture
async def call() -> Caller:
    caller = Caller()
    await caller("POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
    return caller


async def applied(call: Caller, data: Any, query: str = "fieldManager=me", **meta: Any) -> Reply:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", **meta}}
    return await call(
        "PATCH",
        f"{PATH}?{query}",
        {**body, "data": data},
        content_type="application/apply-patch+yaml",
    )


async def test_it_creates_and_then_changes(call: Caller) -> None:
    assert (await applied(call, {"a": "1", "b": "2"})).code == 201
    reply = await applied(call, {"a": "3"})

    assert reply.code == 200
    assert decode(reply.body)["data"] == {"a": "3"}


async def test_a_conflict_names_the_manager_and_the_field(call: Caller) -> None:
    await applied(call, {"a": "1"})

    reply = await applied(call, {"a": "2"}, "fieldManager=other")

    assert (reply.code, decode(reply.body)["reason"]) == (409, "Conflict")
    assert decode(reply.body)["message"] == (
        'Apply failed with 1 conflict: conflict with "me": .data.a'
    )
    assert (await applied(call, {"a": "2"}, "fieldManager=other&force=true")).code == 200


async def test_a_dry_run_owns_nothing(call: Caller) -> None:
    await applied(call, {"a": "1"})
    await applied(call, {"b": "1"}, "fieldManager=other&dryRun=All")

    reply = await applied(call, {"b": "2"})

    assert (reply.code, decode(reply.body)["data"]) == (200, {"b": "2"})


@pytest.mark.parametrize(
    ("query", "meta", "code", "said"),
    [
        ("", {}, 422, "fieldManager: Required value: is required for apply patch"),
        ("fieldManager=me", {"managedFields": [{}]}, 400, "metadata.managedFields must be nil"),
        ("fieldManager=me", {"name": "y"}, 400, "does not match the name on the URL"),
        ("fieldManager=me", {"namespace": "y"}, 400, "does not match the namespace"),
        (
            "fieldManager=me&fieldValidation=Strict",
            {"labls": {}},
            400,
            'unknown field "metadata.labls"',
        ),
    ],
)
async def test_a_request_that_cannot_be_meant_is_refused(
    call: Caller, query: str, meta: dict[str, Any], code: int, said: str
) -> None:
    reply = await applied(call, {"a": "1"}, query, **meta)

    assert reply.code == code
    assert said in decode(reply.body)["message"]
