"""Faults of the roles, planted one by one: Deployments, replicas, and pods that do not start."""

from datetime import timedelta
from typing import Any

import pytest

from fracgpu.doctor.admission import BINDINGS, POLICIES
from fracgpu.doctor.facts import (
    AdmissionAnswer,
    CertificateFact,
    CertificatesFact,
    Facts,
    TrustFact,
    name_of,
)
from fracgpu.doctor.finding import Severity, Verdict
from tests.support.examined import (
    LEADER,
    NOON,
    Json,
    a_lease,
    a_role_pod,
    a_slice,
    found_by,
    healthy,
    profile,
    result_of,
    shipped,
)
from tests.support.gpu import a_gpu_pod

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


def with_profile(configuration: dict[str, Any]) -> Facts:
    return healthy(scheduler_configurations={"ConfigMap p, key profile.yaml": configuration})


def test_a_profile_without_the_extender_is_found() -> None:
    finding = found_by("scheduler-profile", with_profile({**profile(), "extenders": []}))

    assert "no extender for fracgpu.io/gpu-mem" in finding.seen
    assert "kubectl apply --server-side" in finding.cure


@pytest.mark.parametrize("percent", [None, 50, 0])
def test_a_profile_that_does_not_score_every_node_is_found(percent: int | None) -> None:
    changed = profile()
    changed["profiles"][0]["percentageOfNodesToScore"] = percent
    if percent is None:
        del changed["profiles"][0]["percentageOfNodesToScore"]

    finding = found_by("scheduler-profile", with_profile(changed))

    assert "percentageOfNodesToScore" in finding.seen
    assert "set it to 100" in finding.cure


def test_a_percentage_for_all_profiles_will_do() -> None:
    changed = profile()
    del changed["profiles"][0]["percentageOfNodesToScore"]
    changed["percentageOfNodesToScore"] = 100

    assert result_of("scheduler-profile", with_profile(changed)).verdict is Verdict.FINE


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("ignorable", True, "is ignorable"), ("bindVerb", "", "has no bindVerb")],
)
def test_an_extender_that_can_be_passed_is_found(key: str, value: object, words: str) -> None:
    changed = profile()
    changed["extenders"][0][key] = value

    assert words in found_by("scheduler-profile", with_profile(changed)).seen


def test_a_missing_profile_is_found_and_an_unseen_configuration_is_not_checked() -> None:
    changed = profile()
    changed["profiles"][0]["schedulerName"] = "another"

    assert (
        "no profile fracgpu-scheduler" in found_by("scheduler-profile", with_profile(changed)).seen
    )

    unseen = result_of("scheduler-profile", healthy(scheduler_configurations={}))
    assert unseen.verdict is Verdict.NOT_CHECKED


def test_a_waiting_pod_of_a_scheduler_that_asks_nobody_is_found() -> None:
    ours, other = a_gpu_pod("ours"), a_gpu_pod("other", schedulerName="default-scheduler")

    finding = found_by("scheduler-names", healthy(waiting=(ours, other)))

    assert "1 waiting pod with schedulerName default-scheduler" in finding.seen
    assert "default/other" in finding.seen
    assert "docs/webhook.md" in finding.cure
    assert result_of("scheduler-names", healthy(waiting=(ours,))).verdict is Verdict.FINE
    unseen = healthy(waiting=(other,), scheduler_configurations={})
    assert result_of("scheduler-names", unseen).verdict is Verdict.NOT_CHECKED


def test_an_extender_without_a_leader_is_found() -> None:
    rebalancer = a_lease("fracgpu-rebalancer", "r")
    for lease in ((), (a_lease("fracgpu-scheduler-extender", ""),)):
        finding = found_by("extender-leads", healthy(leases=(*lease, rebalancer)))

        assert "Lease fracgpu-scheduler-extender has no holder" in finding.seen
        assert "logs deployment/fracgpu-scheduler" in finding.cure


