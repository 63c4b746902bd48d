"""Pictures and reports as rich tables; pure: values in, renderables out."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fracgpu.units import format_mib
from simulator.demo.picture import CardPicture, NodePicture, Picture
from simulator.demo.verdict import Promise

_BAR_CELLS: Final = 32
_NEWS_LINES: Final = 9
_COLOURS: Final = ("cyan", "magenta", "green", "blue", "yellow", "bright_cyan", "bright_magenta")
_WARM_RATIO: Final = 0.5


def dashboard(picture: Picture, *, elapsed_s: float, duration_s: float, step: str) -> Group:
    """Draw the whole screen of the running demo."""
    return Group(
        _head(picture, elapsed_s=elapsed_s, duration_s=duration_s, step=step),
        *(_node(node, hot_line=picture.hot_line) for node in picture.nodes),
        Panel(_news(picture.news), title="what happened", title_align="left", border_style="dim"),
    )


def promises(results: Sequence[Promise]) -> Table:
    """Draw the verdict, one promise a row."""
    table = Table(title="Promises", title_justify="left", show_lines=False, expand=False)
    table.add_column("")
    table.add_column("promise")
    table.add_column("figures", overflow="fold")
    for promise in results:
        mark = Text("kept", style="green") if promise.held else Text("BROKEN", style="bold red")
        table.add_row(mark, promise.name, promise.detail)
    return table


def card_line(card: CardPicture, *, hot_line: float) -> tuple[Text, Text, Text, Text]:
    """Draw one card: name, bar of slices, MiB held, measured heat."""
    name = Text(f"{card.index} {_short_model(card.model)}")
    if card.cordoned:
        name.append(" set aside", style="red")
    held = Text(f"{format_mib(card.held_mib):>9} / {format_mib(card.capacity_mib)}")
    return name, _bar(card), held, _heat(card.busy, hot_line=hot_line)


def _head(picture: Picture, *, elapsed_s: float, duration_s: float, step: str) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(ratio=1)
    table.add_column(justify="right")
    roles = Text()
    for name, up in picture.roles:
        roles.append("● " if up else "○ ", style="green" if up else "bold red")
        roles.append(f"{name}  ")
    pods = Text(f"{picture.pods_running} of {picture.pods_expected} pods running", style="bold")
    table.add_row(Text("FracGPU  ", style="bold").append(step, style="italic"), pods)
    bar: RenderableType = ProgressBar(total=duration_s, completed=min(elapsed_s, duration_s))
    table.add_row(bar, Text(f"{elapsed_s:.0f} s of {duration_s:.0f} s"))
    table.add_row(roles, Text(""))
    return table


def _node(node: NodePicture, *, hot_line: float) -> Panel:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=26, no_wrap=True)
    table.add_column(width=_BAR_CELLS + 2, no_wrap=True)
    table.add_column(width=22, no_wrap=True)
    table.add_column(width=18, no_wrap=True)
    table.add_column(ratio=1, no_wrap=True)
    for card in node.cards:
        name, bar, held, heat = card_line(card, hot_line=hot_line)
        table.add_row(name, bar, held, heat, _pods(card))
    return Panel(table, title=node.name, title_align="left", border_style="dim")


def _bar(card: CardPicture) -> Text:
    bar = Text().append("▕", style="dim")
    filled = 0
    held = 0
    for part in card.slices:
        held += part.mib
        upto = min(_BAR_CELLS, round(_BAR_CELLS * held / card.capacity_mib))
        cells = max(upto - filled, 1 if filled < _BAR_CELLS else 0)
        bar.append("█" * (cells - 1) + "▉" if cells else "", style=_colour(part.pod))
        filled += cells
    bar.append("·" * (_BAR_CELLS - filled), style="dim")
    return bar.append("▏", style="dim")


def _heat(busy: float | None, *, hot_line: float) -> Text:
    if busy is None:
        return Text("heat unknown", style="dim")
    style = "bold red" if busy >= hot_line else "yellow" if busy >= _WARM_RATIO else "green"
    cells = round(8 * min(1.0, busy))
    return Text(f"{'▮' * cells}{'▯' * (8 - cells)} {busy:4.0%}", style=style)


def _pods(card: CardPicture) -> Text:
    text = Text()
    for part in card.slices:
        text.append(f"{part.pod} ", style=_colour(part.pod))
    return text


def _news(news: Sequence[str]) -> Text:
    lines = [line.replace("\n", " ") for line in news[-_NEWS_LINES:]]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _colour(pod: str) -> str:
    owner = pod.partition("-")[0]
    return _COLOURS[sum(owner.encode()) % len(_COLOURS)]


def _short_model(model: str) -> str:
    return model.removeprefix("NVIDIA ").removeprefix("NVIDIA-")
