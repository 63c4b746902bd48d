"""What a check found: how bad, what was observed, the cure, and what else it explains."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from fracgpu.doctor.facts import Facts, NotKnownError


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """Pods that ask for a share are not admitted, placed or started, or not as promised."""
    WARNING = "warning"
    """It works now, but will not for long, or not everything does."""


class Verdict(Enum):
    """The outcome of a check."""

    FINE = "ok"
    FOUND = "found"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        observed: what was observed, with the names of the objects.
        cure: a command, or the page that says what to do.
        breaks: what does not work for this reason, such as ``deployment/fracgpu-webhook``.
        needs: what would have to work for this to be found well; see ``ranking.py``.
    """

    severity: Severity
    observed: str
    cure: str
    breaks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: a word for flags and scripts.
        title: the sentence that is true when nothing is found.
        find: yields what is wrong; raises NotKnownError where a fact is unknown.
    """

    name: str
    title: str
    find: Callable[[Facts], Iterator[Finding]]

    def run(self, facts: Facts) -> "Result":
        """Return the outcome; what was found before a fact was missing is kept."""
        findings = []
        unknown = ""
        try:
            for finding in self.find(facts):
                findings.append(finding)  # noqa: PERF402 - what came before an error is kept
        except NotKnownError as error:
            unknown = str(error)
        return Result(check=self, findings=tuple(findings), unknown=unknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one check; *unknown* says why it could not be made, or not to its end."""

    check: Check
    findings: tuple[Finding, ...] = ()
    unknown: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.findings:
            return Verdict.FOUND
        return Verdict.NOT_CHECKED if self.unknown else Verdict.FINE


def error(
    observed: str, *, cure: str, breaks: Iterable[str] = (), needs: Iterable[str] = ()
) -> Finding:
    """Return a finding that is an error."""
    return Finding(
        severity=Severity.ERROR,
        observed=observed,
        cure=cure,
        breaks=tuple(breaks),
        needs=tuple(needs),
    )


def warning(
    observed: str, *, cure: str, breaks: Iterable[str] = (), needs: Iterable[str] = ()
) -> Finding:
    """Return a finding that is a warning."""
    return Finding(
        severity=Severity.WARNING,
        observed=observed,
        cure=cure,
        breaks=tuple(breaks),
        needs=tuple(needs),
    )
