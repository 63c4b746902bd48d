"""The outcome of a check."""

from collections.abc import Iterator

from fracgpu.doctor.facts import Facts, NotKnownError
from fracgpu.doctor.finding import Check, Finding, Severity, Verdict, error
from tests.support.examined import healthy


def test_what_was_found_before_a_fact_was_missing_is_kept() -> None:
    def find(_: Facts) -> Iterator[Finding]:
        yield error("broken", cure="mend it")
        raise NotKnownError("may not look")

    result = Check(name="c", title="C", find=find).run(healthy())

    assert result.verdict is Verdict.FOUND
    assert [finding.severity for finding in result.findings] == [Severity.ERROR]
    assert result.unknown == "may not look"
