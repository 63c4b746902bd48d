"""Runs the programs that fetch and unpack packages."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_SHOWN_CHARS: Final = 2000
_LIMIT_S: Final = 1200


class CommandError(Exception):
    """A program is missing or has failed; the text has its last words."""


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> bytes:
    """Run *command* and return its output.

    Raises:
        CommandError: it is missing, failed, or took more than 20 minutes.
    """
    try:
        done = subprocess.run(  # noqa: S603 - programs and arguments of this package
            command, check=True, capture_output=True, timeout=_LIMIT_S, env=env, cwd=folder
        )
    except FileNotFoundError as error:
        raise CommandError(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        said = (error.stdout + error.stderr).decode(errors="replace").strip()
        raise CommandError(f"{command[0]} failed: {said[-_SHOWN_CHARS:]}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{command[0]} took longer than {_LIMIT_S} s") from error
    return done.stdout
