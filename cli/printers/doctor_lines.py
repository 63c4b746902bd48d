"""A check-up as lines: what was found with its cure, what could not be checked, what is fine."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cli.printers.text import Line, Tone
from fracgpu.doctor.finding import Result, Severity, Verdict

_TONES: Final = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.HELP}


def doctor_lines(results: Sequence[Result], *, wide: bool = False) -> Iterator[Line]:
    """Yield the findings first, errors before warnings, and a sum at the end.

    If *wide*, every check that found nothing has a line of its own.
    """
    for severity in Severity:
        yield from _found(results, severity)
    for result in results:
        if result.unknown:
            text = f"not checked: {result.check.title}: {result.unknown}  [{result.check.name}]"
            yield Line(text=text, tone=Tone.QUIET)
    fine = [result for result in results if result.verdict is Verdict.FINE]
    if wide:
        for result in fine:
            yield Line(text=f"ok: {result.check.title}  [{result.check.name}]", tone=Tone.GOOD)
    yield Line(text=_sum_up(results, fine=len(fine)), tone=Tone.HEAD)


def _found(results: Sequence[Result], severity: Severity) -> Iterator[Line]:
    for result in results:
        for finding in result.findings:
            if finding.severity is severity:
                text = f"{severity.value}: {finding.seen}  [{result.check.name}]"
                yield Line(text=text, tone=_TONES[severity])
                yield Line(text=f"  cure: {finding.cure}")


def _sum_up(results: Sequence[Result], *, fine: int) -> str:
    found = [finding for result in results for finding in result.findings]
    errors = sum(finding.severity is Severity.ERROR for finding in found)
    unknown = sum(bool(result.unknown) for result in results)
    return (
        f"{len(results)} checks: {fine} ok, {unknown} not checked or not to the end; "
        f"{_count(errors, 'error')}, {_count(len(found) - errors, 'warning')}"
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def doctor_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the outcome of every check as JSON."""
    return {
        "checks": [
            {
                "name": result.check.name,
                "title": result.check.title,
                "verdict": result.verdict.value,
                "unknown": result.unknown,
                "findings": [
                    {
                        "severity": finding.severity.value,
                        "seen": finding.seen,
                        "cure": finding.cure,
                    }
                    for finding in result.findings
                ],
            }
            for result in results
        ]
    }
