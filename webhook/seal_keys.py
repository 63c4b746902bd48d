"""The keys that seal grants and those that verify them, across renewals of the certificate.

A grant is written in one request and verified in the same or the next one, possibly by another
replica, and the certificate that the key is derived from may be renewed in between. So a new key
verifies at once, but seals only after every replica has had time to learn it, and an old key
verifies for as long as a seal made with it is valid.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fracgpu.request.grant_note import CLOCK_SKEW, SEAL_LIFETIME, Seal
from process.clock import Clock
from process.tls import PRIVATE_KEY_KEY

# Replicas watch the Secret, so they see a change within seconds.
SPREADS: Final = timedelta(seconds=20)

_MOST: Final = 8  # bounds the keys that are kept, should the Secret be rewritten all the time


@dataclass(frozen=True, slots=True)
class _Known:
    key: bytes
    since: datetime | None  # None for the first key, which seals at once


class SealKeys:
    """The keys of one webhook, in the order in which it learnt them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: tuple[_Known, ...] = ()

    def follow(self, secret: Mapping[str, bytes]) -> None:
        """Learn the key derived from the certificate that is served from now on."""
        self.learn(seal_key(secret[PRIVATE_KEY_KEY]), now=self._clock.now())

    def seal(self, namespace: str) -> Seal:
        """Return the seal for grants made now in a namespace.

        A replica that is asked serves a certificate, so there is a key.
        """
        now = self._clock.now()
        key, *also = self.at(now)
        return Seal(key=key, also=tuple(also), scope=namespace, now=now)

    def learn(self, key: bytes, *, now: datetime) -> None:
        """Add a key that replicas share from *now* on; the same key again changes nothing."""
        if not self._known or self._known[-1].key != key:
            learnt = _Known(key, now if self._known else None)
            self._known = (*self._known[1 - _MOST :], learnt)

    def at(self, now: datetime) -> tuple[bytes, ...]:
        """Return the key that seals, then the others that verify; empty before the first."""
        current: list[bytes] = []
        sealing: list[bytes] = []
        for known in self._known:
            if known.since is not None and now >= known.since + _KEPT:
                current.clear()  # what it has replaced
            if not current or known.since is None or now >= known.since + SPREADS:
                sealing = [known.key]
            current.append(known.key)
        return (*sealing, *(key for key in current if key not in sealing))


# An old key seals until its successor has spread, and its last seal has a full lifetime.
_KEPT: Final = SPREADS + SEAL_LIFETIME + CLOCK_SKEW


def seal_key(private_key_pem: bytes) -> bytes:
    """Return a secret that only the replicas share: derived from the private key they serve."""
    # The private key signs TLS handshakes; a derived key reveals nothing about it.
    return hmac.new(private_key_pem, b"fracgpu.io/granted", hashlib.sha256).digest()
