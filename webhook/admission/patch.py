"""JSONPatch operations (RFC 6902), the changes that a webhook may make."""

from collections.abc import Sequence
from typing import Final

import msgspec

_encoder: Final = msgspec.json.Encoder()


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


def write_patch(edits: Sequence[Edit]) -> bytes:
    """Return a JSONPatch in JSON."""
    return _encoder.encode(edits)


def read_patch(patch: bytes) -> tuple[Edit, ...]:
    """Return the edits of a patch that this module wrote."""
    return msgspec.json.decode(patch, type=tuple[Edit, ...])
