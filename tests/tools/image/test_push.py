"""The README's one line pushes the image, with every architecture, to a registry."""

import asyncio
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.processes import told_by
from tests.support.registry import Registry
from tests.tools.image.test_oci import NAME, SETTINGS, packed, two_roots
from tools.image.oci import write_archive

ROOT = Path(__file__).parents[3]


async def test_the_line_of_the_readme_pushes_every_architecture(tmp_path: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    (line,) = re.findall(r"make image && (skopeo .+)", (ROOT / "README.md").read_text())
    first, second = two_roots(tmp_path)
    (second / "etc/passwd").write_text("another")
    layers = {
        "amd64": [packed(first, tmp_path / "amd.tar.gz")],
        "arm64": [packed(second, tmp_path / "arm.tar.gz")],
    }
    archive = tmp_path / "build/image/fracgpu-0.1.0.oci.tar"
    archive.parent.mkdir(parents=True)
    digest = write_archive(archive, layers, SETTINGS, name=NAME)

    async with Registry.serve() as registry:
        program, verb, *words = shlex.split(line.replace("REGISTRY", registry.address))
        push = await asyncio.create_subprocess_exec(
            # The registry of the test has no certificate.
            *(program, verb, "--dest-tls-verify=false", *words),
            cwd=tmp_path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, error = await told_by(push, limit_s=60)

    assert push.returncode == 0, error.decode()
    assert set(registry.manifests) > {"0.1.0", digest}
    pushed = json.loads(registry.manifests["0.1.0"])
    assert [one["platform"]["architecture"] for one in pushed["manifests"]] == ["amd64", "arm64"]
    for one in pushed["manifests"]:
        (layer,) = json.loads(registry.manifests[one["digest"]])["layers"]
        assert layer["digest"] in registry.blobs
