"""Container images for tests, built without a daemon: by ``make image``, or by the Dockerfile.

For the Dockerfile's own steps Debian's packages stand in for the image that it starts from. Each
RUN is run in a chroot, without a network: pip finds the locked wheels, which were fetched before,
in a folder.
"""

import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path, PurePosixPath
from string import Template
from typing import Final

from tests.support.image_files import Unpacked
from tools.image.build import Order, build
from tools.image.commands import CommandError
from tools.image.debian import has_mmdebstrap
from tools.image.platforms import own_platform


def cache_dir() -> Path:
    """Return the tests' folder in the user's cache, creating it."""
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = base / "fracgpu-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold *file* as a lock among the tests' processes of this machine."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


# Where an image of python, and one from scratch, looks for programs.
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def context_files(root: Path, ignore: str) -> list[Path]:
    """Return the files below *root* in the build context, relative to it and sorted.

    A path is excluded by the last line of *ignore* that matches it or a folder it lies in.
    """
    rules = [
        line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")
    ]
    found = []
    for folder, folders, files in os.walk(root):
        here = Path(folder).relative_to(root)
        # Skipping folders that are excluded whole saves most of the work.
        folders[:] = [name for name in folders if _may_hold(here / name, rules)]
        found += [here / name for name in files if not _ignored(here / name, rules)]
    return sorted(found)


def _may_hold(folder: Path, rules: Sequence[str]) -> bool:
    """Report whether something in *folder* may be included, so that it must be walked."""
    exceptions = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    return not _ignored(folder, rules) or any(
        "*" in rule or rule.startswith(f"{folder}/") for rule in exceptions
    )


def _ignored(path: Path, rules: Iterable[str]) -> bool:
    ignored = False
    places = [str(path), *(str(parent) for parent in path.parents if str(parent) != ".")]
    for rule in rules:
        if any(_matches(place, rule.removeprefix("!")) for place in places):
            ignored = not rule.startswith("!")
    return ignored


def _matches(path: str, pattern: str) -> bool:
    """Report whether all of *path* matches: * stays within one folder, ** does not."""
    if pattern.startswith("**/"):
        rest = pattern.removeprefix("**/")
        parts = path.split("/")
        return any(_matches("/".join(parts[at:]), rest) for at in range(len(parts)))
    here, there = path.split("/"), pattern.split("/")
    return len(here) == len(there) and all(
        fnmatch.fnmatchcase(name, glob) for name, glob in zip(here, there, strict=True)
    )


ROOT: Final = Path(__file__).parents[2]
EPOCH: Final = 1_700_000_000
COMPRESSION: Final = 1  # the fastest: nobody downloads it
_BASE: Final = re.compile(r"python:(?P<version>\d+\.\d+)-slim-(?P<suite>[a-z]+)")
_KEPT: Final = 3
_FETCH_LIMIT_S: Final = 900
_STEP_LIMIT_S: Final = 900
# What that image has besides Python.
_BESIDE_PYTHON: Final = ("ca-certificates", "netbase", "tzdata")
_WHEELS: Final = "run/wheels"
_IN_CHROOT: Final = (
    f'mount -t proc proc "$1/proc" && mount --bind "$2" "$1/{_WHEELS}" && '
    'exec chroot "$1" /bin/sh -ec "cd \\"\\$1\\"; $4" sh "$3"'
)


