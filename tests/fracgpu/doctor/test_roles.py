"""Faults of the roles, planted one by one: Deployments, replicas, and pods that do not start."""

from datetime import timedelta
from typing import Any

import pytest

from fracgpu.doctor.admission import BINDINGS, POLICIES
from fracgpu.doctor.checkup import examine
from fracgpu.doctor.facts import (
    AdmissionAnswer,
    CertificateFact,
    CertificatesFact,
    Facts,
    TrustFact,
    Unread,
    name_of,
)
from fracgpu.doctor.finding import Severity, Verdict
from fracgpu.doctor.ranking import rank
from tests.support.examined import (
    LEADER,
    NOON,
    Json,
    a_lease,
    a_role_pod,
    a_slice,
    found_by,
    healthy,
    pending,
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


def pods(*bodies: Json, **facts: Any) -> Facts:
    return healthy(pods=bodies, **facts)


def with_profile(configuration: dict[str, Any]) -> Facts:
    return healthy(scheduler_configurations={"ConfigMap p, key profile.yaml": configuration})


def with_extender(**changed: object) -> Facts:
    (extender,) = profile()["extenders"]
    return with_profile({**profile(), "extenders": [{**extender, **changed}]})


def system(*, labels: dict[str, str] | None = None, remaining: str = "", **metadata: str) -> Json:
    """Return the system namespace."""
    (body,) = shipped("Namespace")
    body["metadata"] |= metadata
    body["metadata"]["labels"] = labels or {}
    body["status"] = {
        "conditions": [
            {"type": "NamespaceContentRemaining", "status": "True", "message": remaining},
            {"type": "NamespaceFinalizersRemaining", "status": "False", "message": "none"},
        ]
    }
    return body


GOING = system(deletionTimestamp="2026-11-20T11:00:00Z", remaining="remaining: configmaps. has 1")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
QUOTA = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: small"}
REFUSED = {"status": {"availableReplicas": 0, "conditions": [QUOTA]}}
STALE = a_lease("fracgpu-scheduler-extender", LEADER, renewed=NOON - timedelta(minutes=5))
GOOD = CertificateFact(secret="s", not_after=NOON + timedelta(days=20))
NO_BUNDLE = TrustFact(webhook="fracgpu-webhook, pods.fracgpu.io", problem="has no bundle")
UNREACHED = "failed calling webhook: connection refused"

# Check, facts, words of what was observed and of its cure.
FAULTS = {
    "nothing installed": (
        "installed",
        healthy(deployments=(), daemon_sets=(), mutating_webhooks=(), definitions=()),
        (
            "FracGPU is not installed",
            "cure: docs/install.md; or name the namespace where it runs with --system-namespace",
        ),
    ),
    "a part of an earlier installation": (
        "installed",
        healthy(deployments=(), daemon_sets=(), mutating_webhooks=()),
        ("FracGPU is not installed", "docs/install.md, and before it fracgpu uninstall --yes for"),
    ),
    "a namespace that was deleted": (
        "installed",
        healthy(deployments=(), daemon_sets=()),
        (
            "FracGPU was removed in part: namespace fracgpu-system has no Deployment of it",
            "cure: kubectl apply --server-side --force-conflicts -k FOLDER, with the values or",
            "or remove the rest: fracgpu uninstall --yes",
        ),
    ),
    "a namespace that is being deleted": (
        "installed",
        healthy(namespace=(GOING,)),
        (
            "error: namespace fracgpu-system is being deleted, and nothing starts in it any more: "
            "remaining: configmaps. has 1; cure: kubectl wait --for=delete namespace fracgpu-",
            "then kubectl apply --server-side --force-conflicts -k FOLDER, with the values or",
            "or remove the rest: fracgpu uninstall --yes",
        ),
    ),
    "a namespace that refuses privileged pods": (
        "pods",
        healthy(namespace=(system(labels=RESTRICTED),)),
        (
            "error: namespace fracgpu-system enforces Pod Security restricted, so no pod of ",
            "kubectl label namespace fracgpu-system pod-security.kubernetes.io/enforce=privileged",
        ),
    ),
    "another namespace": (
        "installed",
        healthy(deployments=(), daemon_sets=(), system_namespace="wrong"),
        ("fracgpu doctor --system-namespace fracgpu-system",),
    ),
    "a role that was scaled to nothing": (
        "replicas",
        healthy(deployments=deployments(scheduler={"spec": {"replicas": 0}})),
        (
            "error: Deployment fracgpu-scheduler is scaled to 0 replicas",
            "kubectl -n fracgpu-system scale deployment fracgpu-scheduler --replicas=2",
        ),
    ),
    "no DaemonSet": (
        "replicas",
        healthy(daemon_sets=()),
        ("no DaemonSet fracgpu-deviceplugin",),
    ),
    "pods that the API server refuses": (
        "replicas",
        healthy(deployments=deployments(webhook=REFUSED)),
        ("exceeded quota: small",),
    ),
    "no installation, by who may not read namespaces": (
        "installed",
        healthy(namespace=Unread("403"), deployments=(), daemon_sets=(), mutating_webhooks=()),
        ("FracGPU is not installed",),
    ),
    "an image that cannot be pulled, by who may not read namespaces": (
        "pods",
        pods(waiting("fracgpu-webhook", "ImagePullBackOff"), namespace=Unread("403")),
        ("pod fracgpu-webhook",),
    ),
    "one image of all roles that cannot be pulled": (
        "pods",
        pods(*(waiting(app, "ImagePullBackOff", "no such host") for app in APPS)),
        (
            "error: ",
            "image registry/fracgpu:9 cannot be pulled: no such host; cure: push the image",
        ),
    ),
    "a pod that crashes": (
        "pods",
        pods(
            waiting(
                "fracgpu-webhook", "CrashLoopBackOff", "back-off 5m0s restarting",
                lastState={"terminated": {"exitCode": 2, "reason": "Error"}},
            )
        ),
        (
            "pod fracgpu-webhook-1 does not start: CrashLoopBackOff: Error; its last exit code was",
            "logs fracgpu-webhook-1 --all-containers --previous",
        ),
    ),
    "a pod that lacks a Secret": (
        "pods",
        pods(waiting("fracgpu-webhook", "CreateContainerConfigError", 'secret "x" not found')),
        (
            'CreateContainerConfigError: secret "x" not found',
            "describe pod fracgpu-webhook-1",
        ),
    ),
    "a profile without the extender": (
        "scheduler-profile",
        with_profile({**profile(), "extenders": []}),
        ("no extender for fracgpu.io/gpu-mem", "kubectl apply --server-side"),
    ),
    "an extender that may fail": (
        "scheduler-profile",
        with_extender(ignorable=True),
        ("is ignorable",),
    ),
    "an extender that binds nothing": (
        "scheduler-profile",
        with_extender(bindVerb=""),
        ("has no bindVerb",),
    ),
    "a leader that does not renew": (
        "extender-leads",
        healthy(leases=(STALE,)),
        (f"holder {LEADER} has not renewed it since 2026-11-20 11:55:00 UTC",),
    ),
    "a rebalancer that nobody leads": (
        "rebalancer-leads",
        healthy(leases=(a_lease("fracgpu-scheduler-extender", LEADER),)),
        ("hot cards",),
    ),
    "no mutating webhook": (
        "webhook-registered",
        healthy(mutating_webhooks=()),
        ("WebhookConfiguration fracgpu-webhook", "kubectl apply --server-side"),
    ),
    "no validating webhook": (
        "webhook-registered",
        healthy(validating_webhooks=()),
        ("WebhookConfiguration fracgpu-webhook", "kubectl apply --server-side"),
    ),
    "a bundle that does not match the certificate": (
        "webhook-trust",
        healthy(certificates=CertificatesFact(certificates=(GOOD,), mistrust=(NO_BUNDLE,))),
        ("pods.fracgpu.io: has no bundle", "logs deployment/fracgpu-certs"),
    ),
    "a webhook that cannot be reached": (
        "webhook-answers",
        healthy(admission=AdmissionAnswer(refused_by_webhook=False, message=UNREACHED)),
        (UNREACHED, "NetworkPolicy"),
    ),
    "a webhook that is not asked": (
        "webhook-answers",
        healthy(admission=AdmissionAnswer(refused_by_webhook=False, message="")),
        ("did not ask FracGPU's webhook", "namespaceSelector"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("check", "facts", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_of_a_role_is_found_with_its_cure(
    check: str, facts: Facts, words: tuple[str, ...]
) -> None:
    finding = found_by(check, facts)

    said = f"{finding.severity.value}: {finding.observed}; cure: {finding.cure}"
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize("check", ["installed", "pods"])
def test_a_namespace_that_may_not_be_read_is_not_called_fine(check: str) -> None:
    result = result_of(check, healthy(namespace=Unread("403")))

    assert (result.verdict, result.unknown) == (Verdict.NOT_CHECKED, "403")


def test_what_a_namespace_that_is_being_deleted_has_lost_is_listed_below_it() -> None:
    gone = healthy(
        namespace=(GOING,),
        **dict.fromkeys(
            ("deployments", "daemon_sets", "slices", "leases", "config_maps", "pods"), ()
        ),
    )

    (first, *others) = rank(examine(gone))

    assert first.finding.observed.startswith("namespace fracgpu-system is being deleted")
    assert {"replicas", "webhook-endpoints", "extender-leads"} <= {
        each.check.name for each in first.consequences
    }
    assert others == []


def test_a_node_without_an_agent_is_listed_below_the_pod_security_that_refuses_it() -> None:
    refused = healthy(namespace=(system(labels=RESTRICTED),), pods=())

    (cause,) = (each for each in rank(examine(refused)) if each.check.name == "pods")

    assert "agents" in {each.check.name for each in cause.consequences}


@pytest.mark.parametrize("labels", [{}, {"pod-security.kubernetes.io/enforce": "privileged"}])
def test_a_namespace_that_admits_privileged_pods_is_fine(labels: dict[str, str]) -> None:
    assert result_of("pods", healthy(namespace=(system(labels=labels),))).verdict is Verdict.FINE


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
    assert "Deployment fracgpu-webhook has 1 of 2 replicas" in some.observed
    assert "there is no Deployment fracgpu-webhook" in gone.observed


def test_a_pod_that_is_not_scheduled_is_told_with_the_schedulers_reason() -> None:
    body = a_role_pod("w-1", "fracgpu-webhook", ready=False)
    body["status"]["conditions"].append(
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
         "message": "0/3 nodes are available: 3 Insufficient cpu."}
    )  # fmt: skip

    assert "Unschedulable: 0/3 nodes are available" in found_by("pods", pods(body)).observed


def test_a_pod_beside_one_that_runs_is_a_warning_and_one_that_only_starts_is_none() -> None:
    runs = a_role_pod("fracgpu-webhook-2", "fracgpu-webhook")

    broken = found_by("pods", pods(runs, waiting("fracgpu-webhook", "CrashLoopBackOff")))

    assert broken.severity is Severity.WARNING
    starting = waiting("fracgpu-webhook", "ContainerCreating")
    leaving = waiting("fracgpu-webhook", "CrashLoopBackOff")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    assert result_of("pods", pods(starting, leaving)).verdict is Verdict.FINE


@pytest.mark.parametrize("percent", [None, 50, 0])
def test_a_profile_that_does_not_score_every_node_is_found(percent: int | None) -> None:
    changed = profile()
    changed["profiles"][0]["percentageOfNodesToScore"] = percent
    if percent is None:
        del changed["profiles"][0]["percentageOfNodesToScore"]

    finding = found_by("scheduler-profile", with_profile(changed))

    assert "percentageOfNodesToScore" in finding.observed
    assert "set it to 100" in finding.cure


def test_a_percentage_for_all_profiles_will_do() -> None:
    changed = profile()
    del changed["profiles"][0]["percentageOfNodesToScore"]
    changed["percentageOfNodesToScore"] = 100

    assert result_of("scheduler-profile", with_profile(changed)).verdict is Verdict.FINE


def test_a_missing_profile_is_found_and_an_unseen_configuration_is_not_checked() -> None:
    changed = profile()
    changed["profiles"][0]["schedulerName"] = "another"

    assert (
        "no profile fracgpu-scheduler"
        in found_by("scheduler-profile", with_profile(changed)).observed
    )

    unseen = result_of("scheduler-profile", healthy(scheduler_configurations={}))
    assert unseen.verdict is Verdict.NOT_CHECKED


def test_a_waiting_pod_of_a_scheduler_that_asks_nobody_is_found() -> None:
    ours, other = a_gpu_pod("ours"), a_gpu_pod("other", schedulerName="default-scheduler")

    finding = found_by("scheduler-names", healthy(requesting=pending(ours, other)))

    assert "1 waiting pod with schedulerName default-scheduler" in finding.observed
    assert "default/other" in finding.observed
    assert "docs/webhook.md" in finding.cure
    assert result_of("scheduler-names", healthy(requesting=pending(ours))).verdict is Verdict.FINE
    unseen = healthy(requesting=pending(other), scheduler_configurations={})
    assert result_of("scheduler-names", unseen).verdict is Verdict.NOT_CHECKED


def test_an_extender_without_a_leader_is_found() -> None:
    rebalancer = a_lease("fracgpu-rebalancer", "r")
    for lease in ((), (a_lease("fracgpu-scheduler-extender", ""),)):
        finding = found_by("extender-leads", healthy(leases=(*lease, rebalancer)))

        assert "Lease fracgpu-scheduler-extender has no holder" in finding.observed
        assert "logs deployment/fracgpu-scheduler" in finding.cure


def test_an_endpoint_slice_that_leads_to_another_is_found() -> None:
    webhook = a_slice("w", "10.1.0.3", service="fracgpu-webhook")
    for slice_, words in (
        (a_slice("fracgpu-scheduler-leader", "10.1.0.66"), "has 10.1.0.66, but the leader"),
        (a_slice("fracgpu-scheduler-leader"), "has no endpoint"),
        (a_slice("another", "10.1.0.7"), "is missing"),
    ):
        finding = found_by("extender-leads", healthy(slices=(webhook, slice_)))

        assert words in finding.observed
        assert "logs -l app.kubernetes.io/name=fracgpu-scheduler" in finding.cure


def test_a_webhook_that_may_be_passed_is_found() -> None:
    (configuration,) = shipped("MutatingWebhookConfiguration")
    configuration["webhooks"][0]["failurePolicy"] = "Ignore"
    facts = healthy(mutating_webhooks=(configuration,))

    assert "failurePolicy Ignore" in found_by("webhook-registered", facts).observed


@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        ("pods.fracgpu.io", "cannot start"),
        ("dialects.pods.fracgpu.io", "cannot start"),
        ("templates.fracgpu.io", "without their grant"),
        ("other.templates.fracgpu.io", "without their grant"),
    ],
)
def test_a_webhook_that_somebody_removed_is_found(name: str, consequence: str) -> None:
    (configuration,) = shipped("MutatingWebhookConfiguration")
    left = [each for each in configuration["webhooks"] if each["name"] != name]
    facts = healthy(mutating_webhooks=({**configuration, "webhooks": left},))

    observed = found_by("webhook-registered", facts).observed
    assert f"no webhook {name}: " in observed
    assert consequence in observed


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
    assert words in finding.observed
    assert finding.cure.startswith("fracgpu certs rotate")


def test_a_webhook_without_a_ready_endpoint_is_found() -> None:
    unready = a_slice("w", "10.1.0.3", service="fracgpu-webhook")
    unready["endpoints"][0]["conditions"]["ready"] = False
    leader = a_slice("fracgpu-scheduler-leader", "10.1.0.7")

    finding = found_by("webhook-endpoints", healthy(slices=(unready, leader)))

    assert "Service fracgpu-system/fracgpu-webhook has no ready endpoint" in finding.observed
    assert "kubectl -n fracgpu-system describe pods" in finding.cure


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

    assert f"2 of {len(POLICIES)} ValidatingAdmissionPolicies are missing" in missing.observed
    assert f"3 of {len(BINDINGS)} ValidatingAdmissionPolicyBindings are missing" in unbound.observed


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

    assert finding.observed.startswith(f"ValidatingAdmissionPolicyBinding {name}: ")
    assert words in finding.observed


def test_a_binding_that_denies_instead_of_warning_is_no_fault() -> None:
    denies = bound("fracgpu-devices", validationActions=["Deny", "Audit"])

    assert result_of("policies", healthy(policy_bindings=denies)).findings == ()


def test_a_policy_that_admits_what_it_cannot_evaluate_is_found() -> None:
    policies = shipped("ValidatingAdmissionPolicy")
    policies[0]["spec"]["failurePolicy"] = "Ignore"

    assert "failurePolicy is Ignore" in found_by("policies", healthy(policies=policies)).observed
