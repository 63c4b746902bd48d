"""Which keys seal grants and which still open them, while the certificate they come from changes.

A grant is written in one request and looked at again in the same one or the next, maybe by another
replica, and the certificate may be renewed in between. So a new key is known at once, but seals
only once every replica has had time to learn it, and an old one is known for as long as what it
sealed.
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Final

from fracgpu.request.grant_note import CLOCK_SKEW, SEAL_LIFETIME

# Replicas follow the Secret by a watch, which tells them within seconds.
SPREADS: Final = timedelta(seconds=20)

_MOST: Final = 8  # keys that are kept: a Secret that is rewritten all the time must not add up


@dataclass(frozen=True, slots=True)
class _Known:
    key: bytes
    since: datetime | None  # None: there was none before, so nothing else is known anywhere


class SealKeys:
    """The keys of one webhook, in the order in which it learnt them."""

    def __init__(self) -> None:
        self._known: tuple[_Known, ...] = ()

    def learn(self, key: bytes, *, now: datetime) -> None:
        """Take a key that replicas share from *now* on; the same one again changes nothing."""
        if not self._known or self._known[-1].key != key:
            learnt = _Known(key, now if self._known else None)
            self._known = (*self._known[1 - _MOST :], learnt)

    def at(self, now: datetime) -> tuple[bytes, ...]:
        """Give the key that seals first and then those that are known besides; empty before any."""
        current = [
            it
            for it, after in zip_longest(self._known, self._known[1:])
            if after is None or after.since is None or now < after.since + _KEPT
        ]
        sealing = next(
            (it for it in reversed(current) if it.since is None or now >= it.since + SPREADS),
            current[0] if current else None,
        )
        if sealing is None:
            return ()
        return (sealing.key, *(it.key for it in current if it.key != sealing.key))


# An old key seals until its successor has spread, and what it sealed then lasts as long as any.
_KEPT: Final = SPREADS + SEAL_LIFETIME + CLOCK_SKEW


def seal_key(private_key_pem: bytes) -> bytes:
    """Return a secret that only the replicas share: made of the private key they serve."""
    # The key itself signs handshakes; what is derived from it can tell nothing about it.
    return hmac.new(private_key_pem, b"fracgpu.io/granted", hashlib.sha256).digest()
