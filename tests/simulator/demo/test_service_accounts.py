"""The demo's roles use the service accounts, and so the RBAC, of deploy/."""

import json

import pytest

from cli.commands.run import ROLES
from component.wiring import Wiring
from fracgpu import names
from simulator.demo.service_accounts import account_of, deployed, user_of


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