def test_a_leader_that_does_not_renew_is_found() -> None:
    stale = a_lease("fracgpu-scheduler-extender", LEADER, renewed=NOON - timedelta(minutes=5))

    finding = found_by("extender-leads", healthy(leases=(stale,)))

    assert f"holder {LEADER} has not renewed it since 2026-11-20 11:55:00 UTC" in finding.seen


def test_an_endpoint_slice_that_leads_to_another_is_found() -> None:
    webhook = a_slice("w", "10.1.0.3", service="fracgpu-webhook")
    for slice_, words in (
        (a_slice("fracgpu-scheduler-leader", "10.1.0.66"), "has 10.1.0.66, but the leader"),
        (a_slice("fracgpu-scheduler-leader"), "has no endpoint"),
        (a_slice("another", "10.1.0.7"), "is missing"),
    ):
        finding = found_by("extender-leads", healthy(slices=(webhook, slice_)))

        assert words in finding.seen
        assert "logs -l app.kubernetes.io/name=fracgpu-scheduler" in finding.cure


def test_a_rebalancer_that_nobody_leads_is_found() -> None:
    extender = a_lease("fracgpu-scheduler-extender", LEADER)

    assert "hot cards" in found_by("rebalancer-leads", healthy(leases=(extender,))).seen


@pytest.mark.parametrize("fact", ["mutating_webhooks", "validating_webhooks"])
def test_a_missing_webhook_configuration_is_found(fact: str) -> None:
    finding = found_by("webhook-registered", healthy(**{fact: ()}))

    assert "WebhookConfiguration fracgpu-webhook" in finding.seen
    assert "kubectl apply --server-side" in finding.cure


def test_a_webhook_that_may_be_passed_is_found() -> None:
    (configuration,) = shipped("MutatingWebhookConfiguration")
    configuration["webhooks"][0]["failurePolicy"] = "Ignore"
    facts = healthy(mutating_webhooks=(configuration,))

    assert "failurePolicy Ignore" in found_by("webhook-registered", facts).seen


def test_a_webhook_that_somebody_removed_is_found() -> None:
    (configuration,) = shipped("MutatingWebhookConfiguration")
    configuration["webhooks"] = configuration["webhooks"][1:]
    facts = healthy(mutating_webhooks=(configuration,))

    assert "no webhook pods.fracgpu.io" in found_by("webhook-registered", facts).seen


def test_a_bundle_that_does_not_match_the_certificate_is_found() -> None:
    good = CertificateFact(secret="s", not_after=NOON + timedelta(days=20))
    mistrust = TrustFact(webhook="fracgpu-webhook, pods.fracgpu.io", problem="has no bundle")
    facts = healthy(certificates=CertificatesFact(certificates=(good,), mistrust=(mistrust,)))

    finding = found_by("webhook-trust", facts)

    assert "pods.fracgpu.io: has no bundle" in finding.seen
    assert "logs deployment/fracgpu-certs" in finding.cure


@pytest.mark.parametrize(
    ("left", "problem", "severity", "words"),
    [
        (timedelta(days=-1), "expired at noon", Severity.ERROR, "expired at noon"),
        (timedelta(days=3), "", Severity.WARNING, "expires in 3 d"),
        (timedelta(hours=5), "", Severity.WARNING, "expires in 5 h"),
    ],
)
def test_a_certificate_that_has_expired_or_will_soon_is_found(
    left: timedelta, problem: str, severity: Severity, words: str
) -> None:
    row = CertificateFact(secret="fracgpu-webhook-tls", not_after=NOON + left, problem=problem)

    finding = found_by("certificates", healthy(certificates=CertificatesFact(certificates=(row,))))

    assert finding.severity is severity
    assert words in finding.seen
    assert finding.cure.startswith("fracgpu certs rotate")


