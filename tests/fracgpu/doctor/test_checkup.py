"""All checks together: nothing is found where nothing is wrong, and unknown is never healthy."""

import copy
from dataclasses import fields, replace

import pytest

from fracgpu.doctor.checkup import CHECKS, examine
from fracgpu.doctor.facts import Facts, Unread
from fracgpu.doctor.finding import Verdict
from tests.support.examined import Json, a_slice, healthy, with_claims

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
    of_claims = name in ("device_classes", "card_slices", "claims")
    outcomes = examine((with_claims if of_claims else healthy)(**{name: Unread("may not")}))

    assert [result for result in outcomes if result.unknown == "may not"]
    assert not [result for result in outcomes if result.findings]


def test_only_the_checks_that_were_asked_for_are_made() -> None:
    found = examine(healthy(), only=["taints", "clocks"])

    assert [result.check.name for result in found] == ["clocks", "taints"]
