"""Moves as lines of text: a table, one move with its history, and one line for each change."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from cli.printers.cells import columns_of
from cli.printers.text import Line, Tone, table_lines, wrapped
from fracgpu.state.move_object import Move, MovePhase, RequestedShare

_FACTS_AT: Final = 14  # the column where the facts of a move begin
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_TONES: Final = {
    MovePhase.DONE: Tone.QUIET,
    MovePhase.RECOMMENDED: Tone.HELP,
    MovePhase.ABORTED: Tone.BAD,
    MovePhase.ROLLING_BACK: Tone.BAD,
}


def move_table(moves: Sequence[Move], *, now: datetime, width: int | None = None) -> Iterator[Line]:
    """Yield the moves as a table in the order given.

    If that is wider than *width* columns, each move has its phase and result in the table, and the
    rest in lines below.
    """
    rows = [("NAME", "POD", "FROM", "TO", "PHASE", "RESULT", "AGE", "REASON")]
    rows += [
        (
            move.name,
            move.spec.pod.key,
            move.spec.source.display,
            move.spec.target.display,
            move.status.phase.value,
            move.status.result or "-",
            age(move, now=now),
            move.spec.reason.message or "-",
        )
        for move in moves
    ]
    tones = [Tone.HEAD, *(_tone(move) for move in moves)]
    lines = list(table_lines(rows, tones))
    if width is None or all(columns_of(line.text) <= width for line in lines):
        yield from lines
        return
    short = [("AGE", "PHASE", "RESULT", "POD")]
    short += [
        (age(move, now=now), move.status.phase.value, move.status.result or "-", move.spec.pod.key)
        for move in moves
    ]
    head, *lines = table_lines(short, tones, width=width)
    yield head
    for move, line in zip(moves, lines, strict=True):
        yield line
        spec = move.spec
        text = f"{spec.source.display} to {spec.target.display}: {spec.reason.message or '-'}"
        below = Line(text=f"  {text} ({move.name})", tone=line.tone, hang=2)
        yield from wrapped(below, width)


def move_lines(move: Move, *, now: datetime) -> Iterator[Line]:
    """Yield one move: what was decided and why, and every phase so far."""
    spec, status = move.spec, move.status
    ended = f", {status.result}" if status.result else ""
    yield Line(text=f"{spec.pod.key}: {status.phase.value}{ended}", tone=_tone(move))
    facts = (
        ("name", move.name),
        ("begun", f"{age(move, now=now)} ago"),
        ("from", f"{spec.source.display}  {spec.source.card}"),
        ("to", f"{spec.target.display}  {spec.target.card}"),
        ("share", _share(spec.request)),
        ("mode", spec.mode.value),
        ("method", spec.method),
        ("owner", f"{spec.owner.kind} {spec.owner.name}"),
        ("reason", spec.reason.message or "-"),
        (
            "figures",
            f"the pod used {spec.reason.busy_ratio:.0%} of a card that was busy "
            f"{spec.reason.level_ratio:.0%}; gain {spec.reason.gain_points:.1f} points",
        ),
        ("reserved", f"until {move.reserved_until:%Y-%m-%d %H:%M:%S %Z}"),
        ("replacement", _replacement(move)),
        ("message", status.message or "-"),
    )
    for name, text in facts:
        yield Line(text=f"  {name:<12}{text}", hang=_FACTS_AT)
    if status.transitions:
        yield Line(text="")
        rows = [("SINCE", "PHASE", "MESSAGE")]
        rows += [
            (f"{passed.at:%Y-%m-%d %H:%M:%S}", passed.phase.value, passed.message or "-")
            for passed in status.transitions
        ]
        yield from table_lines(rows, [Tone.HEAD] + [Tone.PLAIN] * len(status.transitions))


def change_line(move: Move, *, gone: bool, now: datetime) -> Line:
    """Return one line for a move that has changed."""
    spec, status = move.spec, move.status
    what = "deleted" if gone else " ".join(filter(None, (status.phase.value, status.result)))
    message = f": {status.message}" if status.message and not gone else ""
    return Line(
        text=f"{now:%H:%M:%S}  {spec.pod.key}  "
        f"{spec.source.display} -> {spec.target.display}  {what}{message}",
        tone=_tone(move),
    )


def age(move: Move, *, now: datetime) -> str:
    """Return how long ago a move was made, in the largest unit that fits, as kubectl does."""
    made = move.metadata.creation_timestamp
    if made is None:
        return "-"
    passed = max(now - made, timedelta(0))
    for unit, letter in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if passed >= unit:
            return f"{passed // unit}{letter}"
    return f"{passed.seconds}s"


def _tone(move: Move) -> Tone:
    return _TONES.get(move.status.phase, Tone.PLAIN)


def _share(request: RequestedShare) -> str:
    limit = f", at most {request.limit_mib} MiB" if request.limit_mib else ""
    cores = f", {request.cores} % of the compute" if request.cores else ""
    return f"{request.mib} MiB{limit}{cores}"


def _replacement(move: Move) -> str:
    found = move.status.replacement
    if found is None:
        return "-"
    where = f" on {found.node} {found.card}".rstrip() if found.node or found.card else ""
    return f"{found.name}{where}"
