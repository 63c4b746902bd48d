"""``make image``: which builder is taken, and the time that the image has."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.image.__main__ import (
    NoBuilderError,
    chosen_builder,
    dockerfile_command,
    main,
    source_epoch,
)
from tools.image.commands import CommandError
from tools.manifests.images import images

ROOT = Path(__file__).parents[3]


def test_debians_packages_are_taken_where_they_can_be_and_a_daemon_where_not() -> None:
    assert chosen_builder("auto", lambda _name: True) == "debian"
    assert chosen_builder("auto", lambda name: name in ("docker", "podman")) == "docker"
    assert chosen_builder("auto", lambda name: name == "buildah") == "buildah"
    assert chosen_builder("podman", lambda _name: True) == "podman"


@pytest.mark.parametrize("wanted", ["auto", "docker"])
def test_a_machine_that_can_build_nothing_is_told_what_to_install(wanted: str) -> None:
    with pytest.raises(NoBuilderError, match="apt-get install mmdebstrap"):
        chosen_builder(wanted, lambda _name: False)


@pytest.mark.parametrize("builder", ["docker", "podman", "buildah"])
def test_a_daemon_builds_the_dockerfile_for_every_platform(builder: str) -> None:
    command = dockerfile_command(builder, ["amd64", "arm64"], images()[0], Path("out"))

    assert command[0] == builder
    assert "--platform=linux/amd64,linux/arm64" in command
    assert command[-1] == "."
    assert any(images()[0] in word for word in command)


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
