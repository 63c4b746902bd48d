"""What the answer to the dry run of a pod says about the webhook."""

import json

import pytest
from aiohttp import web

from cli.doctor.webhook_probe import ask_webhook
from fracgpu import names
from fracgpu.doctor.facts import AdmissionAnswer, Unread
from kube.access import connect_to
from kube.errors import Unavailable
from tests.support.scripted import ScriptedServer, a_server

BY_US = 'admission webhook "pods.fracgpu.io" denied the request: fracgpu.io/fraction is 2'
NOT_CALLED = 'Internal error occurred: failed calling webhook "pods.fracgpu.io": refused'
NOT_OURS = 'Internal error occurred: failed calling webhook "a.example.org": refused'
POLICY = "pods is forbidden: ValidatingAdmissionPolicy 'fracgpu-pods' denied request: no grant"
NO_RIGHT = 'pods is forbidden: User "viewer" cannot create resource "pods"'


async def asked(status: int, message: str) -> tuple[AdmissionAnswer | Unread, ScriptedServer]:
    async def handler(_: web.Request) -> web.Response:
        body = {"kind": "Status", "reason": "Any", "message": message, "metadata": {}}
        return web.json_response(body, status=status)

    async with a_server(handler) as server, connect_to(server.url) as client:
        return await ask_webhook(client, namespace="ml"), server


async def test_an_impossible_request_is_sent_as_a_dry_run() -> None:
    _, server = await asked(403, BY_US)

    (heard,) = server.heard
    assert (heard.method, heard.path) == ("POST", "/api/v1/namespaces/ml/pods")
    assert heard.query == {"dryRun": "All"}
    assert json.loads(heard.body)["metadata"]["annotations"] == {names.FRACTION: "2"}


@pytest.mark.parametrize(
    ("status", "message", "wanted"),
    [
        (403, BY_US, AdmissionAnswer(refused_by_webhook=True, message="")),
        (500, NOT_CALLED, AdmissionAnswer(refused_by_webhook=False, message=NOT_CALLED)),
        (201, "", AdmissionAnswer(refused_by_webhook=False, message="")),
    ],
)
async def test_the_answer_says_whether_the_webhook_was_asked(
    status: int, message: str, wanted: AdmissionAnswer
) -> None:
    answer, _ = await asked(status, message)

    assert answer == wanted


async def test_a_policy_that_refuses_instead_is_no_webhook() -> None:
    answer, _ = await asked(422, POLICY)

    assert isinstance(answer, AdmissionAnswer)
    assert not answer.refused_by_webhook
    assert answer.message == f"only a policy refused the pod of the dry run: {POLICY}"


async def test_an_account_that_may_not_create_pods_cannot_ask() -> None:
    answer, _ = await asked(403, NO_RIGHT)

    assert isinstance(answer, Unread)
    assert 'cannot create resource "pods"' in answer.reason


async def test_a_fault_of_somebody_elses_webhook_is_no_answer() -> None:
    with pytest.raises(Unavailable):
        await asked(500, NOT_OURS)
