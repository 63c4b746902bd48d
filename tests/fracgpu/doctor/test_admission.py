"""Faults of admission, planted one by one."""

from datetime import timedelta

import pytest

from fracgpu.doctor.admission import POLICIES
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
    assert "helm upgrade" in finding.cure


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

    assert "no webhook of FracGPU was asked" in finding.seen
    assert "namespaceSelector" in finding.cure


def test_the_policies_that_are_looked_for_are_those_of_deploy() -> None:
    assert sorted(map(name_of, shipped("ValidatingAdmissionPolicy"))) == list(POLICIES)
    assert {body["spec"]["policyName"] for body in shipped("ValidatingAdmissionPolicyBinding")} == {
        *POLICIES
    }


def test_a_missing_policy_or_binding_is_found() -> None:
    policies = [b for b in shipped("ValidatingAdmissionPolicy") if name_of(b) != "fracgpu-pods"]
    bindings = [
        b for b in shipped("ValidatingAdmissionPolicyBinding") if name_of(b) != "fracgpu-bindings"
    ]
    for binding in bindings:
        if name_of(binding) == "fracgpu-nodes":
            binding["spec"]["validationActions"] = ["Audit"]
    facts = healthy(policies=tuple(policies), policy_bindings=tuple(bindings))

    seen = [finding.seen for finding in result_of("policies", facts).findings]

    assert len(seen) == 3
    assert any("fracgpu-pods is missing" in text for text in seen)
    assert any("fracgpu-bindings has no binding" in text for text in seen)
    assert any("fracgpu-nodes does not deny" in text for text in seen)
