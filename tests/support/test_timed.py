"""The figures of the steps are written for programs."""

import json
from pathlib import Path

import pytest

from tests.support.timed import TIMINGS_ENV, Steps


def test_each_step_that_ends_is_a_line_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "timings.jsonl"
    monkeypatch.setenv(TIMINGS_ENV, str(file))
    steps = Steps("here")

    with steps.step("quick"):
        pass
    with pytest.raises(ValueError, match="late"), steps.step("failed"):
        raise ValueError("late")
    steps.tell("longest", 12.34)

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["test"], line["step"]) for line in lines] == [
        ("here", "quick"),
        ("here", "longest"),
    ]
    assert lines[1]["seconds"] == 12.3
    assert all(line["loadAverage"] >= 0 and line["cpus"] >= 1 for line in lines)
