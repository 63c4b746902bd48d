"""One cause is one finding, with its consequences below it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.doctor.checkup import CHECKS, examine
from fracgpu.doctor.facts import (
    AdmissionAnswer,
    CertificateFact,
    CertificatesFact,
    TrustFact,
    known,
)
from fracgpu.doctor.finding import Finding, Result, Severity, error
from fracgpu.doctor.ranking import Cause, rank
from tests.fracgpu.doctor.test_nodes import AGENT, with_condition
from tests.fracgpu.doctor.test_roles import APPS, deployments, waiting
from tests.support.examined import NOON, a_lease, a_role_pod, a_slice, healthy

LEADER_SLICE = a_slice("fracgpu-scheduler-leader", "10.1.0.7")
UNANSWERED = AdmissionAnswer(refused_by_webhook=False, message="failed calling webhook")
NONE_AVAILABLE = {"status": {"availableReplicas": 0}}


def causes(**changed: Any) -> Sequence[Cause]:
    return rank(examine(healthy(**changed)))


def checks_below(cause: Cause) -> list[str]:
    return [each.check.name for each in cause.consequences]


def test_a_webhook_whose_pods_do_not_start_is_one_finding() -> None:
    (cause,) = causes(
        pods=(*known(healthy().pods), waiting("fracgpu-webhook", "CrashLoopBackOff")),
        deployments=deployments(webhook=NONE_AVAILABLE),
        slices=(LEADER_SLICE,),
        admission=UNANSWERED,
    )

    assert "pod fracgpu-webhook-1 does not start: CrashLoopBackOff" in cause.finding.observed
    assert checks_below(cause) == ["replicas", "webhook-endpoints", "webhook-answers"]


def test_an_image_that_cannot_be_pulled_is_one_finding() -> None:
    roles = ("webhook", "scheduler", "rebalancer", "certs")
    bad = CertificateFact(secret="fracgpu-webhook-tls", not_after=None, problem="is missing")
    (cause,) = causes(
        pods=[waiting(app, "ErrImagePull", "no such host") for app in (*APPS, "fracgpu-certs")],
        deployments=deployments(**dict.fromkeys(roles, NONE_AVAILABLE)),
        slices=(),
        leases=(),
        admission=UNANSWERED,
        certificates=CertificatesFact(
            certificates=(bad,), mistrust=(TrustFact(webhook="w", problem="has no bundle"),)
        ),
    )

    assert "cannot be pulled" in cause.finding.observed
    assert {
        "replicas", "webhook-endpoints", "webhook-trust", "webhook-answers", "certificates",
        "extender-leads", "rebalancer-leads", "agents",
    } == set(checks_below(cause))  # fmt: skip


def test_certificates_that_are_not_made_are_the_finding_of_the_role_that_makes_them() -> None:
    bad = CertificateFact(secret="fracgpu-webhook-tls", not_after=NOON, problem="expired")
    (cause,) = causes(
        deployments=deployments(certs={"spec": {"replicas": 0}}),
        admission=UNANSWERED,
        certificates=CertificatesFact(
            certificates=(bad,), mistrust=(TrustFact(webhook="w", problem="has no bundle"),)
        ),
    )

    assert cause.finding.observed == "Deployment fracgpu-certs is scaled to 0 replicas"
    assert set(checks_below(cause)) == {"certificates", "webhook-trust", "webhook-answers"}


def test_what_is_not_installed_is_one_finding() -> None:
    (cause, *others) = causes(
        deployments=(), daemon_sets=(), mutating_webhooks=(), validating_webhooks=(), policies=(),
        policy_bindings=(), definitions=(), slices=(), leases=(), pods=(), config_maps=(),
        config_mistakes=None, nodes=(), admission=AdmissionAnswer(
            refused_by_webhook=False, message=""
        ),
    )  # fmt: skip

    assert "FracGPU is not installed" in cause.finding.observed
    assert len(cause.consequences) > 10
    assert [other.finding.observed for other in others] == ["no node shares its cards"]


def test_what_was_removed_in_part_is_one_finding() -> None:
    """As kubectl delete namespace leaves it."""
    gone = [
        CertificateFact(secret=secret, not_after=None, problem="there is none")
        for secret in ("fracgpu-ca", "fracgpu-webhook-tls")
    ]
    (cause,) = causes(
        deployments=(), daemon_sets=(), slices=(), leases=(), pods=(), config_maps=(),
        config_mistakes=None, admission=UNANSWERED, certificates=CertificatesFact(
            certificates=tuple(gone), mistrust=(TrustFact(webhook="w", problem="has no bundle"),)
        ),
    )  # fmt: skip

    assert "FracGPU was removed in part" in cause.finding.observed
    assert {"replicas", "certificates", "webhook-trust", "webhook-answers", "agents"} <= set(
        checks_below(cause)
    )


def test_an_agent_that_is_not_ready_for_want_of_a_driver_is_one_finding() -> None:
    (cause,) = causes(
        nodes=known(with_condition("CardsUnavailable", "NVML: driver not loaded").nodes),
        pods=(
            *(pod for pod in known(healthy().pods) if "plugin" not in str(pod["metadata"])),
            a_role_pod("agent-1", AGENT, ready=False),
        ),
    )

    assert "NVML: driver not loaded" in cause.finding.observed
    assert "simulatedCards.enabled=true" in cause.finding.cure
    assert checks_below(cause) == ["agents"]


def test_faults_that_have_nothing_to_do_with_each_other_are_told_beside_each_other() -> None:
    found = causes(slices=(LEADER_SLICE,), leases=(a_lease("fracgpu-rebalancer", "r"),))

    assert [(cause.check.name, checks_below(cause)) for cause in found] == [
        ("webhook-endpoints", []), ("extender-leads", [])
    ]  # fmt: skip


def test_where_something_is_well_it_explains_nothing() -> None:
    unreached = causes(admission=UNANSWERED)
    one_left = causes(
        deployments=deployments(webhook={"status": {"availableReplicas": 1}}),
        admission=UNANSWERED,
    )

    assert [(cause.check.name, checks_below(cause)) for cause in unreached] == [
        ("webhook-answers", [])
    ]
    assert [cause.check.name for cause in one_left] == ["webhook-answers", "replicas"]


THINGS = st.lists(st.sampled_from("abcdef"), max_size=3).map(tuple)
FINDINGS = st.builds(
    Finding,
    severity=st.sampled_from(Severity),
    observed=st.just("seen"),
    cure=st.just("cure"),
    breaks=THINGS,
    needs=THINGS,
)


def ranked(made: Sequence[Finding]) -> Sequence[Cause]:
    return rank([Result(check=CHECKS[0], findings=(finding,)) for finding in made])


@given(st.lists(FINDINGS, max_size=8))
def test_every_finding_is_told_once_and_the_worst_come_first(made: list[Finding]) -> None:
    causes = ranked(made)

    reported = [id(cause.finding) for cause in causes]
    reported += [id(each.finding) for cause in causes for each in cause.consequences]
    assert sorted(reported) == sorted(map(id, made))
    severities = [list(Severity).index(cause.severity) for cause in causes]
    assert severities == sorted(severities)


@given(st.lists(st.sets(st.integers(0, 7)), max_size=8))
def test_only_what_nothing_explains_is_a_cause(needs: list[set[int]]) -> None:
    made = [
        error(str(at), cure="", breaks=[str(at)], needs=[str(n) for n in sorted(earlier) if n < at])
        for at, earlier in enumerate(needs)
    ]

    causes = ranked(made)

    assert {cause.finding.observed for cause in causes} == {
        finding.observed for finding in made if not finding.needs
    }


@pytest.mark.parametrize("severity", Severity)
def test_a_cause_is_as_bad_as_its_worst_consequence(severity: Severity) -> None:
    cause = Finding(severity=severity, observed="", cure="", breaks=("a",))
    (ranked,) = rank([Result(check=CHECKS[0], findings=(cause, error("", cure="", needs=["a"])))])

    assert ranked.severity is Severity.ERROR
