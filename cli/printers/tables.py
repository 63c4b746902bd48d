"""Views and reports as rich renderables; nothing here prints."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.printers.cells import safe
from cli.printers.text import Line
from simulator.demo.dashboard import CardPanel, Dashboard, NodePanel, StoryLine
from simulator.demo.promises import Promise

_BAR_CELLS: Final = 32
_SMALL_BAR_CELLS: Final = 20
_FULL_COLUMNS: Final = 108
_HEAD_ROWS: Final = 3
_FEWEST_EVENT_LINES: Final = 3
_EVENT_LINES: Final = 9
_COLOURS: Final = ("cyan", "magenta", "green", "blue", "yellow", "bright_cyan", "bright_magenta")
_WARM_RATIO: Final = 0.5


def dashboard(
    state: Dashboard,
    *,
    elapsed_s: float,
    duration_s: float,
    step: str,
    room: tuple[int, int] | None = None,
) -> Group:
    """Return the whole screen of the running demo.

    If the terminal's *room* (columns, rows) is too small, each card is one short line, so that the
    events and the heat of each card can still be read in 80 by 24.
    """
    tall = _HEAD_ROWS + sum(2 + len(node.cards) for node in state.nodes) + _EVENT_LINES + 2
    tall += len(state.story) + 2 if state.story else 0
    if room is not None and (room[0] < _FULL_COLUMNS or room[1] <= tall):
        return _small(state, elapsed_s=elapsed_s, duration_s=duration_s, step=step, rows=room[1])
    return Group(
        _head(state, elapsed_s=elapsed_s, duration_s=duration_s, step=step),
        *(_node(node, state) for node in state.nodes),
        *((_titled("refused and moved", _story_text(state.story)),) if state.story else ()),
        _titled("what happened", _event_text(state.event_lines)),
    )


def _titled(title: str, text: Text) -> Panel:
    return Panel(text, title=title, title_align="left", border_style="dim")


def _small(state: Dashboard, *, elapsed_s: float, duration_s: float, step: str, rows: int) -> Group:
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right")
    bar: RenderableType = ProgressBar(total=duration_s, completed=min(elapsed_s, duration_s))
    pods = f"{state.pods_running} of {state.pods_expected} pods"
    head.add_row(bar, Text(f"{elapsed(elapsed_s, duration_s)}  {pods}"))
    cards = Table.grid(padding=(0, 1), expand=True)
    for width in (13, 14, _SMALL_BAR_CELLS + 2, 4):
        cards.add_column(width=width, no_wrap=True)
    cards.add_column(ratio=1, no_wrap=True)
    colours = palette(state)
    for node in state.nodes:
        for card in node.cards:
            mark = Text("  ").join([*_mark(card), Text()])
            cards.add_row(
                f"{node.name}/{card.index}",
                _short_model(card.model),
                _bar(card, colours, cells=_SMALL_BAR_CELLS),
                Text(" ?") if card.busy is None else _percent(card.busy, state.hot_line),
                mark.append_text(_pods(card, colours)),
            )
    left = rows - _HEAD_ROWS - sum(len(node.cards) for node in state.nodes) - 1 - len(state.story)
    fewest = 1 if state.story else _FEWEST_EVENT_LINES
    title = Text("FracGPU  ", style="bold", no_wrap=True, overflow="ellipsis")
    return Group(
        title.append(step, style="italic"),
        head,
        _roles(state.roles),
        cards,
        *((_story_text(state.story, short=True),) if state.story else ()),
        _event_text(state.event_lines, lines=max(fewest, left)),
    )


def promises(results: Sequence[Promise]) -> Table:
    """Return the verdict as a table with one promise per row."""
    table = Table(title="Promises", title_justify="left", show_lines=False, expand=False)
    table.add_column("")
    table.add_column("promise")
    table.add_column("figures", overflow="fold")
    for promise in results:
        mark = Text("kept", style="green") if promise.held else Text("BROKEN", style="bold red")
        table.add_row(mark, promise.name, promise.detail)
    return table


def coloured(lines: Iterable[Line]) -> Text:
    """Return the lines in the colours of their tones, without characters that steer a terminal."""
    text = Text()
    for line in lines:
        text.append(safe(line.text) + "\n", style=line.tone.value)
    return text


def card_line(
    card: CardPanel, *, hot_line: float, colours: Mapping[str, str]
) -> tuple[Text, Text, Text, Text, Text]:
    """Return the cells of one card: name, bar of slices, memory held, heat, owners of slices."""
    name = Text(f"{card.index} {_short_model(card.model)}")
    for mark in _mark(card):
        name.append(" ").append_text(mark)
    held = Text(f"{card.held_mib / 1024:5.1f} / {card.capacity_mib / 1024:.1f} GiB")
    heat = _heat(card.busy, hot_line=hot_line)
    return name, _bar(card, colours), held, heat, _pods(card, colours)


def _mark(card: CardPanel) -> list[Text]:
    """Return what keeps new slices off a card, in a word; nothing if nothing does."""
    if card.cordoned:
        return [Text("cordoned", style="red")]
    return [Text("avoided", style="yellow")] if card.avoided else []


def elapsed(elapsed_s: float, duration_s: float) -> str:
    """Return the time that has passed; a busy machine takes longer than planned."""
    if elapsed_s > duration_s:
        return f"{elapsed_s:.0f} s, longer than planned"
    return f"{elapsed_s:.0f} s of about {duration_s:.0f} s"


def owner(pod: str) -> str:
    """Return the workload of a pod: the first word of its name."""
    return pod.partition("-")[0]


def palette(state: Dashboard) -> Mapping[str, str]:
    """Return a colour for each owner on the screen, the same in every frame."""
    owners = {
        owner(part.pod) for node in state.nodes for card in node.cards for part in card.slices
    }
    return _colours(owners)


def _colours(owners: Iterable[str]) -> Mapping[str, str]:
    return {name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(sorted(owners))}


def _head(state: Dashboard, *, elapsed_s: float, duration_s: float, step: str) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(ratio=1)
    table.add_column(justify="right")
    roles = _roles(state.roles)
    pods = Text(f"{state.pods_running} of {state.pods_expected} pods running", style="bold")
    table.add_row(Text("FracGPU  ", style="bold").append(step, style="italic"), pods)
    bar: RenderableType = ProgressBar(total=duration_s, completed=min(elapsed_s, duration_s))
    table.add_row(bar, Text(elapsed(elapsed_s, duration_s)))
    table.add_row(roles, Text(""))
    return table


def _roles(roles: Sequence[tuple[str, bool]]) -> Text:
    """Return one light for each process, grouped by role."""
    lights: dict[str, list[bool]] = {}
    for name, up in roles:
        lights.setdefault(name.partition("-")[0], []).append(up)
    text = Text()
    for name, states in lights.items():
        for up in states:
            text.append("●" if up else "○", style="green" if up else "bold red")
        text.append(f" {name}   ")
    return text


def _node(node: NodePanel, state: Dashboard) -> Panel:
    colours = palette(state)
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=26, no_wrap=True)
    table.add_column(width=_BAR_CELLS + 2, no_wrap=True)
    table.add_column(width=16, no_wrap=True)
    table.add_column(width=15, no_wrap=True)
    table.add_column(ratio=1, no_wrap=True)
    for card in node.cards:
        table.add_row(*card_line(card, hot_line=state.hot_line, colours=colours))
    return Panel(table, title=node.name, title_align="left", border_style="dim")


def _bar(card: CardPanel, colours: Mapping[str, str], *, cells: int = _BAR_CELLS) -> Text:
    bar = Text().append("▕", style="dim")
    filled = 0
    held = 0
    for part in card.slices:
        held += part.mib
        upto = min(cells, round(cells * held / max(1, card.capacity_mib)))
        mine = max(upto - filled, 1 if filled < cells else 0)
        bar.append("█" * (mine - 1) + "▉" if mine else "", style=colours[owner(part.pod)])
        filled += mine
    bar.append("·" * (cells - filled), style="dim")
    return bar.append("▏", style="dim")


def _heat(busy: float | None, *, hot_line: float) -> Text:
    if busy is None:
        return Text("heat unknown", style="dim")
    cells = round(8 * min(1.0, busy))
    percent = _percent(busy, hot_line)
    return Text(f"{'▮' * cells}{'▯' * (8 - cells)} ", style=percent.style).append_text(percent)


def _percent(busy: float, hot_line: float) -> Text:
    style = "bold red" if busy >= hot_line else "yellow" if busy >= _WARM_RATIO else "green"
    return Text(f"{busy:4.0%}", style=style)


def _pods(card: CardPanel, colours: Mapping[str, str]) -> Text:
    text = Text()
    for name, count in Counter(owner(part.pod) for part in card.slices).items():
        times = f" x{count}" if count > 1 else ""
        text.append(f"{name}{times}  ", style=colours[name])
    return text


def _event_text(event_lines: Sequence[str], *, lines: int = _EVENT_LINES) -> Text:
    last = [line.replace("\n", " ") for line in event_lines[-lines:]]
    return Text("\n".join(last), no_wrap=True, overflow="ellipsis")


def _story_text(story: Sequence[StoryLine], *, short: bool = False) -> Text:
    lines = [line.short if short else line.text for line in story]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _short_model(model: str) -> str:
    return model.removeprefix("NVIDIA ").removeprefix("NVIDIA-")
