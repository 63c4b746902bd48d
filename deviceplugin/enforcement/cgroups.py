"""Where a container's cgroup is, by what the runtime says of it, and how one is written."""

import os
from pathlib import Path
from typing import Final

_PARTS_OF_SYSTEMD: Final = 3
_SLICE: Final = ".slice"


def group_of(cgroups_path: str) -> str:
    """Return the path of a container's cgroup below the root of the cgroups.

    With systemd's driver the OCI spec has ``slice:prefix:name``, where the slice ``a-b.slice`` is
    inside ``a.slice``; else it has the path.

    Raises:
        ValueError: the text is neither, or leads out of the tree.
    """
    parts = cgroups_path.split(":")
    if len(parts) == _PARTS_OF_SYSTEMD and "/" not in parts[0]:
        group = f"{_slice_path(parts[0])}/{parts[1]}-{parts[2]}.scope"
    else:
        group = cgroups_path.rstrip("/")
    pieces = group.split("/")
    if not group.startswith("/") or len(pieces) < 2 or not all(pieces[1:]) or ".." in pieces:  # noqa: PLR2004 - "" and a name
        raise ValueError(f"{cgroups_path!r} is no path of a cgroup")
    return group


def _slice_path(name: str) -> str:
    """Return where systemd keeps a slice: ``a-b.slice`` → ``/a.slice/a-b.slice``."""
    words = name.removesuffix(_SLICE).split("-")
    if not name.endswith(_SLICE) or not all(words):
        raise ValueError(f"{name!r} is no slice of systemd")
    return "".join(f"/{'-'.join(words[: end + 1])}{_SLICE}" for end in range(len(words)))


def ancestors(group: str) -> tuple[str, ...]:
    """Return the cgroups above *group*, the nearest first, without the root."""
    pieces = group.split("/")[1:-1]
    return tuple("/" + "/".join(pieces[:end]) for end in range(len(pieces), 0, -1))


def version_problem(root: Path) -> str | None:
    """Return why limits for cgroups cannot stand here, or None with cgroup v2 at *root*."""
    if (root / "cgroup.controllers").is_file():
        return None
    return f"this node has no cgroup v2 at {root}"


def write_line(file: Path, line: str) -> None:
    """Write *line* at once into a file that must be there: a cgroup's, where each write counts.

    Raises:
        OSError: the file is not there, or what it stands for refuses the line.
    """
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
