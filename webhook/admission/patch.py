"""JSONPatch operations (RFC 6902), the changes that a webhook may make."""

from collections.abc import Sequence
from typing import Final

import msgspec

_encoder: Final = msgspec.json.Encoder()

# No UTF-8 has this byte, so it is found where it was put, whatever else a patch contains.
_HOLE_BYTE: Final = b"\xff"
HOLE: Final = msgspec.Raw(_HOLE_BYTE)
"""The value of an edit, or a part of it, that :meth:`OpenPatch.filled` supplies."""


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One JSONPatch operation; ``add`` also replaces an existing member (RFC 6902 4.1).

    Attributes:
        path: a JSON pointer.
        value: what msgspec encodes; ignored for ``remove``.
    """

    path: str
    value: object = None
    op: str = "add"


def escape(key: str) -> str:
    """Return *key* escaped for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


class OpenPatch(msgspec.Struct, frozen=True, gc=False):
    """A JSONPatch in JSON, but for one text: what is before and behind :data:`HOLE`."""

    before: bytes
    behind: bytes

    def filled(self, text: str) -> bytes:
        """Return the whole patch with this text."""
        return b"".join((self.before, _encoder.encode(text), self.behind))


def write_patch(edits: Sequence[Edit]) -> bytes:
    """Return a JSONPatch in JSON."""
    return _encoder.encode(edits)


def read_patch(patch: bytes) -> tuple[Edit, ...]:
    """Return the edits of a patch that this module wrote."""
    return msgspec.json.decode(patch, type=tuple[Edit, ...])


def write_open_patch(edits: Sequence[Edit]) -> OpenPatch:
    """Return a JSONPatch in which :data:`HOLE` is exactly once."""
    before, behind = _encoder.encode(edits).split(_HOLE_BYTE)
    return OpenPatch(before=before, behind=behind)
