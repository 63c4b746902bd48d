"""Answers as lines of text, each with a tone that a terminal may show as a colour."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from cli.printers.cells import columns_of, fit, pad, safe, wrap
from fracgpu.errors import counted
from fracgpu.explain.answers import (
    CardAnswer,
    Explanation,
    Holder,
    NodeAnswer,
    PodVerdict,
    Suggestion,
)
from simulator.replay.replay import ReplayResult

_MOST_HOLDERS = 6
_HANGING = 4


class Tone(Enum):
    """The tone of a line; the value is a style of rich."""

    PLAIN = ""
    GOOD = "green"
    BAD = "red"
    HEAD = "bold"
    QUIET = "dim"
    HELP = "cyan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of output.

    Attributes:
        copied: has a command that somebody may copy, so that no line break may be put into it.
        hang: columns before each further line where it is wrapped; 0: a few more than before it.
    """

    text: str
    tone: Tone = Tone.PLAIN
    copied: bool = False
    hang: int = 0


def wrapped(line: Line, columns: int) -> list[Line]:
    """Return a line as lines that fit *columns*; one with a command in it stays as it is."""
    if line.copied:
        return [line]
    text = safe(line.text)
    hang = line.hang or len(text) - len(text.lstrip()) + _HANGING
    indent = min(hang, columns // 2)
    return [replace(line, text=part) for part in wrap(text, columns, indent=indent)]


def table_lines(
    rows: Sequence[tuple[str, ...]], tones: Sequence[Tone], *, width: int | None = None
) -> Iterator[Line]:
    """Yield rows with their columns aligned, each row in its tone, cut at *width* columns if any.

    The last column is what is cut first: put into it what can best be spared.
    """
    shown = [tuple(safe(cell) for cell in row) for row in rows]
    widths = [max(columns_of(row[at]) for row in shown) for at in range(len(shown[0]))]
    for row, tone in zip(shown, tones, strict=True):
        cells = (pad(cell, room) for cell, room in zip(row, widths, strict=True))
        text = "  ".join(cells).rstrip()
        text = text if width is None else fit(text, width)
        yield Line(text=text, tone=tone, hang=sum(widths[:-1]) + 2 * (len(widths) - 1))


def replay_lines(outcomes: Mapping[str, Sequence[ReplayResult]]) -> Iterator[Line]:
    """Yield a simulation as a table, with the best policy in its own tone."""
    loads = (90, 95, 100, 110, 130)
    heads = "".join(f"{f'at {load} %':>10}" for load in loads)
    yield Line(text=f"{'policy':<14}{heads}{'spread':>10}{'refused':>10}", tone=Tone.HEAD)
    at_full = {policy: _mean(results, 100) for policy, results in outcomes.items()}
    best = max(at_full.values(), default=0.0)
    for policy, results in outcomes.items():
        figures = "".join(f"{_mean(results, load):>8.2f} %" for load in loads)
        full = [result.allocated_percent(100) for result in results]
        refused = sum(result.refused for result in results) / sum(
            result.arrived for result in results
        )
        text = f"{policy:<14}{figures}{max(full) - min(full):>10.2f}{refused:>9.1%}"
        yield Line(text=text, tone=Tone.GOOD if at_full[policy] == best else Tone.PLAIN)
    yield Line(
        text="share of all card memory allocated once so much of it was requested; spread: between "
        "orders of arrival, at 100 %",
        tone=Tone.QUIET,
    )


def _mean(outcomes: Sequence[ReplayResult], load: int) -> float:
    return sum(outcome.allocated_percent(load) for outcome in outcomes) / len(outcomes)


def explanation_lines(
    explanation: Explanation, suggestions: Sequence[Suggestion]
) -> Iterator[Line]:
    """Yield the answer first, then the blockers, what would help, and the reasons card by card."""
    tone = Tone.GOOD if explanation.verdict.good else Tone.BAD
    yield Line(text=_headline(explanation), tone=tone)
    if explanation.asks:
        yield Line(text=f"  requests: {explanation.asks}")
    for held in explanation.held:
        gone = "a card that the node no longer has"
        where = f"card {held.index} {held.model}" if held.index >= 0 else gone
        cores = f", {held.cores}% of the compute" if held.cores else ""
        yield Line(text=f"  {where}: {held.mib} MiB{cores} ({held.uuid})")
    for blocker in explanation.blockers:
        yield Line(text=f"  blocked by: {blocker}", tone=Tone.BAD)
    for note in explanation.notes:
        yield Line(text=f"  note: {note}", tone=Tone.QUIET)
    if suggestions:
        yield Line(text="")
        yield Line(text="What would help", tone=Tone.HEAD)
        for suggestion in suggestions:
            yield Line(text=f"  - {suggestion.text}", tone=Tone.HELP, copied=True)
    for node in explanation.nodes:
        yield Line(text="")
        yield from _node_lines(node)


def _headline(explanation: Explanation) -> str:
    pod, node = explanation.pod, explanation.on_node
    match explanation.verdict:
        case PodVerdict.RUNS:
            since = f" since {explanation.since:%Y-%m-%d %H:%M:%S} UTC" if explanation.since else ""
            state = "runs" if since else "is bound and starting"
            return f"{pod} {state} on {node}{since}"
        case PodVerdict.FITS:
            others = sum(node.fits for node in explanation.nodes) - 1
            more = f" (and on {counted(others, 'other node')})" if others else ""
            return f"{pod} fits now: {explanation.choice.text}{more}"
        case PodVerdict.STUCK if node:
            return f"{pod} is on {node} without a card"
        case PodVerdict.STUCK:
            fitting = sum(node.fits for node in explanation.nodes)
            if fitting:
                return f"{pod} is not scheduled, though there is room on {counted(fitting, 'node')}"
            if not explanation.nodes:
                return f"{pod} cannot be placed"
            if len(explanation.nodes) == 1:
                return f"{pod} does not fit on the only node"
            return f"{pod} does not fit on any of {len(explanation.nodes)} nodes"
        case _:
            return f"{pod} {explanation.verdict.value}"


def _node_lines(node: NodeAnswer) -> Iterator[Line]:
    if node.fits:
        yield Line(text=f"{node.node}: fits", tone=Tone.GOOD)
    else:
        reasons = [objection.text for objection in node.objections]
        reasons += [node.reason] if node.reason else ["its cards fit"]
        # Of a node that does not share, both its labels and its cards say so.
        yield Line(text=f"{node.node}: {'; '.join(dict.fromkeys(reasons))}", tone=Tone.HEAD)
    for card in node.cards:
        yield _card_line(card)


def _card_line(card: CardAnswer) -> Line:
    room = f"{card.free_mib} of {card.capacity_mib} MiB free"
    said = card.reason or ("would be chosen" if card.chosen else "")
    holders = _holders(card.holders)
    text = f"  card {card.index} {card.model}: {room}"
    text += f"; {said}" if said else ""
    if card.avoided_until is not None:
        text += f"; warm, so others go first until {card.avoided_until:%H:%M:%S} UTC"
    text += f"; held by {holders}" if holders else ""
    return Line(text=text, tone=Tone.GOOD if card.chosen else Tone.PLAIN)


def _holders(holders: Sequence[Holder]) -> str:
    shown = [
        f"{holder.pod} {holder.size} MiB"
        + (f" {holder.cores}%" if holder.cores else "")
        + (" (terminating)" if holder.terminating else "")
        for holder in holders[:_MOST_HOLDERS]
    ]
    rest = len(holders) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
