"""What a webhook may change: JSONPatch operations (RFC 6902)."""

import msgspec


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One JSONPatch operation; ``add`` also replaces a member that is there (RFC 6902 4.1).

    Attributes:
        path: a JSON pointer.
        value: plain JSON; a ``remove`` has none that matters.
    """

    path: str
    value: object = None
    op: str = "add"


def escape(key: str) -> str:
    """Escape a key for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
