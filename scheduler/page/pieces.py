"""The page's content as small JSON documents, each with the version at which it last changed.

A client that has everything up to a version asks for what came after it. Nothing is kept for a
single client: one that falls behind gets the newest document of each key, and skips the others.
"""

from dataclasses import dataclass
from typing import Final

_MOST_REMOVED: Final = 1000


@dataclass(frozen=True, slots=True)
class Piece:
    """One document; *body* is None once it was removed."""

    version: int
    key: str
    body: bytes | None


class Pieces:
    """Documents by key, the latest change last.

    Args:
        epoch: a name of this instance; versions of another one mean nothing here.
        most_removed: how many removals are remembered. A client that missed more starts anew.
    """

    def __init__(self, epoch: str, *, most_removed: int = _MOST_REMOVED) -> None:
        self.epoch = epoch
        self._most_removed = most_removed
        self._pieces: dict[str, Piece] = {}
        self._removed: dict[str, Piece] = {}
        self._forgotten = 0
        self.version = 0

    def put(self, key: str, body: bytes) -> bool:
        """Set a document; return whether it differs from before."""
        before = self._pieces.get(key)
        if before is not None and before.body == body:
            return False
        self._removed.pop(key, None)
        self._pieces.pop(key, None)  # a dict keeps the order of insertion: latest last
        self._pieces[key] = self._next(key, body)
        return True

    def remove(self, key: str) -> bool:
        """Remove a document; return whether there was one."""
        if self._pieces.pop(key, None) is None:
            return False
        self._removed[key] = self._next(key, None)
        if len(self._removed) > self._most_removed:
            first = next(iter(self._removed))
            self._forgotten = self._removed.pop(first).version
        return True

    def keys(self, prefix: str) -> tuple[str, ...]:
        """Return the keys of all documents that begin with *prefix*."""
        return tuple(key for key in self._pieces if key.startswith(prefix))

    def resumable(self, epoch: str, version: int) -> bool:
        """Return whether a client that has all up to *version* can go on from there."""
        return epoch == self.epoch and self._forgotten <= version <= self.version

    def since(self, version: int, *, most_bytes: int) -> list[Piece]:
        """Return changes after *version*, oldest first: about *most_bytes*, and at least one.

        From version 0 they are all documents; there is nothing to remove for such a client.
        """
        found = _after(self._pieces, version)
        if version:
            found = sorted((*found, *_after(self._removed, version)), key=lambda one: one.version)
        taken: list[Piece] = []
        size = 0
        for piece in found:
            size += len(piece.body or b"")
            if taken and size > most_bytes:
                break
            taken.append(piece)
        return taken

    def _next(self, key: str, body: bytes | None) -> Piece:
        self.version += 1
        return Piece(self.version, key, body)


def _after(pieces: dict[str, Piece], version: int) -> list[Piece]:
    found: list[Piece] = []
    for piece in reversed(pieces.values()):
        if piece.version <= version:
            break
        found.append(piece)
    found.reverse()
    return found
