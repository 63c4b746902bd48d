"""An image is a function of its files: neither time, umask nor order changes its digest."""

import gzip
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tools.image.oci import ImageSettings, Layer, pack_layer, write_archive

EPOCH = 1_700_000_000
NAME = "docker.io/library/fracgpu:0.1.0"
SETTINGS = ImageSettings(
    entrypoint=("fracgpu",), user="65532:65532", epoch=EPOCH, env={"PATH": "/usr/bin"}
)


def a_root(folder: Path, *, names: tuple[str, ...], mode: int, when: int) -> Path:
    """Write the same three files, in another order, at another time, with other modes."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(mode | (0o100 if name == "usr/bin/tool" else 0))
        os.utime(path, (when, when))
    (folder / "bin").symlink_to("usr/bin")
    (folder / "tmp").mkdir()
    return folder


def two_roots(tmp_path: Path) -> tuple[Path, Path]:
    names = ("usr/bin/tool", "etc/passwd", "usr/lib/a.so")
    first = a_root(tmp_path / "one", names=names, mode=0o600, when=1)
    second = a_root(tmp_path / "two", names=names[::-1], mode=0o664, when=2_000_000)
    return first, second


def packed(root: Path, target: Path) -> Layer:
    return pack_layer(root, target, epoch=EPOCH, comment="files")


def test_the_same_files_make_the_same_image_whenever_and_by_whomever_it_is_built(
    tmp_path: Path,
) -> None:
    digests, archives = [], []
    for number, root in enumerate(two_roots(tmp_path)):
        layer = packed(root, tmp_path / f"{number}.tar.gz")
        archive = tmp_path / f"{number}.oci.tar"
        digests.append(write_archive(archive, {"amd64": [layer]}, SETTINGS, name=NAME))
        archives.append(archive.read_bytes())

    assert digests[0] == digests[1]
    assert archives[0] == archives[1]


def test_everything_belongs_to_root_and_nobody_may_write_but_in_tmp(tmp_path: Path) -> None:
    layer = packed(two_roots(tmp_path)[0], tmp_path / "layer.tar.gz")

    with tarfile.open(layer.file) as tar:
        found = {entry.name: entry for entry in tar}
    assert {(entry.uid, entry.gid, entry.mtime) for entry in found.values()} == {(0, 0, EPOCH)}
    assert {name: oct(entry.mode) for name, entry in found.items() if not entry.issym()} == {
        **dict.fromkeys(("etc", "usr", "usr/bin", "usr/lib", "usr/bin/tool"), "0o755"),
        **dict.fromkeys(("etc/passwd", "usr/lib/a.so"), "0o644"),
        "tmp": "0o1777",
    }
    assert found["bin"].linkname == "usr/bin"
    assert list(found) == sorted(found, key=lambda name: Path(name).parts)


def test_the_index_has_each_architecture_with_its_own_layers(tmp_path: Path) -> None:
    first, second = two_roots(tmp_path)
    (second / "etc/passwd").write_text("another")
    images = {
        "arm64": [packed(second, tmp_path / "arm.tar.gz")],
        "amd64": [packed(first, tmp_path / "amd.tar.gz")],
    }
    archive = tmp_path / "image.oci.tar"

    digest = write_archive(archive, images, SETTINGS, name=NAME)

    with tarfile.open(archive) as tar:
        blobs = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    (outer,) = json.loads(blobs["index.json"])["manifests"]
    assert outer["digest"] == digest
    assert outer["annotations"]["io.containerd.image.name"] == NAME
    inner = json.loads(blob(blobs, digest))
    assert [one["platform"]["architecture"] for one in inner["manifests"]] == ["amd64", "arm64"]
    for one in inner["manifests"]:
        architecture = one["platform"]["architecture"]
        manifest = json.loads(blob(blobs, one["digest"]))
        config = json.loads(blob(blobs, manifest["config"]["digest"]))
        assert config["architecture"] == architecture
        assert config["created"] == "2023-11-14T22:13:20Z"
        assert config["config"]["User"] == "65532:65532"
        (layer,) = manifest["layers"]
        assert layer["digest"] == images[architecture][0].digest
        plain = gzip.decompress(blob(blobs, layer["digest"]))
        assert config["rootfs"]["diff_ids"] == [images[architecture][0].diff_id]
        assert len(plain) > 0


def blob(blobs: dict[str, bytes], digest: str) -> bytes:
    return blobs[f"blobs/{digest.replace(':', '/')}"]


def test_skopeo_reads_the_archive(tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("skopeo is not installed")
    layer = packed(two_roots(tmp_path)[0], tmp_path / "layer.tar.gz")
    archive = tmp_path / "image.oci.tar"
    digest = write_archive(archive, {"amd64": [layer]}, SETTINGS, name=NAME)

    words = [skopeo, "copy", "--all", f"oci-archive:{archive}", f"dir:{tmp_path / 'copy'}"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)  # noqa: S603

    copied = json.loads((tmp_path / "copy/manifest.json").read_text())
    assert copied["manifests"][0]["platform"]["architecture"] == "amd64"
    assert (tmp_path / "copy" / layer.digest.partition(":")[2]).exists()
    assert digest.startswith("sha256:")
