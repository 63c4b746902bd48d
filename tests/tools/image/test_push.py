"""The README's commands clone the repository, and push the image with every architecture."""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.documented import documented
from tests.support.processes import output_of
from tests.support.registry import Registry
from tests.tools.image.test_oci import NAME, SETTINGS, packed, two_roots
from tools.image.oci import write_archive

ROOT = Path(__file__).parents[3]


async def shell(command: str, *, at: Path, limit_s: float = 60) -> tuple[int | None, str]:
    # By these, `make test` would have the make in here tell its folder and take its options.
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=at,
        env={**own, "GIT_TERMINAL_PROMPT": "0"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await output_of(process, limit_s=limit_s)
    return process.returncode, out.decode()


async def ran(command: str, *, at: Path, limit_s: float = 60) -> str:
    code, out = await shell(command, at=at, limit_s=limit_s)
    assert code == 0, f"{command}\n{out}"
    return out


def with_words(command: str, words: Mapping[str, str]) -> str:
    for word, own in words.items():
        assert word in command
        command = command.replace(word, own)
    return command


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


async def cloned(tmp_path: Path) -> Path:
    """Run the README's first command in an empty folder; return the clone."""
    needs("git", "make")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    clone, *_ = documented("README.md", "use-it")
    out = await ran(with_words(clone, {"REPOSITORY": str(ROOT)}) + " && pwd", at=tmp_path)
    clone_dir = Path(out.splitlines()[-1])
    # What is not committed yet is tested too.
    shutil.copy(ROOT / "Makefile", clone_dir)
    return clone_dir


async def test_the_commands_of_the_readme_clone_and_push_every_architecture(
    tmp_path: Path,
) -> None:
    needs("skopeo")
    clone = await cloned(tmp_path)
    _, push, *_ = documented("README.md", "use-it")
    first, second = two_roots(tmp_path)
    (second / "etc/passwd").write_text("another")
    layers = {
        "amd64": [packed(first, tmp_path / "amd.tar.gz")],
        "arm64": [packed(second, tmp_path / "arm.tar.gz")],
    }
    # What make image has built: tests/e2e/test_real_image.py does that, and runs it.
    archive = clone / "build/image/fracgpu-0.1.0.oci.tar"
    archive.parent.mkdir(parents=True)
    digest = write_archive(archive, layers, SETTINGS, name=NAME)

    registry = Registry()
    async with registry.serve():
        line = with_words(push, {"registry.example.com": registry.address})
        # The registry of the test has no certificate.
        await ran(f"{line} --assume-old=image SKOPEO=--dest-tls-verify=false", at=clone)

    assert set(registry.manifests) > {"0.1.0", digest}
    pushed = json.loads(registry.manifests["0.1.0"])
    assert [one["platform"]["architecture"] for one in pushed["manifests"]] == ["amd64", "arm64"]
    for one in pushed["manifests"]:
        (layer,) = json.loads(registry.manifests[one["digest"]])["layers"]
        assert layer["digest"] in registry.blobs


async def test_make_push_builds_the_image_that_make_image_builds() -> None:
    needs("make")

    output = await ran("make --dry-run push REGISTRY=registry.example.com/team", at=ROOT)

    build, push = output.index("-m tools.image"), output.index("skopeo copy --all")
    assert build < push
    assert "docker://registry.example.com/team/fracgpu:0.1.0" in output


async def test_without_a_registry_or_an_archive_nothing_is_pushed_and_a_sentence_says_why(
    tmp_path: Path,
) -> None:
    needs("skopeo")
    clone = await cloned(tmp_path)

    code, output = await shell("make push", at=clone)
    assert (code, output.splitlines()[0]) == (
        2,
        "make push: want REGISTRY=registry.example.com/team",
    )
    code, output = await shell("make push REGISTRY=x --assume-old=image", at=clone)
    assert code == 2
    assert "build/image/fracgpu-0.1.0.oci.tar is missing" in output
