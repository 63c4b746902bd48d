"""The files and settings of a built image, and programs run from it by a real runc."""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

_LIMIT_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """An image's root file system and how its containers start."""

    root: Path
    env: Sequence[str]
    user: str
    entrypoint: Sequence[str]
    compressed_bytes: int = 0


def unpack(archive: Path, folder: Path) -> Unpacked:
    """Unpack this machine's image of an OCI archive."""
    root = folder / "root"
    root.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        (outer,) = _json(tar, "index.json")["manifests"]
        (described,) = _json(tar, _blob(outer["digest"]))["manifests"]
        manifest = _json(tar, _blob(described["digest"]))
        config = _json(tar, _blob(manifest["config"]["digest"]))
        layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
        sizes = [tar.getmember(name).size for name in layers]
        for name in layers:
            with tarfile.open(fileobj=tar.extractfile(name)) as layer:
                layer.extractall(root, filter="fully_trusted")  # noqa: S202 - our own image
    settings = config["config"]
    return Unpacked(
        root=root,
        env=settings["Env"],
        user=settings["User"],
        entrypoint=settings["Entrypoint"],
        compressed_bytes=sum(sizes),
    )


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(tar: tarfile.TarFile, name: str) -> Any:
    found = tar.extractfile(name)
    assert found is not None
    return json.loads(found.read())


def run_in(image: Unpacked, *words: str, uid: int) -> subprocess.CompletedProcess[str]:
    """Run the image's entrypoint with *words* as a pod of ``deploy/`` does.

    That is: as *uid*, with a read-only root file system, no capability and no network.
    """
    return _run_command(image, [*image.entrypoint, *words], uid=uid)


def run_python(image: Unpacked, script: str, *, uid: int) -> subprocess.CompletedProcess[str]:
    """Run a script with the image's Python, as :func:`run_in` does."""
    return _run_command(image, ["python", "-c", script], uid=uid)


def _run_command(
    image: Unpacked, command: Sequence[str], *, uid: int
) -> subprocess.CompletedProcess[str]:
    runc = shutil.which("runc")
    if runc is None:
        pytest.skip("runc is not installed")
    with _bundle(image, command, uid=uid) as bundle:
        return subprocess.run(  # noqa: S603 - the runtime of this machine
            [runc, "--root", str(bundle / "state"), "run", "--bundle", str(bundle), str(uuid4())],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )


@contextmanager
def _bundle(image: Unpacked, command: Sequence[str], *, uid: int) -> Iterator[Path]:
    """Write a bundle: https://github.com/opencontainers/runtime-spec/blob/main/config.md ."""
    bundle = image.root.parent / f"bundle-{uuid4()}"
    bundle.mkdir()
    none: list[str] = []
    spaces = ("pid", "mount", "ipc", "uts", "network")
    tmpfs = {"type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"]}
    spec = {
        "ociVersion": "1.0.2",
        "root": {"path": str(image.root), "readonly": True},
        "process": {
            "user": {"uid": uid, "gid": uid},
            "args": list(command),
            "env": list(image.env),
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(
                ("bounding", "effective", "permitted", "inheritable", "ambient"), none
            ),
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", **tmpfs},
            {"destination": "/tmp", **tmpfs},  # noqa: S108 - the container's own
        ],
        "linux": {"namespaces": [{"type": one} for one in spaces]},
    }
    (bundle / "config.json").write_text(json.dumps(spec))
    try:
        yield bundle
    finally:
        shutil.rmtree(bundle)
