"""deploy/networkpolicies.yaml: every pod of ours is closed except for the callers that need it."""

from typing import Any

import pytest

from certs.settings import CertsSettings
from tests.deploy.test_certificates import built
from tests.support.policies import DEPLOY
from tests.support.yaml_files import read_documents

Json = dict[str, Any]

POLICIES: list[Json] = read_documents((DEPLOY / "networkpolicies.yaml").read_text())
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def pods() -> list[Json]:
    kinds = ("Deployment", "DaemonSet")
    return [
        manifest["spec"]["template"] for manifest in built("deploy") if manifest["kind"] in kinds
    ]


def named(name: str) -> Json:
    (pod,) = [pod for pod in pods() if pod["metadata"]["labels"]["app.kubernetes.io/name"] == name]
    return pod


def ports_of(pod: Json) -> list[Json]:
    return [port for each in pod["spec"]["containers"] for port in each.get("ports", ())]


def callers(pod: Json, port: str, *, folder: str = "deploy") -> list[Any]:
    """Return who may reach a port of a pod; None stands for everyone."""
    found: list[Any] = []
    for policy in [manifest for manifest in built(folder) if manifest["kind"] == "NetworkPolicy"]:
        wanted = policy["spec"]["podSelector"].get("matchLabels", {})
        if wanted.items() <= pod["metadata"]["labels"].items():
            for rule in policy["spec"]["ingress"]:
                if any(allowed["port"] == port for allowed in rule["ports"]):
                    found += rule.get("from", [None])
    return found


def test_every_pod_of_ours_is_shut_but_for_what_a_rule_opens() -> None:
    (shut,) = [each for each in POLICIES if each["metadata"]["name"] == "fracgpu-telemetry"]
    selected = shut["spec"]["podSelector"]["matchLabels"]

    # Not by name: the namespace may have pods of others.
    assert list(selected) == ["app.kubernetes.io/part-of"]
    for pod in pods():
        assert selected.items() <= pod["metadata"]["labels"].items()
    assert {tuple(policy["spec"]["policyTypes"]) for policy in POLICIES} == {("Ingress",)}
    assert {policy["metadata"]["namespace"] for policy in POLICIES} == {"fracgpu-system"}


def test_prometheus_alone_reaches_the_telemetry_of_every_role() -> None:
    found = {
        pod["metadata"]["labels"]["app.kubernetes.io/name"]: (
            "telemetry" in {port["name"] for port in ports_of(pod)},
            callers(pod, "telemetry"),
        )
        for pod in pods()
    }

    assert found
    assert found == dict.fromkeys(found, (True, [MONITORING]))


def test_the_webhook_is_open_to_the_api_server_wherever_it_calls_from() -> None:
    assert callers(named("fracgpu-webhook"), "https") == [None]


def test_the_extender_is_open_to_the_kube_schedulers_beside_it_and_the_certificates_role() -> None:
    scheduler = named("fracgpu-scheduler")

    assert callers(scheduler, "extender") == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": name}}}
        for name in ("fracgpu-scheduler", "fracgpu-certs")
    ]


@pytest.mark.parametrize("service", CertsSettings().services)
def test_the_certificates_role_reaches_each_replica_that_it_looks_at(service: str) -> None:
    """Otherwise no authority is ever retired: see `certs.trust.served_certificates`."""
    labels = named("fracgpu-certs")["metadata"]["labels"]
    (found,) = [
        manifest
        for manifest in built("deploy")
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Service", service)
    ]
    ports = [port["targetPort"] for port in found["spec"]["ports"]]

    for port in ports:
        assert any(
            who is None
            or who.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= labels.items()
            for who in callers(named(service), port)
        )


def test_the_clusters_own_kube_scheduler_reaches_the_extender_from_its_nodes_network() -> None:
    prepared = "overlays/cluster-scheduler/prepare"

    assert None in callers(named("fracgpu-scheduler"), "extender", folder=prepared)


def test_the_page_is_on_loopback_alone_and_has_no_way_in_from_the_network() -> None:
    scheduler = named("fracgpu-scheduler")
    (flag,) = (
        word
        for container in scheduler["spec"]["containers"]
        for word in container.get("args", ())
        if word.startswith("--page-port=")
    )
    port = int(flag.partition("=")[2])
    services = [manifest for manifest in built("deploy") if manifest["kind"] == "Service"]
    served = [
        each[key]
        for service in services
        for each in service["spec"]["ports"]
        for key in ("port", "targetPort")
    ]

    assert not scheduler["spec"].get("hostNetwork")
    assert port not in [each["containerPort"] for each in ports_of(scheduler)]
    assert port not in served
    assert f" {port}\n" in (DEPLOY.parent / "docs" / "page.md").read_text()
