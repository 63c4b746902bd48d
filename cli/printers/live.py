"""The screen while the demo runs: a live view in a terminal, plain lines elsewhere."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cli.fleet import Fleet
from cli.printers.fleet_lines import fleet_lines, fleet_screen
from cli.printers.tables import coloured, dashboard, elapsed, promises
from cli.printers.text import Line, wrapped
from simulator.demo.dashboard import Dashboard
from simulator.demo.promises import Promise

_USUAL_COLUMNS: Final = 80


class Show(Protocol):
    """Shows the state of the demo now."""

    def __call__(
        self, state: Dashboard, *, elapsed_s: float, duration_s: float, step: str
    ) -> None: ...


def plain_show(write: Callable[[str], None]) -> Show:
    """Return what writes one line for each event; for pipes, files and CI."""
    shown: list[str] = []
    steps = [""]

    def show(state: Dashboard, *, elapsed_s: float, duration_s: float, step: str) -> None:
        if step != steps[-1]:
            steps.append(step)
            write(f"[{elapsed(elapsed_s, duration_s)}] {step}")
        for line in _unseen(shown, state.event_lines):
            write(f"  {line}")
        shown[:] = state.event_lines

    return show


@contextmanager
def open_screen(console: Console) -> Iterator[Show]:
    """Yield what shows the demo on *console*; the last frame of the live view stays visible."""
    if not console.is_terminal:
        yield plain_show(lambda line: print_plain(console, line))
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:

        def redraw(state: Dashboard, **times: Any) -> None:
            live.update(dashboard(state, room=live.console.size, **times), refresh=True)

        yield redraw


def show_promises(console: Console, results: Sequence[Promise]) -> None:
    """Print the verdict below what was shown before."""
    if console.is_terminal:
        console.print(promises(results))
        return
    for promise in results:
        mark = "kept  " if promise.held else "BROKEN"
        print_plain(console, f"{mark} {promise.name}: {promise.detail}")


def show_fleet(console: Console, fleet: Fleet, *, wide: bool = False) -> None:
    """Print the cards: as wide as the terminal, or as a table for scripts where there is none."""
    if console.is_terminal:
        show_lines(console, fleet_screen(fleet, width=console.width, wide=wide))
    else:
        show_lines(console, fleet_lines(fleet, wide=wide))


@contextmanager
def open_fleet_screen(console: Console, *, wide: bool = False) -> Iterator[Callable[[Fleet], None]]:
    """Yield a function that shows the cards: in place on a terminal, below the last ones elsewhere.

    Elsewhere unchanged cards are not printed again.
    """
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, screen=True) as live:

            def redraw(fleet: Fleet) -> None:
                lines = fleet_screen(fleet, width=console.width, wide=wide)
                live.update(coloured(lines), refresh=True)

            yield redraw
        return
    shown: list[Fleet] = []

    def show(fleet: Fleet) -> None:
        if shown != [fleet]:
            shown[:] = [fleet]
            show_lines(console, fleet_lines(fleet, wide=wide))

    yield show


@contextmanager
def open_progress(*, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that takes the name of a task and its progress (0..1).

    On a terminal each task has a bar; elsewhere each gets a line when it is done. Both go to the
    error stream, so that the result can be piped.
    """
    console = Console(stderr=True, highlight=False, quiet=quiet)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bars:
            tasks: dict[str, TaskID] = {}

            def draw(name: str, ratio: float) -> None:
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=1.0)
                bars.update(tasks[name], completed=ratio)

            yield draw
        return

    def tell(name: str, ratio: float) -> None:
        if ratio >= 1.0:
            print_plain(console, f"{name}: done")

    yield tell


def show_lines(console: Console, lines: Iterable[Line]) -> None:
    """Print lines, in colour if the console has colours; on a terminal long ones are wrapped."""
    if console.is_terminal:
        lines = [part for line in lines for part in wrapped(line, console.width)]
    console.print(coloured(lines), end="", soft_wrap=True)


def print_plain(console: Console, line: str) -> None:
    """Print one line without markup, colours or wrapping."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _unseen(shown: Sequence[str], event_lines: Sequence[str]) -> Sequence[str]:
    """Return the lines that came after *shown* in a window that drops its oldest lines."""
    if not shown:
        return event_lines
    last = shown[-1]
    for position in range(len(event_lines) - 1, -1, -1):
        if event_lines[position] == last:
            return event_lines[position + 1 :]
    return event_lines


def open_console() -> Console:
    """Return the console of the standard output."""
    console = Console(highlight=False)
    if not console.width:  # COLUMNS=0, with which nothing at all would be shown
        console.width = _USUAL_COLUMNS
    return console


def save_dashboard(
    path: Path, state: Dashboard, *, elapsed_s: float, duration_s: float, step: str
) -> None:
    """Write the live view of one moment as an SVG file."""
    console = Console(record=True, width=150, file=io.StringIO(), force_terminal=True)
    console.print(dashboard(state, elapsed_s=elapsed_s, duration_s=duration_s, step=step))
    # Without the web font that rich names, so that the image loads nothing.
    svg = console.export_svg(title="make demo")
    path.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))
