"""Faults of versions and clocks, planted one by one."""

from datetime import timedelta

import pytest

from fracgpu.doctor.facts import Unread
from fracgpu.doctor.finding import Severity, Verdict
from tests.support.examined import (
    LEADER,
    NODE,
    a_lease,
    a_node,
    a_role_pod,
    found_by,
    healthy,
    result_of,
    shipped,
)


@pytest.mark.parametrize(
    ("version", "severity"),
    [("v1.29.9", Severity.ERROR), ("v1.37.0", Severity.WARNING)],
)
def test_a_kubernetes_that_was_not_tested_is_found(version: str, severity: Severity) -> None:
    (finding, *_) = result_of("kubernetes", healthy(server_version=version)).findings

    assert finding.severity is severity
    assert "1.30 to 1.36" in finding.observed
    assert finding.cure


@pytest.mark.parametrize("version", ["v1.30.0", "v1.33.4-eks-1a2b", "v1.36.2+k3s1"])
def test_a_tested_kubernetes_is_fine(version: str) -> None:
    node = a_node()
    node["status"]["nodeInfo"]["kubeletVersion"] = version

    facts = healthy(server_version=version, nodes=(node,))

    assert result_of("kubernetes", facts).verdict is Verdict.FINE


def test_a_version_that_cannot_be_read_is_not_checked() -> None:
    assert result_of("kubernetes", healthy(server_version="main")).verdict is Verdict.NOT_CHECKED


@pytest.mark.parametrize(("kubelet", "is_found"), [("v1.32.9", True), ("v1.33.0", False)])
def test_a_kubelet_that_is_too_old_is_found(kubelet: str, *, is_found: bool) -> None:
    node = a_node()
    node["status"]["nodeInfo"]["kubeletVersion"] = kubelet

    assert bool(result_of("kubernetes", healthy(nodes=(node,))).findings) is is_found


@pytest.mark.parametrize(("version", "is_found"), [("v1.35.4", True), ("v1.36.0", False)])
def test_what_is_set_up_for_a_later_kubernetes_is_found(version: str, *, is_found: bool) -> None:
    sets = [each for each in shipped("DaemonSet") if each["metadata"]["name"].endswith("plugin")]
    on = {"name": "FRACGPU_DEVICEPLUGIN_READ_PODS_AS_NODE", "value": "true"}
    sets[0]["spec"]["template"]["spec"]["containers"][0]["env"].append(on)

    result = result_of("features", healthy(server_version=version, daemon_sets=tuple(sets)))

    assert bool(result.findings) is is_found
    for finding in result.findings:
        assert "deviceplugin.readAsNode" in finding.observed
        assert "needs Kubernetes 1.36" in finding.observed


def test_a_kube_scheduler_that_does_not_fit_the_server_is_found() -> None:
    newer = found_by("kube-scheduler", healthy(server_version="v1.35.1"))

    assert "newer than the API server" in newer.observed
    assert "helm upgrade" in newer.cure


def test_roles_of_different_versions_are_found() -> None:
    deployments = shipped("Deployment")
    webhook = next(b for b in deployments if b["metadata"]["name"] == "fracgpu-webhook")
    webhook["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror:5000/fracgpu:0.0.9"

    finding = found_by("roles", healthy(deployments=deployments))

    assert "fracgpu-webhook is of version 0.0.9, the others of 0.1.0" in finding.observed
    assert "helm upgrade" in finding.cure


def test_a_program_of_another_version_than_the_roles_is_found() -> None:
    finding = found_by("roles", healthy(own_version="0.2.0"))

    assert "this program is of version 0.2.0, FracGPU in the cluster of 0.1.0" in finding.observed


def test_a_pod_that_was_not_replaced_is_found() -> None:
    old = a_role_pod(LEADER, "fracgpu-scheduler")
    old["spec"]["containers"][0]["image"] = "fracgpu:0.0.8"

    finding = found_by("roles", healthy(pods=(old,)))

    assert f"pod {LEADER} still runs version 0.0.8" in finding.observed
    assert "rollout status" in finding.cure


def test_pods_that_were_not_replaced_are_one_finding_without_those_that_are_going() -> None:
    pods = [a_role_pod(f"fracgpu-webhook-{number}", "fracgpu-webhook") for number in range(3)]
    for pod in pods:
        pod["spec"]["containers"][0]["image"] = "fracgpu:0.0.8"
    pods[2]["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"

    finding = found_by("roles", healthy(pods=tuple(pods)))

    assert finding.observed == "pods fracgpu-webhook-0, fracgpu-webhook-1 still run version 0.0.8"


def test_a_tag_that_begins_with_v_is_the_same_version() -> None:
    workloads = {kind: shipped(kind) for kind in ("Deployment", "DaemonSet")}
    for body in (*workloads["Deployment"], *workloads["DaemonSet"]):
        for container in body["spec"]["template"]["spec"]["containers"]:
            container["image"] = container["image"].replace("fracgpu:0.1.0", "fracgpu:v0.1.0")

    result = result_of(
        "roles",
        healthy(deployments=workloads["Deployment"], daemon_sets=workloads["DaemonSet"], pods=()),
    )

    assert result.verdict is Verdict.FINE


def test_a_definition_that_is_missing_or_serves_another_version_is_found() -> None:
    missing = found_by("definition", healthy(definitions=()))
    (moves,) = shipped("CustomResourceDefinition")
    moves["spec"]["versions"][0]["name"] = "v1alpha9"
    other = found_by("definition", healthy(definitions=(moves,)))

    assert "there is no CustomResourceDefinition moves.fracgpu.io" in missing.observed
    assert "serves v1alpha9; want v1alpha1" in other.observed
    assert (
        missing.cure
        == other.cure
        == ("kubectl apply --server-side --force-conflicts -k FOLDER (docs/install.md)")
    )


@pytest.mark.parametrize(
    ("ahead_s", "severity", "words"),
    [
        (45, Severity.WARNING, "node gpu-1 is 45 s ahead of the API server's"),
        (-400, Severity.ERROR, "node gpu-1 is 400 s behind the API server's"),
    ],
)
def test_a_node_whose_clock_differs_is_found(ahead_s: int, severity: Severity, words: str) -> None:
    lease = a_lease(NODE, NODE, namespace="kube-node-lease", ahead=timedelta(seconds=ahead_s))

    finding = found_by("clocks", healthy(node_leases=(lease,)))

    assert (finding.severity, words in finding.observed) == (severity, True)
    assert "timedatectl status" in finding.cure


def test_a_lease_that_does_not_say_when_it_was_written_is_not_checked() -> None:
    lease = a_lease(NODE, NODE, namespace="kube-node-lease")
    del lease["metadata"]["managedFields"]

    assert result_of("clocks", healthy(node_leases=(lease,))).verdict is Verdict.NOT_CHECKED


@pytest.mark.parametrize(
    ("ahead_s", "words"), [(600, "600 s ahead of the API server's"), (-31, "31 s behind the API")]
)
def test_the_clock_of_the_machine_that_asks_is_named_itself(ahead_s: int, words: str) -> None:
    finding = found_by("clocks", healthy(caller_ahead=timedelta(seconds=ahead_s)))

    assert finding.severity is Severity.WARNING
    assert "the clock of the machine that runs this command is " in finding.observed
    assert words in finding.observed
    assert "on this machine" in finding.cure


def test_a_clock_that_could_not_be_compared_is_not_checked() -> None:
    facts = healthy(caller_ahead=Unread("no header Date"))

    assert result_of("clocks", facts).verdict is Verdict.NOT_CHECKED
