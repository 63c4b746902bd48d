"""Moves as lines: ages as kubectl writes them, and one line for each change."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from cli.printers.move_lines import age, change_line, move_lines, move_table
from cli.printers.text import Tone
from fracgpu.state.move_object import Move, MovePhase, MoveReason
from tests.support.moves import move_of

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def made(ago: timedelta, phase: MovePhase = MovePhase.PLANNED) -> Move:
    move = move_of(phase=phase)
    meta = msgspec.structs.replace(move.metadata, creation_timestamp=NOW - ago)
    return msgspec.structs.replace(move, metadata=meta)


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=0), "0s"),
        (timedelta(seconds=59.9), "59s"),
        (timedelta(minutes=60), "1h"),
        (timedelta(minutes=59), "59m"),
        (timedelta(hours=47), "1d"),
        (timedelta(seconds=-5), "0s"),  # the API server's clock may be ahead of ours
    ],
)
def test_an_age_has_one_unit(ago: timedelta, text: str) -> None:
    assert age(made(ago), now=NOW) == text


def test_a_move_without_a_time_has_no_age() -> None:
    assert age(move_of(), now=NOW) == "-"


def test_a_move_that_went_wrong_has_the_tone_of_trouble() -> None:
    tones = {
        phase: list(move_table([made(timedelta(0), phase)], now=NOW))[1].tone
        for phase in (MovePhase.PLANNED, MovePhase.ABORTED, MovePhase.DONE)
    }

    assert tones == {
        MovePhase.PLANNED: Tone.PLAIN,
        MovePhase.ABORTED: Tone.BAD,
        MovePhase.DONE: Tone.QUIET,
    }


def test_a_change_is_one_line() -> None:
    move = made(timedelta(0), MovePhase.SURGING)

    line = change_line(move, gone=False, now=NOW).text
    assert line == "12:00:00  team-a/web-1  node-1/0 -> node-2/0  Surging"
    assert change_line(move, gone=True, now=NOW).text.endswith("deleted")


def test_a_new_move_has_no_history_yet() -> None:
    lines = [line.text for line in move_lines(made(timedelta(0)), now=NOW)]

    assert lines[0] == "team-a/web-1: Planned"
    assert not any("SINCE" in line for line in lines)


HOT = "card gpu-node-3/0 is busy 94% of the time; card gpu-node-3/1 has room"
LONG = "burner-wvdj2lk6hc-4kf4w"


def a_long_move() -> Move:
    move = move_of(
        "20261123-210411-df7bf600",
        pod=("team-with-a-long-name", LONG, "u"),
        source=("gpu-node-3", "GPU-a"),
        target=("gpu-node-4", "GPU-b"),
        phase=MovePhase.REPLACEMENT_READY,
    )
    spec = msgspec.structs.replace(move.spec, reason=MoveReason(message=HOT))
    return msgspec.structs.replace(
        move, spec=spec, status=msgspec.structs.replace(move.status, result="no-longer-needed")
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_shows_phase_result_and_the_whole_reason(width: int) -> None:
    lines = [line.text for line in move_table([a_long_move()], now=NOW, width=width)]

    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for word in ("ReplacementReady", "no-longer-needed", HOT, "20261123-210411-df7bf600"):
        assert word in text
    assert lines[0].split() == ["AGE", "PHASE", "RESULT", "POD"]


def test_a_terminal_that_is_wide_enough_shows_one_line_for_each_move() -> None:
    head, row = move_table([a_long_move()], now=NOW, width=250)

    assert head.text.split()[0] == "NAME"
    assert row.text.endswith(HOT)
