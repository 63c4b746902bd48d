"""Writes OCI images: layers, configurations and an index, in one archive.

Form: https://github.com/opencontainers/image-spec (image-layout.md, image-index.md, manifest.md,
config.md, layer.md). Nothing in the archive depends on when or by whom it was made.
"""

import gzip
import hashlib
import io
import json
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_CHUNK_BYTES: Final = 1 << 20
# Everybody may write into these, as on any Linux.
_OPEN_FOLDERS: Final = frozenset({"tmp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A packed layer: its compressed file, and what the configuration says of it."""

    file: Path
    digest: str
    diff_id: str
    size: int
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """How a container of the image starts, and when its sources were written."""

    entrypoint: Sequence[str]
    user: str
    epoch: int
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def pack_layer(
    root: Path, target: Path, *, epoch: int, comment: str, compression: int = 6
) -> Layer:
    """Pack all files below *root* into *target*, gzipped, owned by root and dated *epoch*."""
    plain = target.with_suffix("")
    with tarfile.open(plain, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts):
            _add(tar, path, path.relative_to(root).as_posix(), epoch=epoch)
    diff_id = _digest(plain)
    with (
        plain.open("rb") as found,
        target.open("wb") as file,
        gzip.GzipFile(
            filename="", fileobj=file, mode="wb", compresslevel=compression, mtime=0
        ) as packed,
    ):
        shutil.copyfileobj(found, packed, _CHUNK_BYTES)
    plain.unlink()
    return Layer(
        file=target,
        digest=_digest(target),
        diff_id=diff_id,
        size=target.stat().st_size,
        comment=comment,
    )


def _add(tar: tarfile.TarFile, path: Path, name: str, *, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = epoch
    if path.is_symlink():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        tar.addfile(entry)
    elif path.is_dir():
        entry.type = tarfile.DIRTYPE
        entry.mode = 0o1777 if name in _OPEN_FOLDERS else 0o755
        tar.addfile(entry)
    else:
        status = path.stat()
        entry.size = status.st_size
        # Whatever umask this machine has, all files can be read and none can be written.
        entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        with path.open("rb") as file:
            tar.addfile(entry, file)


def write_archive(
    target: Path, images: Mapping[str, Sequence[Layer]], settings: ImageSettings, *, name: str
) -> str:
    """Write one image for each architecture to *target* and return the index's digest.

    Args:
        target: an OCI archive, which skopeo, podman, containerd and Docker 25 read.
        images: the layers of each architecture, the lowest first.
        settings: the same for all of them.
        name: with a tag, as containerd and Docker call the image that they load.
    """
    blobs: dict[str, bytes | Path] = {}
    manifests = []
    for architecture, layers in sorted(images.items()):
        config = _blob(blobs, _CONFIG, _config(architecture, layers, settings))
        for layer in layers:
            blobs[layer.digest] = layer.file
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": config,
            "layers": [
                {"mediaType": _LAYER, "digest": layer.digest, "size": layer.size}
                for layer in layers
            ],
        }
        described = _blob(blobs, _MANIFEST, manifest)
        manifests.append({**described, "platform": {"architecture": architecture, "os": "linux"}})
    inner = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}
    described = _blob(blobs, _INDEX, inner)
    annotations = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    outer = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [{**described, "annotations": annotations}],
    }
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as tar:
        for path, body in _layout(outer, blobs):
            _add_blob(tar, path, body, epoch=settings.epoch)
    partial.replace(target)
    digest: str = described["digest"]
    return digest


def _layout(
    index: Mapping[str, Any], blobs: Mapping[str, bytes | Path]
) -> Iterator[tuple[str, bytes | Path]]:
    yield "oci-layout", _encoded({"imageLayoutVersion": "1.0.0"})
    yield "index.json", _encoded(index)
    for digest, body in sorted(blobs.items()):
        yield f"blobs/{digest.replace(':', '/')}", body


def _add_blob(tar: tarfile.TarFile, path: str, body: bytes | Path, *, epoch: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.mtime, entry.mode = epoch, 0o644
    if isinstance(body, bytes):
        entry.size = len(body)
        tar.addfile(entry, io.BytesIO(body))
        return
    entry.size = body.stat().st_size
    with body.open("rb") as file:
        tar.addfile(entry, file)


def _config(
    architecture: str, layers: Sequence[Layer], settings: ImageSettings
) -> Mapping[str, Any]:
    created = datetime.fromtimestamp(settings.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": settings.user,
            "Env": [f"{key}={value}" for key, value in settings.env.items()],
            "Entrypoint": list(settings.entrypoint),
            "WorkingDir": "/",
            "Labels": dict(settings.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": layer.comment} for layer in layers],
    }


def _blob(blobs: dict[str, bytes | Path], media_type: str, value: Mapping[str, Any]) -> Any:
    body = _encoded(value)
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    blobs[digest] = body
    return {"mediaType": media_type, "digest": digest, "size": len(body)}


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(file: Path) -> str:
    with file.open("rb") as body:
        return f"sha256:{hashlib.file_digest(body, 'sha256').hexdigest()}"
