"""Without a terminal each piece of news is one line, once."""

import io

from rich.console import Console

from cli.live import PlainScreen, open_screen, show_promises
from simulator.demo.picture import Picture
from simulator.demo.verdict import Promise


def a_picture(*news: str) -> Picture:
    return Picture(
        nodes=(), pods_running=0, pods_expected=0, roles=(), hot_line=0.8, news=tuple(news)
    )


def test_each_piece_of_news_is_written_once_and_in_order() -> None:
    lines: list[str] = []
    screen = PlainScreen(lines.append)

    screen.show(a_picture("one"), elapsed_s=1, duration_s=90, step="starting")
    screen.show(a_picture("one", "two"), elapsed_s=2, duration_s=90, step="starting")
    screen.show(a_picture("two", "three"), elapsed_s=3, duration_s=90, step="watching")

    assert lines == ["[  1/90 s] starting", "  one", "  two", "[  3/90 s] watching", "  three"]


def test_news_that_came_all_at_once_is_not_lost_with_the_window() -> None:
    lines: list[str] = []
    screen = PlainScreen(lines.append)
    screen.show(a_picture("one"), elapsed_s=1, duration_s=90, step="s")

    screen.show(a_picture("eight", "nine"), elapsed_s=2, duration_s=90, step="s")

    assert lines[-2:] == ["  eight", "  nine"]


def test_a_pipe_gets_plain_lines_and_a_plain_verdict() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80)

    with open_screen(console) as screen:
        screen.show(a_picture("hello [red]"), elapsed_s=1, duration_s=90, step="starting")
    show_promises(console, [Promise(name="no pod was lost", held=True, detail="13 of 13")])

    assert "hello [red]" in out.getvalue()
    assert "kept   no pod was lost: 13 of 13" in out.getvalue()


def test_a_terminal_gets_the_live_view() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True)

    with open_screen(console) as screen:
        screen.show(a_picture("hello"), elapsed_s=1, duration_s=90, step="starting")

    assert "\x1b[" in out.getvalue()
    assert "what happened" in out.getvalue()
