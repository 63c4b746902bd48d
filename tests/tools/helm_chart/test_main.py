"""``make chart`` finds what differs, also what should no longer be there."""

from pathlib import Path

from tools.helm_chart.__main__ import differing


def test_a_file_that_is_missing_changed_or_left_over_differs(tmp_path: Path) -> None:
    for name, text in {"same": "1", "changed": "1", "left": "1", "NOTES.txt": "by hand"}.items():
        (tmp_path / name).write_text(text)

    found = differing({"same": "1", "changed": "2", "missing": "1"}, tmp_path)

    assert found == ["changed", "left", "missing"]
