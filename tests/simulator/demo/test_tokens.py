"""A token is requested with the object it is bound to, and an answer without one is an error."""

import json

import pytest

from kube.access import connect_to
from kube.errors import KubeDecodeError, NotFound
from simulator.demo.service_accounts import issue_token
from tests.support.scripted import a_server, answering, json_answer, status_answer

NODE = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-1"}


async def test_the_request_names_the_account_and_the_node() -> None:
    async with (
        a_server(answering(json_answer({"status": {"token": "t0k3n"}}))) as server,
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
    refusal = status_answer(404, "NotFound", "no such account")
    async with (
        a_server(answering(refusal)) as server,
        connect_to(server.url) as client,
    ):
        with pytest.raises(NotFound, match="no such account"):
            await issue_token(client, namespace="ml", account="agent")


async def test_an_answer_without_a_token_is_an_error() -> None:
    async with (
        a_server(answering(json_answer({"status": {}}))) as server,
        connect_to(server.url) as client,
    ):
        with pytest.raises(KubeDecodeError):
            await issue_token(client, namespace="ml", account="agent")
