"""The screenshots' command."""

import pytest

from tools.page.__main__ import main
from tools.page.chromium import find_chromium


def test_without_a_browser_it_says_where_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert find_chromium() is None
    assert main([]) == 2
    assert "apt-get install chromium" in capsys.readouterr().err
