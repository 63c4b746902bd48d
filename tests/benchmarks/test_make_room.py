"""The benchmark of room-making moves: what its figures are made of."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.make_room import Case, measure, summary
from simulator.replay.departures import LARGEST, DeparturesResult


def a_result(late: int, moves: int) -> DeparturesResult:
    return DeparturesResult(
        policy="pack",
        arrived=Counter({LARGEST: 10, "share": 90}),
        late=Counter({LARGEST: late}),
        moves=moves,
        plans=moves,
        helped=moves - 1,
        hours=2.0,
        allocated_percent=80.0,
    )


def test_the_figures_of_a_case_count_all_its_runs_together() -> None:
    found = {
        figure.name: (figure.value, figure.note.partition(";")[0])
        for figure in summary("x", [a_result(6, 3), a_result(2, 1)])
    }
    assert found["x.late_8_cards"] == (40.0, "8 of 20")
    assert found["x.moves_per_h"][0] == 1.0
    assert found["x.moves_per_arrival"] == (2.0, "4 of 200")
    assert found["x.plans_that_helped"] == (2.0, "of 4")
    assert found["x.allocated"][0] == 80.0


def test_without_the_trace_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRACGPU_SHARED", str(tmp_path))
    assert list(measure(Case(policy="pack", moves_per_hour=0), [1])) == []
    assert "no openb trace" in capsys.readouterr().err
