"""A plan as lines of text: what holds everything back, then every hot card with its pods."""

from collections.abc import Iterator

from cli.plan_report import CardPlan, PlanReport
from cli.printers.text import Line, Tone
from fracgpu.disruption.move import HeldBack
from fracgpu.disruption.policy import Mode
from fracgpu.state.move_object import MoveSpec

_DOES = {
    Mode.ACTIVE: "moves are made",
    Mode.RECOMMEND: "moves are only recommended",
    Mode.DRY_RUN: "moves are only reported",
    Mode.OFF: "nothing is decided",
}


def plan_lines(report: PlanReport) -> Iterator[Line]:
    """Yield the whole answer."""
    policy = report.policy
    yield Line(
        text=f"mode {report.mode.value} ({_DOES[report.mode]}), aggressiveness "
        f"{policy.aggressiveness}; {report.trusted_ratio:.0%} of the cards have trusted readings",
        tone=Tone.HEAD,
    )
    for breaker in report.breakers:
        yield Line(text=f"circuit breaker open: {breaker}", tone=Tone.BAD)
    for held in report.blocked:
        yield Line(text=f"nothing more is moved now: {_why(held)}", tone=Tone.BAD)
    if not report.cards:
        yield Line(text="no card is hot", tone=Tone.GOOD)
    for card in report.cards:
        yield Line(text="")
        yield from _card(card, report)
    if report.reasons:
        yield Line(text="")
        yield Line(text="held back:", tone=Tone.HEAD)
        for reason, count in report.reasons.most_common():
            yield Line(text=f"  {count} x {reason.value}", tone=Tone.QUIET)
    if report.warming:
        yield Line(text="")
        yield Line(text=f"warming up: {', '.join(report.warming)}", tone=Tone.QUIET)


def _card(card: CardPlan, report: PlanReport) -> Iterator[Line]:
    yield Line(
        text=f"{card.name}  {card.model}  busy {card.level_ratio:.0%}, {card.heat.value}",
        tone=Tone.HEAD,
    )
    if card.blocked:
        yield Line(text=f"  not now: {_why(card.blocked)}; without that:", tone=Tone.BAD)
    for move in card.moves:
        yield Line(text=f"  move {_move(move, report)}", tone=Tone.GOOD)
    for held in card.held:
        about_card = held.subject == card.card
        subject = "no pod" if about_card else held.subject
        score = "" if held.gain_points is None else f" (gain {held.gain_points:.1f})"
        yield Line(text=f"  stay {subject}{score}: {_why(held)}", tone=Tone.PLAIN)
    if not card.moves and not card.held:
        yield Line(text="  a pod is being moved off it, or was just now", tone=Tone.QUIET)


def _move(move: MoveSpec, report: PlanReport) -> str:
    target = report.names.get(move.target.card, move.target.card)
    return (
        f"{move.pod.key} -> {target} (gain {move.reason.gain_points:.1f}): "
        f"it uses {move.reason.busy_ratio:.0%}, {move.request.mib} MiB; {move.mode.value.lower()}"
    )


def _why(held: HeldBack) -> str:
    detail = f" ({held.detail})" if held.detail and held.gain_points is None else ""
    return f"{held.reason.value}{detail}"
