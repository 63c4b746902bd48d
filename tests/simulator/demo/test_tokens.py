"""A token is requested with the object it is bound to, and an answer without one is an error."""

import json

import pytest
from aiohttp import web

from kube.access import connect_to
from kube.errors import KubeDecodeError, NotFound
from simulator.demo.service_accounts import issue_token
from tests.support.scripted import Handler, a_server

NODE = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-1"}


def answering(body: object, *, status: int = 200) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    return handle


async def test_the_request_names_the_account_and_the_node() -> None:
    async with (
        a_server(answering({"status": {"token": "t0k3n"}})) as server,
        connect_to(server.url) as client,
    ):
        token = await issue_token(
            client, namespace="ml", account="agent", bound_to=NODE, lifetime_s=600
        )

    (heard,) = server.heard
    assert token == "t0k3n"  # noqa: S105 - no secret
    assert (heard.method, heard.path) == (
        "POST",
        "/api/v1/namespaces/ml/serviceaccounts/agent/token",
    )
    assert json.loads(heard.body)["spec"] == {
        "audiences": [],
        "expirationSeconds": 600,
        "boundObjectRef": NODE,
    }


async def test_an_account_that_is_not_there_is_said() -> None:
    status = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such account"}
    async with (
        a_server(answering(status, status=404)) as server,
        connect_to(server.url) as client,
    ):
        with pytest.raises(NotFound, match="no such account"):
            await issue_token(client, namespace="ml", account="agent")


async def test_an_answer_without_a_token_is_an_error() -> None:
    async with a_server(answering({"status": {}})) as server, connect_to(server.url) as client:
        with pytest.raises(KubeDecodeError):
            await issue_token(client, namespace="ml", account="agent")
