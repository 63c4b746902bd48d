"""A replay of recorded usage as lines of text: one column for each policy."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from cli.printers.text import Line, Tone, table_lines
from simulator.usage_replay.world import ReplayedWorld


def replay_table(
    worlds: Mapping[str, ReplayedWorld],
    span: tuple[datetime, datetime],
    *,
    frames: int,
    moves: bool,
) -> Iterator[Line]:
    """Yield the figures side by side, and every move if *moves*."""
    start, end = span
    yield Line(
        text=f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, {frames} cycles", tone=Tone.QUIET
    )
    figures = [world.figures for world in worlds.values()]
    rows = [("", *worlds)]
    rows += [
        ("moves", *(str(found.moves) for found in figures)),
        ("  by surge", *(str(found.surged) for found in figures)),
        ("  that relieved nothing", *(str(found.useless) for found in figures)),
        ("hot card-hours", *(f"{found.hot_h:.1f}" for found in figures)),
        ("  shared by several pods", *(f"{found.contended_h:.1f}" for found in figures)),
        ("full card-hours", *(f"{found.full_h:.1f}" for found in figures)),
        ("lost work, card-hours", *(f"{found.lost_h:.2f}" for found in figures)),
    ]
    yield from table_lines(rows, [Tone.HEAD] + [Tone.PLAIN] * (len(rows) - 1))
    for name, world in worlds.items():
        if world.figures.held:
            yield Line(text="")
            yield Line(text=f"held back, {name}:", tone=Tone.HEAD)
            counted = [(f"{n}", reason) for reason, n in world.figures.held.most_common()]
            yield from table_lines(counted, [Tone.QUIET] * len(counted))
        if moves and world.moves:
            yield Line(text="")
            yield Line(text=f"moves, {name}:", tone=Tone.HEAD)
            listed = [
                (
                    f"{move.at:%Y-%m-%d %H:%M}",
                    move.pod,
                    f"{move.source} -> {move.target}",
                    f"gain {move.gain_points:.1f}",
                )
                for move in world.moves
            ]
            yield from table_lines(listed, [Tone.PLAIN] * len(listed))
