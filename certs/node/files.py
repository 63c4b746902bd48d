"""Replaces a set of files atomically, as kubelet does in a Secret volume.

Each set of files has its own folder, and ``current`` is a link to the newest. So a reader never
mixes the certificate of one set with the key of another, unless it opens files across a switch.
"""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CURRENT: Final = "current"
_SET: Final = "set-"


def replace_files(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Make ``folder/current`` hold exactly *files*, readable only by their owner.

    Returns whether anything changed.

    Raises:
        OSError: the folder cannot be written.
    """
    wanted = folder / f"{_SET}{digest(files)[:16]}"
    link = folder / CURRENT
    if link.is_symlink() and link.readlink() == Path(wanted.name) and _holds(wanted, files):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(wanted, ignore_errors=True)  # left behind by a crash
    wanted.mkdir(mode=0o700)
    for name, content in files.items():
        path = wanted / name
        path.touch(mode=0o600)
        path.write_bytes(content)
    newest = folder / f".{CURRENT}"
    newest.unlink(missing_ok=True)
    newest.symlink_to(wanted.name)
    newest.replace(link)
    for other in folder.glob(f"{_SET}*"):
        if other != wanted:
            shutil.rmtree(other, ignore_errors=True)
    return True


def digest(files: Mapping[str, bytes]) -> str:
    """Return a SHA-256 of *files* as 64 hex digits, independent of their order."""
    hashed = hashlib.sha256()
    for name in sorted(files):
        hashed.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return hashed.hexdigest()


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    try:
        found = {path.name: path.read_bytes() for path in folder.iterdir()}
    except OSError:
        return False
    return found == dict(files)


def read_note(folder: Path, name: str) -> str:
    """Return the line that :func:`write_note` wrote; empty if there is none."""
    try:
        return (folder / name).read_text().strip()
    except OSError:
        return ""


def write_note(folder: Path, name: str, text: str) -> None:
    """Write a line next to the files; it survives restarts."""
    draft = folder / f".{name}"
    draft.write_text(f"{text}\n")
    draft.replace(folder / name)
