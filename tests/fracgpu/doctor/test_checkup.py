"""All checks together: nothing is found where nothing is wrong, and unknown is never healthy."""

from dataclasses import fields

import pytest

from fracgpu.doctor.checkup import CHECKS, examine
from fracgpu.doctor.facts import Facts, Unread
from fracgpu.doctor.finding import Verdict
from tests.support.examined import healthy

READ = [
    field.name
    for field in fields(Facts)
    if field.name not in ("now", "own_version", "system_namespace")
]


def test_a_healthy_installation_has_no_finding() -> None:
    verdicts = {result.check.name: result.verdict for result in examine(healthy())}

    assert verdicts == {check.name: Verdict.FINE for check in CHECKS}


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
