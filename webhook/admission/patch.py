"""JSONPatch operations (RFC 6902), the changes that a webhook may make."""

import msgspec


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One JSONPatch operation; ``add`` also replaces an existing member (RFC 6902 4.1).

    Attributes:
        path: a JSON pointer.
        value: plain JSON; ignored for ``remove``.
    """

    path: str
    value: object = None
    op: str = "add"


def escape(key: str) -> str:
    """Return *key* escaped for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
