"""The demo's roles use the service accounts, and so the RBAC, of deploy/."""

import json

import pytest

from cli.commands.run import ROLES
from component.wiring import Wiring
from fracgpu import names
from kube.access import connect_to
from kube.errors import KubeDecodeError, NotFound
from simulator.demo.service_accounts import account_of, deployed, issue_token, user_of
from tests.support.scripted import a_server, answering, json_answer, status_answer


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_the_account_that_is_deployed(role: str) -> None:
    accounts = {account["metadata"]["name"] for account in deployed("ServiceAccount")}

    assert account_of(role) in accounts
    assert user_of(role) == f"system:serviceaccount:fracgpu-system:fracgpu-{role}"


def test_with_the_wiring_by_claims_the_component_is_applied_as_kustomize_does() -> None:
    (config,) = [
        each
        for each in deployed("ConfigMap", Wiring.CLAIMS)
        if each["metadata"]["name"] == names.CONFIG_MAP
    ]
    assert config["data"]["wiring"] == "claims"
    classes = {each["metadata"]["name"] for each in deployed("DeviceClass", Wiring.CLAIMS)}
    assert classes == {names.DEVICE_CLASS, names.DEVICE_CLASS_PLACED}
    roles = {each["metadata"]["name"]: each for each in deployed("ClusterRole", Wiring.CLAIMS)}
    assert "resourceclaims" in json.dumps(roles["fracgpu-rebalancer"]["rules"])
    assert "pods/binding" not in json.dumps(roles["fracgpu-scheduler"]["rules"])
    assert "resourceslices" in json.dumps(roles["fracgpu-deviceplugin"]["rules"])
    assert deployed("DeviceClass") == []


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