class NoImageError(Exception):
    """This machine cannot build an image; the text says why, and is a reason to skip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """How a container of the image starts by default."""

    entrypoint: Sequence[str] = ()
    env: Sequence[str] = ()
    user: str = ""
    workdir: str = "/"


def our_image(name: str) -> Path:
    """Build what ``make image`` builds unless it is cached; return an archive for ``ctr``.

    Raises:
        NoImageError: this machine lacks a program, or cannot fetch packages.
    """
    if not has_mmdebstrap():
        raise NoImageError("mmdebstrap is not installed; it fetches the packages of the image")
    cache = cache_dir() / "images"
    with locked(cache / "lock"):
        files = context_files(ROOT, (ROOT / ".dockerignore").read_text())
        folder = cache / f"made-{_key(name, [*files, *_builder()])}"
        archive = folder / f"{name.rpartition('/')[2].replace(':', '-')}.oci.tar"
        if not archive.exists():
            order = Order(
                source=ROOT,
                folder=folder,
                platforms=[own_platform()],
                name=name,
                epoch=EPOCH,
                compression=COMPRESSION,
                cache=cache / "packages",
            )
            try:
                build(order, lambda _line: None)
            except CommandError as error:
                raise NoImageError(f"make image: {error}") from error
            _forget_old(cache, "made-*")
    return archive


def _builder() -> list[Path]:
    return [path.relative_to(ROOT) for path in sorted((ROOT / "tools/image").glob("*.py"))]


def _forget_old(cache: Path, pattern: str) -> None:
    """Remove all but the newest: another checkout's tests may be about to use those."""
    found = sorted(cache.glob(pattern), key=lambda path: path.stat().st_mtime)
    for old in found[:-_KEPT]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def program_image(name: str, program: Path, archive: Path) -> Path:
    """Write an image of one static program in ``/usr/local/bin`` to *archive* and return it."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        add_folders(tar, "usr", "usr/local", "usr/local/bin", "tmp", "etc", "var", "var/run")
        tar.add(program.resolve(), f"usr/local/bin/{program.name}", filter=as_root)
    config = ImageConfig(
        entrypoint=(f"/usr/local/bin/{program.name}",), env=(f"PATH={DEFAULT_PATH}",)
    )
    write_archive(archive, name, layer, config)
    layer.unlink()
    return archive


def add_folders(tar: tarfile.TarFile, *folders: str) -> None:
    """Add empty folders to a layer."""
    for folder in folders:
        entry = tarfile.TarInfo(folder)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)


def as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the entry of a program as one that belongs to root."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = 0o755
    return entry


def write_archive(archive: Path, name: str, layer: Path, config: ImageConfig) -> None:
    """Write an image of one layer as ``docker save`` does."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    written = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(config.entrypoint),
                "Env": list(config.env),
                "User": config.user,
                "WorkingDir": config.workdir,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(written).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer/layer.tar"]}]
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        for entry, body in (
            ("manifest.json", json.dumps(manifest).encode()),
            (config_name, written),
        ):
            info = tarfile.TarInfo(entry)
            info.size = len(body)
            tar.addfile(info, BytesIO(body))
        tar.add(layer, "layer/layer.tar")
    partial.replace(archive)


def _key(name: str, files: Sequence[Path]) -> str:
    found = hashlib.sha256(name.encode())
    for file in files:
        found.update(f"{file}\0".encode())
        found.update((ROOT / file).read_bytes())
    return found.hexdigest()[:16]


class BuildError(Exception):
    """A step of the Dockerfile failed, or is none that is known here: no reason to skip."""


