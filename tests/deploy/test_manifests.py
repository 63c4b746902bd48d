"""deploy/ fits the programs it starts: flags, configuration, names and webhook conditions."""

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cli.commands.run import ROLES
from component.config_keys import KEYS, WIRING
from component.placement_config import KEY as PLACEMENT_KEY
from component.placement_config import parse_strategy
from component.pool_config import KEY as POOLS_KEY
from component.pool_config import parse_pools
from component.wiring import Wirings, parse_wirings
from deviceplugin.settings import DevicePluginSettings
from fracgpu import names
from fracgpu.disruption.policy import Mode
from fracgpu.request.need import DEFAULT_STRATEGY
from process.settings import load
from rebalancer.config import KEY as REBALANCER_KEY
from rebalancer.config import parse_policy
from scheduler.leader_endpoint import PORT_NAME
from simulator.cards.simulated_cards import open_cards
from tests.support.yaml_files import read_documents, read_yaml
from webhook.admission_config import KEY as ADMISSION_KEY
from webhook.admission_config import AdmissionConfig, parse_admission

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = DEPLOY.parent / "overlays"


@cache
def objects() -> tuple[dict[str, Any], ...]:
    kustomization = read_yaml((DEPLOY / "kustomization.yaml").read_text())
    return tuple(
        document
        for file in kustomization["resources"]
        for document in read_documents((DEPLOY / file).read_text())
        if document
    )


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [manifest for manifest in objects() if manifest["kind"] in kinds]


def only(kind: str, name: str) -> dict[str, Any]:
    return next(manifest for manifest in of_kind(kind) if manifest["metadata"]["name"] == name)


def role_containers() -> list[tuple[str, dict[str, Any]]]:
    return [
        (container["args"][1], container)
        for workload in of_kind("Deployment", "DaemonSet")
        for container in workload["spec"]["template"]["spec"]["containers"]
        if container["image"] == "fracgpu"
    ]


def test_every_role_is_deployed_once() -> None:
    assert sorted(role for role, _ in role_containers()) == sorted(ROLES)


@pytest.mark.parametrize(
    ("role", "container"), role_containers(), ids=lambda value: str(value)[:12]
)
def test_a_role_accepts_the_flags_it_is_started_with(role: str, container: dict[str, Any]) -> None:
    settings = vars(importlib.import_module(f"{role}.settings"))[ROLES[role].settings]
    variables = {
        variable["name"]: variable.get("value", "192.0.2.1")
        for variable in container.get("env", ())
    }

    # As kubelet writes them: https://kubernetes.io/docs/tasks/inject-data-application/
    words = [
        re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], arg) for arg in container["args"]
    ]
    loaded = load(settings, words[2:], variables, program=role)

    telemetry = next(port for port in container["ports"] if port["name"] == "telemetry")
    assert telemetry["containerPort"] == loaded.telemetry_port


@pytest.mark.parametrize(
    ("role", "container"), role_containers(), ids=lambda value: str(value)[:12]
)
def test_a_role_is_probed_and_bounded(role: str, container: dict[str, Any]) -> None:
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    # A start on a busy node may take longer than the liveness probe allows a hanging one.
    start = container["startupProbe"]
    assert start["httpGet"]["path"] == "/livez"
    assert start["periodSeconds"] * start["failureThreshold"] >= 120
    assert container["resources"]["limits"]["memory"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_node_agent_sees_device_files_that_come_after_it_has_started() -> None:
    (pod,) = [manifest["spec"]["template"]["spec"] for manifest in of_kind("DaemonSet")]
    (container,) = pod["containers"]
    settings = load(DevicePluginSettings, container["args"][2:], {}, program="deviceplugin")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    folders = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}

    # The container's own /dev is a copy of the host's at its start.
    assert settings.dev_root != Path("/dev")
    assert folders[mounts[str(settings.dev_root)]] == "/dev"


def test_only_the_node_agent_is_privileged() -> None:
    privileged = {
        role
        for role, container in role_containers()
        if container["securityContext"].get("privileged")
    }

    assert privileged == {"deviceplugin"}


