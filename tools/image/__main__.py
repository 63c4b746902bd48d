"""``make image``: build the container image, with or without a daemon."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.image.build import Order, Result, build
from tools.image.commands import CommandError, run
from tools.image.debian import has_mmdebstrap
from tools.image.platforms import PLATFORMS, UnknownPlatformError, platform_of
from tools.manifests.images import images

ROOT: Final = Path(__file__).parents[2]
_WRONG: Final = 1
_MIB: Final = 1024 * 1024
_OURS: Final = "docker.io/library/"
# Builders that read the Dockerfile, in the order in which they are tried.
_DOCKERFILE_BUILDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "docker": ("docker", "buildx", "build"),
    "podman": ("podman", "build"),
    "buildah": ("buildah", "build"),
}
_BUILDERS: Final = ("auto", "debian", *_DOCKERFILE_BUILDERS)


class NoBuilderError(Exception):
    """Nothing here can build the image; the text says what to install."""


def main(words: Sequence[str]) -> int:
    """Build the image; return the process's exit code."""
    options = _parser().parse_args(words)
    try:
        platforms = [platform_of(name) for name in options.platform or PLATFORMS]
        builder = chosen_builder(options.builder, _works)
        if builder == "debian":
            order = Order(
                source=ROOT,
                folder=options.output,
                platforms=platforms,
                name=f"{_OURS}{images()[0]}",
                epoch=source_epoch(os.environ, ROOT),
                cache=options.packages,
            )
            _tell(build(order, _say))
        else:
            names = [platform.name for platform in platforms]
            _say(f"building the Dockerfile with {builder} for {', '.join(names)}")
            command = dockerfile_command(builder, names, images()[0], options.output)
            options.output.mkdir(parents=True, exist_ok=True)
            return subprocess.run(command, check=False, cwd=ROOT).returncode  # noqa: S603
    except (CommandError, NoBuilderError, UnknownPlatformError) as error:
        print(f"make image: {error}", file=sys.stderr)  # noqa: T201
        return _WRONG
    return 0


def chosen_builder(wanted: str, works: Callable[[str], bool]) -> str:
    """Return the builder to use.

    Args:
        wanted: a builder, or ``auto`` for the first that works; ours comes first, because what
            it builds does not depend on the machine.
        works: reports whether a builder can be used here.

    Raises:
        NoBuilderError: it does not work here, or none does.
    """
    if wanted != "auto":
        if not works(wanted):
            raise NoBuilderError(f"{wanted} does not work here; {_INSTALL}")
        return wanted
    for builder in _BUILDERS[1:]:
        if works(builder):
            return builder
    raise NoBuilderError(f"nothing here can build an image; {_INSTALL}")


_INSTALL: Final = (
    "on Debian run: sudo apt-get install mmdebstrap; elsewhere install docker or podman"
)


def _works(builder: str) -> bool:
    if builder == "debian":
        return has_mmdebstrap()
    if shutil.which(builder) is None:
        return False
    try:
        # A client without a daemon is installed, but builds nothing.
        run([builder, "info"])
    except CommandError:
        return False
    return True


def dockerfile_command(
    builder: str, platforms: Sequence[str], image: str, folder: Path
) -> list[str]:
    """Return the command line that builds the Dockerfile into an OCI archive in *folder*."""
    archive = folder / f"{image.replace(':', '-')}.oci.tar"
    wanted = ",".join(f"linux/{name}" for name in platforms)
    command = [*_DOCKERFILE_BUILDERS[builder], f"--platform={wanted}"]
    if builder == "docker":
        return [*command, f"--tag={image}", f"--output=type=oci,dest={archive}", "--sbom=true", "."]
    return [*command, f"--manifest={image}", "."]


def source_epoch(environment: Mapping[str, str], source: Path) -> int:
    """Return the time of the sources: SOURCE_DATE_EPOCH, or that of the last commit.

    Raises:
        CommandError: neither is known.
    """
    given = environment.get("SOURCE_DATE_EPOCH", "")
    if given:
        if not given.isdecimal():
            raise CommandError(f"SOURCE_DATE_EPOCH is {given!r}; want seconds since 1970")
        return int(given)
    try:
        return int(run(["git", "log", "-1", "--format=%ct"], folder=source))
    except (CommandError, ValueError) as error:
        raise CommandError(f"set SOURCE_DATE_EPOCH: this is no git checkout ({error})") from error


def _tell(result: Result) -> None:
    sizes = ", ".join(
        f"{name} {size / _MIB:.0f} MiB" for name, size in result.compressed_bytes.items()
    )
    _say(f"{result.archive}: {result.digest} (compressed: {sizes})")
    for sbom in result.sboms:
        _say(f"{sbom}: what is in it")
    _say(f"push it: skopeo copy --all oci-archive:{result.archive} docker://REGISTRY/{images()[0]}")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make image", description=__doc__)
    parser.add_argument(
        "--platform", action="append", choices=tuple(PLATFORMS), help="default: all of them"
    )
    parser.add_argument("--builder", choices=_BUILDERS, default="auto", help="default: auto")
    parser.add_argument("--output", type=Path, default=Path("build/image"), help="a folder")
    parser.add_argument(
        "--packages", type=Path, help="a folder that keeps Debian's packages for the next build"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