@dataclass(slots=True)
class _Stage:
    """What stands between one FROM and the next."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    workdir: str = "/"
    user: str = ""
    entrypoint: Sequence[str] = ()

    def run(self, command: str, wheels: Path) -> None:
        for made in (self.workdir, _WHEELS):
            (self.root / made.lstrip("/")).mkdir(parents=True, exist_ok=True)
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"/{_WHEELS}"}
        isolated = ("unshare", "--mount", "--net", "--propagation", "private")
        done = subprocess.run(  # noqa: S603 - the Dockerfile's own step, in its own root
            [*isolated, *("sh", "-ec", _IN_CHROOT, "sh"),
             str(self.root), str(wheels), self.workdir, command],
            check=False, capture_output=True, text=True, timeout=_STEP_LIMIT_S,
            env={"HOME": "/root", **self.env, **pip},
        )  # fmt: skip
        if done.returncode:
            raise BuildError(f"RUN {command}: {(done.stdout + done.stderr)[-3000:]}")

    def configure(self, word: str, rest: str) -> None:
        match word:
            case "ENV":
                pairs = [pair.split("=") for pair in rest.split()]
                self.env |= {key: Template(value).substitute(self.env) for key, value in pairs}
            case "WORKDIR":
                self.workdir = rest
            case "USER":
                self.user = rest
            case "ENTRYPOINT":
                self.entrypoint = json.loads(rest)
            case _:
                raise BuildError(f"{word} is not known to the tests' builder: {rest}")

    def copy(self, source: Path, target: str, context: Sequence[Path]) -> None:
        """Copy a file, or the contents of a folder, as far as the context has it."""
        inside = [file for file in context if file == source or source in file.parents]
        if not inside:
            raise BuildError(f"COPY {source}: the context has no such file or folder")
        folder = self.root / str(PurePosixPath(self.workdir, target)).lstrip("/")
        for file in inside:
            beside = target.endswith("/") and file == source
            place = folder / (file.name if beside else file.relative_to(source))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, place)


def dockerfile_image(folder: Path) -> Unpacked:
    """Do in *folder* what the Dockerfile says; return the image.

    Raises:
        NoImageError: this machine lacks a program, or cannot fetch packages.
        BuildError: a step of the Dockerfile failed.
    """
    if os.geteuid() != 0:
        raise NoImageError("building an image needs root")
    cache = cache_dir() / "images"
    context = context_files(ROOT, (ROOT / ".dockerignore").read_text())
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    stages: dict[str, _Stage] = {}
    stage, version = _Stage(folder), ""
    with locked(cache / "lock"):
        for line in filter(None, text.replace("\\\n", " ").splitlines()):
            word, _, rest = line.partition(" ")
            if word == "FROM":
                base, _, name = rest.partition(" AS ")
                version, archive = _base(cache, base)
                stage = stages[name] = _Stage(folder / f"stage-{len(stages)}")
                stage.root.mkdir()
                _do(["tar", "-xf", str(archive), "-C", str(stage.root)], limit_s=_STEP_LIMIT_S)
            elif word == "RUN":
                stage.run(rest, _wheels(cache, version))
            elif rest.startswith("--from="):
                origin, source, target = rest.removeprefix("--from=").split()
                places = [str(stages[origin].root) + source, str(stage.root) + target]
                _do(["cp", "-a", "-T", *places], limit_s=_STEP_LIMIT_S)
            elif word == "COPY":
                *sources, target = rest.split()
                for source in sources:
                    stage.copy(Path(source), target, context)
            else:
                stage.configure(word, rest)
    env = [f"{key}={value}" for key, value in stage.env.items()]
    return Unpacked(root=stage.root, env=env, user=stage.user, entrypoint=stage.entrypoint)


def _base(cache: Path, base: str) -> tuple[str, Path]:
    """Build what stands in for the image *base*: Debian with its own Python, and its version."""
    match = _BASE.fullmatch(base)
    if match is None:
        raise BuildError(f"FROM {base}; the tests can stand in for {_BASE.pattern} only")
    version, suite = match["version"], match["suite"]
    archive = cache / f"base-{suite}-{version}.tar"
    if archive.exists():
        return version, archive
    if not has_mmdebstrap():
        raise NoImageError("mmdebstrap is not installed; it makes the base of the image")
    packages = ",".join((f"python{version}", f"python{version}-venv", *_BESIDE_PYTHON))
    # The real image has Python here, under both names.
    links = " && ".join(
        f'ln -s /usr/bin/python{version} "$1/usr/local/bin/{name}"'
        for name in ("python", "python3")
    )
    partial = cache / f"partial-{archive.name}"
    _fetched(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}"),
            *(f"--customize-hook={links}", suite, str(partial)),
        ]
    )
    partial.replace(archive)
    return version, archive


def _wheels(cache: Path, version: str) -> Path:
    """Fetch the locked packages with this machine's own pip and its configuration."""
    lock = ROOT / "requirements.lock"
    folder = cache / f"wheels-{version}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if folder.exists():
        return folder
    partial = folder.with_suffix(".partial")
    _fetched(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary", ":all:", "--python-version", version),
            *("--dest", str(partial), "--requirement", str(lock)),
        ]
    )
    for old in cache.glob("wheels-*"):
        if old != partial:
            shutil.rmtree(old)
    partial.replace(folder)
    return folder


def _fetched(command: Sequence[str]) -> None:
    try:
        _do(command, limit_s=_FETCH_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or ""
        raise NoImageError(f"{command[0]} failed: {error}: {said[-1000:]}") from error


def _do(command: Sequence[str], *, limit_s: float) -> None:
    subprocess.run(  # noqa: S603 - programs of this machine, arguments of this file
        command, check=True, capture_output=True, text=True, timeout=limit_s
    )
