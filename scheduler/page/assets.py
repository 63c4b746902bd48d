"""The page's own files: HTML, style and modules of the browser, read once."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
INDEX: Final = "index.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file.

    Attributes:
        etag: changes with the content; without the quotes that HTTP wants.
    """

    body: bytes
    content_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """Return all files of the page by name."""
    found = {}
    for file in sorted((files(__package__) / "static").iterdir(), key=lambda file: file.name):
        content_type = _TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            body = file.read_bytes()
            etag = hashlib.sha256(body).hexdigest()[:32]
            found[file.name] = Asset(body=body, content_type=content_type, etag=etag)
    return found
