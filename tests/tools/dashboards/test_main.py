"""The dashboards in the repository are what ``make dashboards`` writes."""

import shutil
from pathlib import Path

from tools.dashboards.__main__ import FOLDER, differing


def test_the_dashboards_are_what_make_dashboards_writes() -> None:
    assert differing(FOLDER) == [], "tools/dashboards changed: run `make dashboards`"


def test_a_file_that_is_missing_changed_or_left_over_differs(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.json"):
        shutil.copy(file, tmp_path)
    (tmp_path / "fracgpu-card.json").unlink()
    (tmp_path / "fracgpu-pod.json").write_text("{}\n")
    (tmp_path / "old.json").write_text("{}\n")

    assert differing(tmp_path) == ["fracgpu-card.json", "fracgpu-pod.json", "old.json"]
