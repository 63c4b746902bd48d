"""Faults of admission, planted one by one."""

from datetime import timedelta

import pytest

from fracgpu.doctor.admission import BINDINGS, POLICIES
from fracgpu.doctor.facts import (
    AdmissionAnswer,
    CertificateFact,
    CertificatesFact,
    TrustFact,
    name_of,
)
from fracgpu.doctor.finding import Severity
from tests.support.examined import (
    NOON,
    Json,
    a_slice,
    found_by,
    healthy,
    result_of,
    shipped,
)


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
