"""``make image``: build the container image, without a daemon."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.image.build import Order, Result, build
from tools.image.commands import CommandError, run
from tools.image.debian import has_mmdebstrap
from tools.image.platforms import PLATFORMS, UnknownPlatformError
from tools.manifests.images import images

ROOT: Final = Path(__file__).parents[2]
_WRONG: Final = 1
_MISSING: Final = (
    "no mmdebstrap; on Debian: sudo apt-get install mmdebstrap; elsewhere: docker build ."
)
_MIB: Final = 1024 * 1024
_OURS: Final = "docker.io/library/"


def main(words: Sequence[str]) -> int:
    """Build the image; return the process's exit code."""
    options = _parser().parse_args(words)
    if not has_mmdebstrap():
        print(f"make image: {_MISSING}", file=sys.stderr)  # noqa: T201
        return _WRONG
    try:
        platforms = [PLATFORMS[name] for name in options.platform or PLATFORMS]
        order = Order(
            source=ROOT,
            folder=options.output,
            platforms=platforms,
            name=f"{_OURS}{images()[0]}",
            epoch=source_epoch(os.environ, ROOT),
            cache=options.packages,
        )
        _tell(build(order, _say))
    except (CommandError, UnknownPlatformError) as error:
        print(f"make image: {error}", file=sys.stderr)  # noqa: T201
        return _WRONG
    return 0


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
    parser.add_argument("--output", type=Path, default=Path("build/image"), help="a folder")
    parser.add_argument(
        "--packages", type=Path, help="a folder that keeps Debian's packages for the next build"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
