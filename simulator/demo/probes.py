"""Asks a role's /readyz, as kubelet would."""

import asyncio
import http.client
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
        return _text_of(error)
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"


def _text_of(answer: urllib.error.HTTPError) -> str:
    try:
        with answer:
            return answer.read(1000).decode(errors="replace").strip() or str(answer)
    except (OSError, http.client.HTTPException):  # it died while it answered
        return str(answer)
