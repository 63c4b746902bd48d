"""A check-up as lines: each cause with its cure and consequences, what is unknown, what is fine."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from cli.printers.text import Line, Tone
from fracgpu.doctor.finding import Check, Result, Severity, Verdict
from fracgpu.doctor.ranking import Cause, rank
from fracgpu.errors import counted

_MOST_PER_CHECK: Final = 3  # consequences that one check found
_TONES: Final = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.HELP}


def doctor_lines(results: Sequence[Result], *, wide: bool = False) -> Iterator[Line]:
    """Yield the causes first, errors before warnings, each above its consequences; then a sum.

    If *wide*, every consequence and every check that found nothing has a line of its own.
    """
    causes = rank(results)
    for cause in causes:
        yield from _cause(cause, wide=wide)
    unknown: dict[str, list[Check]] = {}
    for result in results:
        if result.unknown:
            unknown.setdefault(result.unknown, []).append(result.check)
    for why, checks in unknown.items():
        titles = "; ".join(check.title for check in checks)
        text = f"not checked: {titles}: {why}  [{', '.join(check.name for check in checks)}]"
        yield Line(text=text, tone=Tone.QUIET)
    fine = [result for result in results if result.verdict is Verdict.FINE]
    if wide:
        for result in fine:
            yield Line(text=f"ok: {result.check.title}  [{result.check.name}]", tone=Tone.GOOD)
    yield Line(text=_sum_up(results, causes, fine=len(fine)), tone=Tone.HEAD)


def _cause(cause: Cause, *, wide: bool) -> Iterator[Line]:
    first = " (fix this first)" if cause.consequences else ""
    yield Line(
        text=f"{cause.severity.value}{first}: {cause.finding.observed}  [{cause.check.name}]",
        tone=_TONES[cause.severity],
    )
    yield Line(text=f"  cure: {cause.finding.cure}", copied=True)
    for check, group in groupby(cause.consequences, key=lambda each: each.check.name):
        found = [each.finding.observed for each in group]
        shown = found if wide else found[:_MOST_PER_CHECK]
        for observed in shown:
            yield Line(text=f"  so: {observed}  [{check}]")
        if len(found) > len(shown):
            yield Line(text=f"  so: {len(found) - len(shown)} more like it  [{check}]")


def _sum_up(results: Sequence[Result], causes: Sequence[Cause], *, fine: int) -> str:
    errors = sum(cause.severity is Severity.ERROR for cause in causes)
    following = sum(len(cause.consequences) for cause in causes)
    unknown = sum(bool(result.unknown) for result in results)
    suffix = f", and {counted(following, 'consequence')} of them" if following else ""
    return (
        f"{len(results)} checks: {fine} ok, {unknown} not checked or only in part; "
        f"{counted(errors, 'error')}, {counted(len(causes) - errors, 'warning')}{suffix}"
    )


def doctor_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the outcome of every check as JSON; a consequence names what it follows from."""
    causes = {id(each.finding): cause for cause in rank(results) for each in cause.consequences}
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
                        "seen": finding.observed,
                        "cure": finding.cure,
                        "followsFrom": _named(causes.get(id(finding))),
                    }
                    for finding in result.findings
                ],
            }
            for result in results
        ]
    }


def _named(cause: Cause | None) -> dict[str, str] | None:
    return (
        {"check": cause.check.name, "seen": cause.finding.observed} if cause is not None else None
    )
