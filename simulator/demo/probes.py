"""Asks a role's /readyz, as kubelet would."""

import asyncio
import urllib.error
import urllib.request
from typing import Final

_LIMIT_S: Final = 2.0


async def why_not_ready(address: str) -> str | None:
    """Ask ``http://ADDRESS/readyz``: None when ready, else the answer's text or the trouble."""
    return await asyncio.to_thread(_ask, f"http://{address}/readyz")


def _ask(url: str) -> str | None:
    try:
        # A plain http URL on loopback that this program made itself.
        with urllib.request.urlopen(url, timeout=_LIMIT_S):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        with error:
            return error.read(1000).decode(errors="replace").strip() or str(error)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
