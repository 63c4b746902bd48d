"""Assembles the image for several architectures and writes it with its bills of materials."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tools.image import bytecode, debian, wheels
from tools.image.commands import CommandError
from tools.image.debian import DebianPackage
from tools.image.elf import missing_libraries
from tools.image.oci import ImageSettings, Layer, pack_layer, write_archive
from tools.image.platforms import PYTHON, Platform, own_platform
from tools.image.sbom import write_sbom

# Nobody's user: distroless images call it nonroot. Manifests of the node agent say root.
USER: Final = "65532:65532"
_PATH: Final = "/usr/local/bin:/usr/bin"
_ENV: Final = {
    "PATH": _PATH,
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
}
# Never with python -O: assertions check what cannot happen.
_ENTRYPOINT: Final = ("fracgpu",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to build.

    Attributes:
        source: the repository.
        folder: where the results go.
        platforms: the architectures.
        name: of the image, with its tag.
        epoch: the time of the sources, in seconds since 1970 (SOURCE_DATE_EPOCH).
        compression: gzip's level, 1 to 9: the digests depend on it.
        cache: keeps Debian's packages between builds; empty: they are fetched each time.
    """

    source: Path
    folder: Path
    platforms: Sequence[Platform]
    name: str
    epoch: int
    compression: int = 6
    cache: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was built: the archive, the digest of its index, and each architecture's size."""

    archive: Path
    digest: str
    compressed_bytes: dict[str, int]
    sboms: Sequence[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Root:
    """The layers of one architecture, unpacked."""

    platform: Platform
    system: Path
    locked: Path
    ours: Path
    packages: Sequence[DebianPackage]


def build(order: Order, say: Callable[[str], None]) -> Result:
    """Build the image.

    Args:
        order: what to build.
        say: is told of each step.

    Raises:
        CommandError: a package could not be fetched or unpacked.
        UnknownPlatformError: this machine cannot compile for the image.
    """
    order.folder.mkdir(parents=True, exist_ok=True)
    own = own_platform()
    with tempfile.TemporaryDirectory(prefix="fracgpu-image-") as folder:
        work = Path(folder)
        roots = [
            _unpack(order, platform, work / platform.name, say) for platform in order.platforms
        ]
        interpreter = next((root.system for root in roots if root.platform == own), None)
        if interpreter is None:
            interpreter = work / "interpreter"
            _unpack_debian(order, own, interpreter)
        layers, sboms = {}, []
        for root in roots:
            say(f"{root.platform.name}: compiling and packing")
            _compile(root, interpreter, own)
            layers[root.platform.name] = _pack(order, root, work)
            sboms.append(_write_sbom(order, root, work))
        archive = order.folder / f"{order.name.rpartition('/')[2].replace(':', '-')}.oci.tar"
        digest = write_archive(archive, layers, _settings(order), name=order.name)
    sizes = {name: sum(layer.size for layer in found) for name, found in layers.items()}
    return Result(archive=archive, digest=digest, compressed_bytes=sizes, sboms=sboms)


def _unpack(order: Order, platform: Platform, work: Path, say: Callable[[str], None]) -> _Root:
    say(f"{platform.name}: unpacking Debian's packages")
    root = _Root(
        platform=platform,
        system=work / "system",
        locked=work / "locked",
        ours=work / "ours",
        packages=_unpack_debian(order, platform, work / "system"),
    )
    say(f"{platform.name}: installing {wheels.LOCK}")
    wheels.install_locked(order.source, platform, root.locked)
    wheels.install_ours(order.source, root.ours, epoch=order.epoch)
    _check_libraries(root)
    return root


def _check_libraries(root: _Root) -> None:
    """Fail if a library is missing: an image of another architecture cannot be tried here."""
    missing = missing_libraries([root.system, root.locked])
    if missing:
        listed = ", ".join(f"{name} (for {path})" for name, path in sorted(missing.items()))
        raise CommandError(f"{root.platform.name}: the image lacks {listed}")


def _unpack_debian(order: Order, platform: Platform, root: Path) -> Sequence[DebianPackage]:
    root.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="fracgpu-debs-") as folder:
        kept = (
            Path(folder)
            if order.cache is None
            else order.cache / f"{platform.name}-{debian.packages_key()}"
        )
        found = sorted(kept.glob("*.deb")) or debian.fetch(platform, kept)
        return debian.unpack(found, platform, root)


def _compile(root: _Root, interpreter: Path, own: Platform) -> None:
    for layer, folder in (
        (root.system, f"usr/lib/python{PYTHON}"),
        (root.locked, wheels.SITE),
        (root.ours, wheels.SITE),
    ):
        bytecode.compile_folder(layer, folder, python_root=interpreter, platform=own)


def _pack(order: Order, root: _Root, work: Path) -> list[Layer]:
    parts = (
        (root.system, "Debian packages"),
        (root.locked, wheels.LOCK),
        (root.ours, "FracGPU"),
    )
    return [
        pack_layer(
            folder,
            work / f"{root.platform.name}-{folder.name}.tar.gz",
            epoch=order.epoch,
            comment=f"make image: {comment}",
            compression=order.compression,
        )
        for folder, comment in parts
    ]


def _write_sbom(order: Order, root: _Root, work: Path) -> Path:
    """Write the bill of materials of both upper layers' packages, and Debian's."""
    together = work / f"{root.platform.name}-together"
    for layer in (root.locked, root.ours):
        for found in (layer / wheels.SITE).glob("*.dist-info"):
            shutil.copytree(found, together / wheels.SITE / found.name)
    target = order.folder / f"sbom-{root.platform.name}.cdx.json"
    write_sbom(
        target,
        root=together,
        debian=root.packages,
        architecture=root.platform.name,
        epoch=order.epoch,
    )
    return target


def _settings(order: Order) -> ImageSettings:
    created = datetime.fromtimestamp(order.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ImageSettings(
        entrypoint=_ENTRYPOINT,
        user=USER,
        epoch=order.epoch,
        env=_ENV,
        labels={
            "org.opencontainers.image.title": "FracGPU",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.version": order.name.rpartition(":")[2],
            "org.opencontainers.image.created": created,
        },
    )