def test_a_webhook_without_a_ready_endpoint_is_found() -> None:
    unready = a_slice("w", "10.1.0.3", service="fracgpu-webhook")
    unready["endpoints"][0]["conditions"]["ready"] = False
    leader = a_slice("fracgpu-scheduler-leader", "10.1.0.7")

    finding = found_by("webhook-endpoints", healthy(slices=(unready, leader)))

    assert "Service fracgpu-system/fracgpu-webhook has no ready endpoint" in finding.seen
    assert "kubectl -n fracgpu-system describe pods" in finding.cure


def test_a_webhook_that_cannot_be_reached_is_found() -> None:
    refused = "failed calling webhook: connection refused"
    answer = AdmissionAnswer(refused_by_webhook=False, message=refused)

    finding = found_by("webhook-answers", healthy(admission=answer))

    assert refused in finding.seen
    assert "NetworkPolicy" in finding.cure


def test_a_webhook_that_is_not_asked_is_found() -> None:
    answer = AdmissionAnswer(refused_by_webhook=False, message="")

    finding = found_by("webhook-answers", healthy(admission=answer))

    assert "did not ask FracGPU's webhook" in finding.seen
    assert "namespaceSelector" in finding.cure


def test_the_policies_that_are_looked_for_are_those_of_deploy() -> None:
    assert sorted(map(name_of, shipped("ValidatingAdmissionPolicy"))) == list(POLICIES)
    assert {body["spec"]["policyName"] for body in shipped("ValidatingAdmissionPolicyBinding")} == {
        *POLICIES
    }


def bound(name: str, **changed: object) -> tuple[Json, ...]:
    """Return the bindings as shipped, but for one."""
    bindings = shipped("ValidatingAdmissionPolicyBinding")
    for binding in bindings:
        if name_of(binding) == name:
            binding["spec"].update(changed)
    return bindings


def test_the_bindings_that_are_looked_for_are_those_of_deploy_and_what_they_do() -> None:
    assert {
        name_of(body): body["spec"]["validationActions"][0]
        for body in shipped("ValidatingAdmissionPolicyBinding")
    } == BINDINGS


def test_missing_policies_are_one_finding_and_missing_bindings_another() -> None:
    policies = shipped("ValidatingAdmissionPolicy")[2:]
    bindings = shipped("ValidatingAdmissionPolicyBinding")[3:]

    missing, unbound = result_of(
        "policies", healthy(policies=policies, policy_bindings=bindings)
    ).findings

    assert f"2 of {len(POLICIES)} ValidatingAdmissionPolicies are missing" in missing.seen
    assert f"3 of {len(BINDINGS)} ValidatingAdmissionPolicyBindings are missing" in unbound.seen


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("fracgpu-nodes", {"validationActions": ["Audit"]}, "are Audit; want Deny"),
        ("fracgpu-devices-warn", {"validationActions": ["Audit"]}, "are Audit; want Warn"),
        ("fracgpu-devices-deny", {"validationActions": ["Warn"]}, "are Warn; want Deny"),
        ("fracgpu-pods", {"matchResources": {"namespaceSelector": {}}}, "has matchResources"),
    ],
)
def test_a_binding_that_was_weakened_is_found(
    name: str, changed: dict[str, object], words: str
) -> None:
    finding = found_by("policies", healthy(policy_bindings=bound(name, **changed)))

    assert finding.seen.startswith(f"ValidatingAdmissionPolicyBinding {name}: ")
    assert words in finding.seen


def test_a_binding_that_denies_instead_of_warning_is_no_fault() -> None:
    denies = bound("fracgpu-devices", validationActions=["Deny", "Audit"])

    assert result_of("policies", healthy(policy_bindings=denies)).findings == ()


def test_a_policy_that_admits_what_it_cannot_evaluate_is_found() -> None:
    policies = shipped("ValidatingAdmissionPolicy")
    policies[0]["spec"]["failurePolicy"] = "Ignore"

    assert "failurePolicy is Ignore" in found_by("policies", healthy(policies=policies)).seen