def test_the_node_agent_is_root_whatever_the_images_user() -> None:
    context = dict(role_containers())["deviceplugin"]["securityContext"]

    # Only root can connect to kubelet's sockets.
    assert (context["runAsUser"], context["runAsGroup"]) == (0, 0)


def test_every_other_role_is_in_no_group_of_the_hosts() -> None:
    contexts = [
        manifest["spec"]["template"]["spec"]["securityContext"]
        for manifest in of_kind("Deployment")
    ]

    # Without runAsGroup a process has root's group.
    assert {(context["runAsUser"], context["runAsGroup"]) for context in contexts} == {
        (65532, 65532)
    }


def test_a_quota_admits_the_critical_pods_where_a_cluster_wants_one() -> None:
    (quota,) = of_kind("ResourceQuota")
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    classes = {
        manifest["spec"]["template"]["spec"].get("priorityClassName")
        for manifest in of_kind("Deployment", "DaemonSet")
    }

    assert set(scope["values"]) == classes - {None}


async def test_the_simulated_cards_that_ship_can_be_read() -> None:
    file = OVERLAYS / "simulated-cards" / "cards.yaml"

    survey = await open_cards(file, node="n1").list_cards()

    assert [card.card.uuid for card in survey.cards] == ["GPU-n1-0", "GPU-n1-1"]
    assert all(card.device_nodes for card in survey.cards)


def test_the_configuration_that_ships_is_one_the_roles_read() -> None:
    data = only("ConfigMap", names.CONFIG_MAP)["data"]

    assert set(data) == set(KEYS)
    assert parse_wirings(data[WIRING]) == Wirings()
    assert parse_admission(data[ADMISSION_KEY], base=AdmissionConfig()) == AdmissionConfig()
    assert parse_strategy(data[PLACEMENT_KEY]) is DEFAULT_STRATEGY
    assert not parse_pools(data[POOLS_KEY])
    # Nothing moves before an administrator says so.
    assert parse_policy(data[REBALANCER_KEY]).mode is Mode.DRY_RUN


def test_every_binding_leads_from_an_account_to_a_role_that_exist() -> None:
    accounts = {manifest["metadata"]["name"] for manifest in of_kind("ServiceAccount")}
    roles = {manifest["metadata"]["name"] for manifest in of_kind("Role", "ClusterRole")}
    built_in = {
        "system:kube-scheduler",
        "system:volume-scheduler",
        "extension-apiserver-authentication-reader",
    }

    for binding in of_kind("RoleBinding", "ClusterRoleBinding"):
        assert binding["roleRef"]["name"] in roles | built_in
        assert {subject["name"] for subject in binding["subjects"]} <= accounts


def test_kube_scheduler_asks_the_service_whose_endpointslice_the_leader_may_write() -> None:
    (extender,) = [container for role, container in role_containers() if role == "scheduler"]
    announced = next(arg for arg in extender["args"] if arg.startswith("--announce-service="))
    service = only("Service", announced.partition("=")[2])
    profile = read_yaml((DEPLOY / "scheduler-profile.yaml").read_text())
    rules = only("Role", "fracgpu-scheduler")["rules"]
    written = [rule for rule in rules if rule["resources"] == ["endpointslices"]]

    assert "selector" not in service["spec"]
    name, namespace = (service["metadata"][key] for key in ("name", "namespace"))
    (port,) = service["spec"]["ports"]
    assert port["name"] == PORT_NAME
    (asked,) = profile["extenders"]
    assert asked["urlPrefix"] == f"https://{name}.{namespace}.svc:{port['port']}"
    assert [set(rule["verbs"]) for rule in written] == [{"create"}, {"get", "update", "delete"}]
    assert written[1]["resourceNames"] == [name]


def test_an_update_of_the_scheduler_takes_no_replica_before_another_is_ready() -> None:
    spec = only("Deployment", "fracgpu-scheduler")["spec"]
    budget = only("PodDisruptionBudget", "fracgpu-scheduler")["spec"]

    assert spec["strategy"]["type"] == "RollingUpdate"
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert budget["maxUnavailable"] < spec["replicas"]
    assert budget["selector"] == spec["selector"]


def test_no_role_may_do_everything() -> None:
    for role in of_kind("Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
