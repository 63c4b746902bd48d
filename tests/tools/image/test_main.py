"""``make image``: what it needs, and the time that the image has."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.image.__main__ import (
    main,
    source_epoch,
)
from tools.image.commands import CommandError

ROOT = Path(__file__).parents[3]


def test_a_machine_without_mmdebstrap_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert main(["--platform", "amd64"]) == 1
    assert "apt-get install mmdebstrap" in capsys.readouterr().err


def test_the_image_is_as_old_as_its_sources(tmp_path: Path) -> None:
    assert source_epoch({"SOURCE_DATE_EPOCH": "12"}, tmp_path) == 12
    with pytest.raises(CommandError, match="SOURCE_DATE_EPOCH is 'now'; want seconds since 1970"):
        source_epoch({"SOURCE_DATE_EPOCH": "now"}, ROOT)
    with pytest.raises(CommandError, match="set SOURCE_DATE_EPOCH"):
        source_epoch({"GIT_DIR": str(tmp_path)}, tmp_path)


def test_of_a_checkout_it_is_the_last_commits_time() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    words = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603

    assert source_epoch({}, ROOT) == int(done.stdout)


def test_a_platform_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--platform", "vax"])
    assert "invalid choice: 'vax'" in capsys.readouterr().err
