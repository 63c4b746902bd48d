"""Without a terminal each event is printed as one line, once."""

import io

import pytest
from rich.console import Console

from cli.fleet import Fleet, fleet_of
from cli.printers.live import (
    open_console,
    open_fleet_screen,
    open_progress,
    open_screen,
    plain_show,
    show_fleet,
    show_lines,
    show_promises,
)
from cli.printers.text import Line
from simulator.demo.dashboard import Dashboard
from simulator.demo.promises import Promise
from tests.support.core import a_card
from tests.support.explaining import Cluster


def a_dashboard(*event_lines: str) -> Dashboard:
    return Dashboard(
        nodes=(),
        pods_running=0,
        pods_expected=0,
        roles=(),
        hot_line=0.8,
        event_lines=tuple(event_lines),
    )


def test_each_piece_of_news_is_written_once_and_in_order() -> None:
    lines: list[str] = []
    show = plain_show(lines.append)

    show(a_dashboard("one"), elapsed_s=1, duration_s=90, step="starting")
    show(a_dashboard("one", "two"), elapsed_s=2, duration_s=90, step="starting")
    show(a_dashboard("two", "three"), elapsed_s=91, duration_s=90, step="watching")

    assert lines == [
        "[1 s of about 90 s] starting",
        "  one",
        "  two",
        "[91 s, longer than planned] watching",
        "  three",
    ]


def test_news_that_came_all_at_once_is_not_lost_with_the_window() -> None:
    lines: list[str] = []
    show = plain_show(lines.append)
    show(a_dashboard("one"), elapsed_s=1, duration_s=90, step="s")

    show(a_dashboard("eight", "nine"), elapsed_s=2, duration_s=90, step="s")

    assert lines[-2:] == ["  eight", "  nine"]


def test_a_pipe_gets_plain_lines_and_a_plain_verdict() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80)

    with open_screen(console) as show:
        show(a_dashboard("hello [red]"), elapsed_s=1, duration_s=90, step="starting")
    show_promises(console, [Promise(name="no pod was lost", held=True, detail="13 of 13")])

    assert "hello [red]" in out.getvalue()
    assert "kept   no pod was lost: 13 of 13" in out.getvalue()


def test_a_terminal_gets_the_live_view() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True)

    with open_screen(console) as show:
        show(a_dashboard("hello"), elapsed_s=1, duration_s=90, step="starting")

    assert "\x1b[" in out.getvalue()
    assert "what happened" in out.getvalue()


def a_fleet(*, held_mib: int) -> Fleet:
    cluster = Cluster().node("gpu-1", a_card("GPU-a"))
    state = cluster.holder("chat", "gpu-1", "GPU-a", held_mib).state()
    return fleet_of(state.snapshot, state.pods)


def test_a_pipe_gets_the_cards_as_a_table_without_colours_or_wrapping() -> None:
    out = io.StringIO()

    show_fleet(Console(file=out, width=20), a_fleet(held_mib=100))

    assert len(out.getvalue().splitlines()) == 2
    assert "\x1b[" not in out.getvalue()


def test_a_terminal_gets_the_cards_drawn() -> None:
    out = io.StringIO()

    show_fleet(Console(file=out, width=150, force_terminal=True), a_fleet(held_mib=12_000))

    assert "\x1b[" in out.getvalue()
    assert "1 card, 12000 of 24000 MiB held (50%)" in out.getvalue()


def test_following_in_a_pipe_does_not_repeat_what_did_not_change() -> None:
    out = io.StringIO()

    with open_fleet_screen(Console(file=out, width=150)) as show:
        for held_mib in (100, 100, 200):
            show(a_fleet(held_mib=held_mib))

    assert out.getvalue().count("NODE") == 2


def test_following_on_a_terminal_redraws_in_place() -> None:
    out = io.StringIO()

    with open_fleet_screen(Console(file=out, width=150, force_terminal=True)) as show:
        show(a_fleet(held_mib=12_000))

    assert "default/chat 12000" in out.getvalue()


def test_progress_in_a_pipe_is_a_line_for_each_that_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open_progress(quiet=False) as tell:
        for ratio in (0.0, 0.5, 1.0):
            tell("pack", ratio)

    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "pack: done\n")


def test_progress_on_a_terminal_is_a_bar_that_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")

    with open_progress(quiet=False) as tell:
        tell("pack", 0.5)
        tell("pack", 1.0)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "pack" in captured.err
    assert "\x1b[" in captured.err


def test_a_terminal_gets_long_lines_wrapped_at_words_but_for_those_to_copy() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=30, color_system=None)
    command = "  cure: kubectl -n fracgpu-system describe pods"
    text = "error: pods of the webhook do not start"

    show_lines(console, [Line(text=text), Line(text=command, copied=True)])

    assert shown.getvalue().splitlines() == [
        "error: pods of the webhook do", "    not start", command
    ]  # fmt: skip
    piped = io.StringIO()
    show_lines(Console(file=piped, width=30), [Line(text=text)])
    assert piped.getvalue() == f"{text}\n"


def test_a_terminal_that_says_that_it_has_no_columns_is_an_ordinary_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")

    show_lines(open_console(), [Line(text="a card")])

    assert capsys.readouterr().out == "a card\n"
