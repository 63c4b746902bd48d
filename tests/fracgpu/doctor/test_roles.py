"""Faults of the roles, planted one by one: Deployments, replicas, and pods that do not start."""

from typing import Any

import pytest

from fracgpu.doctor.facts import Facts
from fracgpu.doctor.finding import Severity, Verdict
from tests.support.examined import Json, a_role_pod, found_by, healthy, result_of, shipped

APPS = ("fracgpu-webhook", "fracgpu-scheduler", "fracgpu-rebalancer", "fracgpu-deviceplugin")


def deployments(**changed: Json) -> tuple[Json, ...]:
    """Return the Deployments as shipped and available, but for the statuses or specs *changed*."""
    found = []
    for body in shipped("Deployment"):
        name = body["metadata"]["name"].removeprefix("fracgpu-")
        body["status"] = {"availableReplicas": body["spec"].get("replicas", 1)}
        for part, values in changed.get(name, {}).items():
            body[part] = body[part] | values
        found.append(body)
    return tuple(found)


def waits(app: str, **container: Any) -> Json:
    """Return a pod whose container waits."""
    pod = a_role_pod(f"{app}-1", app, ready=False)
    pod["status"]["containerStatuses"] = [{"image": "registry/fracgpu:9", **container}]
    return pod


def waiting(app: str, reason: str, message: str = "", **more: Any) -> Json:
    return waits(app, state={"waiting": {"reason": reason, "message": message}}, **more)


def pods(*bodies: Json) -> Facts:
    return healthy(pods=bodies)


def test_an_empty_cluster_is_told_that_nothing_is_installed() -> None:
    facts = healthy(deployments=(), daemon_sets=(), mutating_webhooks=())

    finding = found_by("installed", facts)

    assert "FracGPU is not installed" in finding.seen
    assert "--system-namespace" in finding.cure


def test_another_namespace_is_named_where_the_webhook_runs_there() -> None:
    facts = healthy(deployments=(), daemon_sets=(), system_namespace="wrong")

    assert found_by("installed", facts).cure == "fracgpu doctor --system-namespace fracgpu-system"


def test_roles_that_run_outside_the_cluster_are_not_looked_for_in_it() -> None:
    webhooks = shipped("MutatingWebhookConfiguration")
    for each in webhooks[0]["webhooks"]:
        each["clientConfig"] = {"url": "https://127.0.0.1:1/mutate"}
    facts = healthy(deployments=(), daemon_sets=(), mutating_webhooks=webhooks, pods=(), slices=())

    for name in ("installed", "replicas", "agents", "webhook-endpoints", "extender-leads"):
        assert result_of(name, facts).verdict is Verdict.NOT_CHECKED
        assert "https://127.0.0.1:1/mutate" in result_of(name, facts).unknown


def test_replicas_that_are_missing_are_found() -> None:
    some = found_by(
        "replicas", healthy(deployments=deployments(webhook={"status": {"availableReplicas": 1}}))
    )
    none = found_by(
        "replicas", healthy(deployments=deployments(webhook={"status": {"availableReplicas": 0}}))
    )
    gone = found_by("replicas", healthy(deployments=deployments()[:-1]))

    assert (some.severity, none.severity) == (Severity.WARNING, Severity.ERROR)
    assert "Deployment fracgpu-webhook has 1 of 2 replicas" in some.seen
    assert "there is no Deployment fracgpu-webhook" in gone.seen


def test_a_role_that_was_scaled_to_nothing_is_found() -> None:
    facts = healthy(deployments=deployments(scheduler={"spec": {"replicas": 0}}))

    finding = found_by("replicas", facts)

    assert finding.severity is Severity.ERROR
    assert finding.seen == "Deployment fracgpu-scheduler is scaled to 0 replicas"
    assert finding.cure == (
        "kubectl -n fracgpu-system scale deployment fracgpu-scheduler --replicas=2"
    )


def test_a_daemon_set_that_is_missing_is_found() -> None:
    assert "no DaemonSet fracgpu-deviceplugin" in found_by("replicas", healthy(daemon_sets=())).seen


def test_pods_that_the_api_server_refuses_are_told_with_its_reason() -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: small"}
    status = {"availableReplicas": 0, "conditions": [failed]}

    facts = healthy(deployments=deployments(webhook={"status": status}))

    assert found_by("replicas", facts).seen.endswith("exceeded quota: small")


def test_an_image_that_cannot_be_pulled_is_one_finding_for_the_pods_of_all_roles() -> None:
    bodies = [waiting(app, "ImagePullBackOff", "no such host") for app in APPS]

    finding = found_by("pods", pods(*bodies))

    assert finding.severity is Severity.ERROR
    assert "image registry/fracgpu:9 cannot be pulled: no such host" in finding.seen
    assert finding.cure.startswith("push the image")


@pytest.mark.parametrize(
    ("body", "words", "cure"),
    [
        (
            waiting(
                "fracgpu-webhook", "CrashLoopBackOff", "back-off 5m0s restarting",
                lastState={"terminated": {"exitCode": 2, "reason": "Error"}},
            ),
            "pod fracgpu-webhook-1 does not start: CrashLoopBackOff: Error; its last exit code was",
            "logs fracgpu-webhook-1 --all-containers --previous",
        ),
        (
            waiting("fracgpu-webhook", "CreateContainerConfigError", 'secret "x" not found'),
            'CreateContainerConfigError: secret "x" not found',
            "describe pod fracgpu-webhook-1",
        ),
    ],
)  # fmt: skip
def test_a_pod_that_does_not_start_is_told_with_kubelets_reason(
    body: Json, words: str, cure: str
) -> None:
    finding = found_by("pods", pods(body))

    assert words in finding.seen
    assert cure in finding.cure


def test_a_pod_that_is_not_scheduled_is_told_with_the_schedulers_reason() -> None:
    body = a_role_pod("w-1", "fracgpu-webhook", ready=False)
    body["status"]["conditions"].append(
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
         "message": "0/3 nodes are available: 3 Insufficient cpu."}
    )  # fmt: skip

    assert "Unschedulable: 0/3 nodes are available" in found_by("pods", pods(body)).seen


def test_a_pod_beside_one_that_runs_is_a_warning_and_one_that_only_starts_is_none() -> None:
    runs = a_role_pod("fracgpu-webhook-2", "fracgpu-webhook")

    broken = found_by("pods", pods(runs, waiting("fracgpu-webhook", "CrashLoopBackOff")))

    assert broken.severity is Severity.WARNING
    starting = waiting("fracgpu-webhook", "ContainerCreating")
    leaving = waiting("fracgpu-webhook", "CrashLoopBackOff")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    assert result_of("pods", pods(starting, leaving)).verdict is Verdict.FINE
