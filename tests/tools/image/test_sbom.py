"""The bill of materials: valid, complete, and the same for the same image."""

import json
from pathlib import Path
from typing import Any

from tests.support.bill import why_not_valid
from tools.image.debian import DebianPackage
from tools.image.sbom import write_sbom
from tools.image.wheels import SITE

EPOCH = 1_700_000_000
LIBC = DebianPackage(
    name="libc6",
    version="2.36-9+deb12u14",
    architecture="amd64",
    source="glibc",
    sha256="ab" * 32,
    control="Package: libc6\n",
)


def a_root(folder: Path) -> Path:
    for name, lines in {
        "fracgpu-0.1.0": ("Requires-Dist: Quick.JSON>=1", "Requires-Dist: absent; extra == 'x'"),
        "quick_json-1.5": ("License-Expression: MIT",),
    }.items():
        package, _, version = name.partition("-")
        info = folder / SITE / f"{name}.dist-info"
        info.mkdir(parents=True)
        head = ("Metadata-Version: 2.4", f"Name: {package.replace('_', '.')}")
        (info / "METADATA").write_text("\n".join((*head, f"Version: {version}", *lines, "")))
    return folder


def written(tmp_path: Path, *, architecture: str = "amd64") -> str:
    target = tmp_path / f"{architecture}.cdx.json"
    root = tmp_path / "root"
    write_sbom(
        target,
        root=root if root.exists() else a_root(root),
        debian=[LIBC],
        architecture=architecture,
        epoch=EPOCH,
    )
    return target.read_text()


def test_it_is_valid_cyclonedx(tmp_path: Path) -> None:
    assert why_not_valid(written(tmp_path)) is None


def test_it_lists_python_and_debian_packages_and_what_needs_what(tmp_path: Path) -> None:
    found: dict[str, Any] = json.loads(written(tmp_path))

    assert {one["purl"] for one in found["components"]} == {
        "pkg:pypi/fracgpu@0.1.0",
        "pkg:pypi/quick-json@1.5",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64&distro=bookworm",
    }
    needs = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    assert needs["pkg:pypi/fracgpu@0.1.0"] == ["pkg:pypi/quick-json@1.5"]
    (libc,) = [one for one in found["components"] if one["name"] == "libc6"]
    assert libc["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert found["metadata"]["component"]["type"] == "container"


def test_the_same_image_has_the_same_bill_and_another_one_another(tmp_path: Path) -> None:
    first = written(tmp_path)

    assert written(tmp_path) == first
    assert json.loads(first)["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    other = json.loads(written(tmp_path, architecture="arm64"))
    assert other["serialNumber"] != json.loads(first)["serialNumber"]
