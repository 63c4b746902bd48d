"""The benchmark of resources without what it needs."""

import pytest

from benchmarks.resources.benchmark import SLOW, figures
from simulator.envtest.control_plane import ASSETS_ENV


def test_without_a_real_control_plane_it_says_that_it_needs_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(ASSETS_ENV, raising=False)

    assert list(figures()) == []
    assert f"resources needs {ASSETS_ENV}" in capsys.readouterr().err
    assert SLOW
