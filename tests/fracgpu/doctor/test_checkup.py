"""All checks together: nothing is found where nothing is wrong, and unknown is never healthy."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.doctor.checkup import CHECKS, examine
from fracgpu.doctor.cures import change, install_again
from fracgpu.doctor.facts import (
    AdmissionAnswer,
    CertificateFact,
    CertificatesFact,
    Facts,
    NotKnownError,
    TrustFact,
    Unread,
    is_ready,
    known,
    time_of,
)
from fracgpu.doctor.finding import Check, Finding, Result, Severity, Verdict, error
from fracgpu.doctor.ranking import Cause, rank
from tests.fracgpu.doctor.test_roles import APPS, deployments, waiting
from tests.support.examined import NOON, Json, a_lease, a_slice, found_by, healthy, shipped

READ = [
    field.name
    for field in fields(Facts)
    if field.name not in ("now", "own_version", "system_namespace")
]


def test_a_healthy_installation_has_no_finding() -> None:
    verdicts = {result.check.name: result.verdict for result in examine(healthy())}

    assert verdicts == {check.name: Verdict.FINE for check in CHECKS}


def test_objects_whose_names_the_chart_was_told_are_found_by_their_labels() -> None:
    named = healthy()
    called = replace(
        named,
        deployments=_renamed(named.deployments),
        daemon_sets=_renamed(named.daemon_sets),
        slices=(
            a_slice("gpu-webhook-x2c4f", "10.1.0.3", service="gpu-webhook"),
            a_slice("gpu-scheduler-leader", "10.1.0.7"),
        ),
        mutating_webhooks=_renamed(named.mutating_webhooks, but_own=True),
    )

    found = [finding.observed for result in examine(called) for finding in result.findings]

    assert found == []


def _renamed(bodies: object, *, but_own: bool = False) -> tuple[Json, ...]:
    """Return objects that refer to others as with fullnameOverride=gpu, and are called so."""
    assert isinstance(bodies, tuple)
    renamed = copy.deepcopy(bodies)
    for body in renamed:
        if not but_own:
            body["metadata"]["name"] = body["metadata"]["name"].replace("fracgpu-", "gpu-")
        for webhook in body.get("webhooks", ()):
            webhook["clientConfig"]["service"]["name"] = "gpu-webhook"
    return renamed


def test_checks_have_names_of_their_own() -> None:
    names = [check.name for check in CHECKS]

    assert len(set(names)) == len(names) >= 20


def test_where_nothing_could_be_read_nothing_is_said_to_be_fine() -> None:
    nothing = healthy(**{name: Unread("may not") for name in READ})

    assert {result.verdict for result in examine(nothing)} == {Verdict.NOT_CHECKED}
    assert {result.unknown for result in examine(nothing)} == {"may not"}


@pytest.mark.parametrize("name", READ)
def test_every_fact_is_needed_by_a_check_which_is_not_made_without_it(name: str) -> None:
    outcomes = examine(healthy(**{name: Unread("may not")}))

    assert [result for result in outcomes if result.unknown == "may not"]
    assert not [result for result in outcomes if result.findings]


def test_only_the_checks_that_were_asked_for_are_made() -> None:
    found = examine(healthy(), only=["taints", "clocks"])

    assert [result.check.name for result in found] == ["clocks", "taints"]


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

    told = [id(cause.finding) for cause in causes]
    told += [id(each.finding) for cause in causes for each in cause.consequences]
    assert sorted(told) == sorted(map(id, made))
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


UPGRADE = "helm upgrade gpus charts/fracgpu -n fracgpu-system --reset-then-reuse-values "


def of_helm(kind: str) -> tuple[Json, ...]:
    """Return what deploy/ has of a kind, as Helm installs it."""
    found = shipped(kind)
    for body in found:
        body["metadata"] |= {
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": "gpus",
                "meta.helm.sh/release-namespace": "fracgpu-system",
            },
        }
    return found


def test_a_setting_of_helms_configuration_is_changed_by_helm() -> None:
    facts = healthy(
        config_mistakes={"rebalancer": "hotRatio is 9"}, config_maps=of_helm("ConfigMap")
    )

    cure = found_by("configuration", facts).cure

    assert cure == f"{UPGRADE}--set-json config.rebalancer.FIELD=VALUE --force-conflicts"


def test_a_role_that_helm_installed_is_scaled_by_helm() -> None:
    deployments = of_helm("Deployment")
    for body in deployments:
        body["status"] = {"availableReplicas": body["spec"].get("replicas", 1)}
        if body["metadata"]["name"] == "fracgpu-webhook":
            body["spec"]["replicas"] = 0

    cure = found_by("replicas", healthy(deployments=deployments)).cure

    assert cure == f"{UPGRADE}--set webhook.replicas=2 --force-conflicts"


def test_what_is_missing_is_installed_again_in_the_way_it_came() -> None:
    helm = healthy(deployments=of_helm("Deployment"), policies=())

    assert found_by("policies", helm).cure == f"{UPGRADE}--force-conflicts (docs/install.md)"
    assert install_again(healthy()).startswith("kubectl apply --server-side --force-conflicts -k")
    nothing = healthy(
        mutating_webhooks=(), deployments=(), daemon_sets=(), config_maps=(), policies=()
    )
    assert "helm upgrade fracgpu" in install_again(nothing)
    assert ", or kubectl apply" in install_again(nothing)


def test_a_label_alone_makes_no_release() -> None:
    labelled = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}
    annotated = {"metadata": {"annotations": {"meta.helm.sh/release-name": "gpus"}}}

    assert change(labelled, otherwise="by hand") == "by hand"
    assert change(annotated, otherwise="by hand") == "by hand"


def test_an_unread_fact_is_not_known() -> None:
    assert known(("a",)) == ("a",)
    with pytest.raises(NotKnownError, match="may not list nodes"):
        known(Unread("may not list nodes"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-20T12:00:00Z", datetime(2026, 11, 20, 12, tzinfo=UTC)),
        ("2026-11-20T12:00:00.250000Z", datetime(2026, 11, 20, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-11-20T12:00:00", None),
        ("soon", None),
        (None, None),
    ],
)
def test_a_time_is_read_as_the_api_server_writes_it(text: object, wanted: datetime | None) -> None:
    assert time_of(text) == wanted


def test_a_pod_without_conditions_is_not_ready() -> None:
    assert not is_ready({"status": {}})
    assert is_ready({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})


def test_what_was_found_before_a_fact_was_missing_is_kept() -> None:
    def find(_: Facts) -> Iterator[Finding]:
        yield error("broken", cure="mend it")
        raise NotKnownError("may not look")

    result = Check(name="c", title="C", find=find).run(healthy())

    assert result.verdict is Verdict.FOUND
    assert [finding.severity for finding in result.findings] == [Severity.ERROR]
    assert result.unknown == "may not look"
