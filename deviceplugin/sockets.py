"""The identity of a unix socket in the file system, to notice that it was created anew."""

from pathlib import Path


def socket_identity(path: Path) -> tuple[int, int] | None:
    """Return which file is at *path*: it differs once the file was re-created; None if absent."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_ctime_ns)
