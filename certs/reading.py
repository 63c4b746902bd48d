"""What a stored Secret says, or that it says nothing usable."""

from typing import Final

import structlog

from certs.authority import AuthorityError, Facts, Pair, read, read_pair, split
from certs.store import StoredSecret
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY

log = structlog.get_logger()

ROTATE_KEY: Final = "fracgpu.io/rotate"
"""Annotation of a Secret: the fingerprint of the certificate that shall be made anew.

It asks for one renewal and no more, whoever reads it how often: the new one has another.
"""


def stored_pair(stored: StoredSecret | None) -> tuple[Pair | None, Facts | None]:
    """Read certificate and key; both None when they are missing or do not belong together."""
    if stored is None or not stored.data.get(CERT_KEY):
        return None, None
    pair = Pair(cert_pem=stored.data[CERT_KEY], key_pem=stored.data.get(PRIVATE_KEY_KEY, b""))
    try:
        return pair, read_pair(pair)
    except AuthorityError as error:
        log.warning("secret_unusable", secret=stored.name, reason=str(error))
        return None, None


def stored_bundle(stored: StoredSecret | None) -> list[tuple[bytes, Facts]]:
    """Read each authority of the bundle; nothing when there is none or it is no bundle."""
    return read_bundle(stored.data.get(CA_KEY, b"") if stored is not None else b"")


def read_bundle(bundle_pem: bytes) -> list[tuple[bytes, Facts]]:
    """Read each authority of a bundle; nothing when it is no bundle."""
    try:
        return [(pem, read(pem)) for pem in split(bundle_pem)]
    except AuthorityError as error:
        log.warning("bundle_unusable", reason=str(error))
        return []


def asked_for(stored: StoredSecret | None, facts: Facts | None) -> bool:
    """Tell whether somebody asked to replace just this certificate."""
    if stored is None or facts is None:
        return False
    annotations = stored.body.get("metadata", {}).get("annotations") or {}
    return bool(annotations.get(ROTATE_KEY) == facts.fingerprint)
