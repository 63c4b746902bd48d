"""The expiry of a certificate, read from its DER without an X.509 library."""

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----\s+(.+?)-----END CERTIFICATE-----", re.DOTALL
)

# DER tags (ITU-T X.690) on the way to tbsCertificate.validity.notAfter (RFC 5280 4.1).
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_FIELDS_BEFORE_VALIDITY: Final = 3  # serialNumber, signature, issuer
_LONG_FORM: Final = 0x80


def not_after(cert_pem: bytes) -> datetime:
    """Return when the first certificate of a PEM file expires.

    Raises:
        ValueError: there is no certificate, or it is not as RFC 5280 specifies.
    """
    found = _PEM.search(cert_pem)
    if found is None:
        raise ValueError("no certificate in PEM form")
    try:
        der = base64.b64decode(b"".join(found[1].split()), validate=True)
        return _not_after(der)
    except (binascii.Error, IndexError) as error:
        raise ValueError(f"the certificate is cut short: {error}") from error


def _not_after(der: bytes) -> datetime:
    certificate, _ = _content(der, 0, tag=_SEQUENCE)
    tbs, _ = _content(certificate, 0, tag=_SEQUENCE)
    at = 0
    if tbs[0] == _VERSION:
        at = _end(tbs, at)
    for _ in range(_FIELDS_BEFORE_VALIDITY):
        at = _end(tbs, at)
    validity, _ = _content(tbs, at, tag=_SEQUENCE)
    return _time(validity, _end(validity, 0))


def _time(validity: bytes, at: int) -> datetime:
    tag = validity[at]
    content, _ = _content(validity, at, tag=tag)
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # The year has two digits: 50 to 99 mean 1950 to 1999 (RFC 5280 4.1.2.5.1).
        century = "19" if text[:2] >= "50" else "20"
        text = century + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"the certificate ends with tag {tag:#x}; want a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _content(data: bytes, at: int, *, tag: int) -> tuple[bytes, int]:
    if data[at] != tag:
        raise ValueError(f"found tag {data[at]:#x} in the certificate; want {tag:#x}")
    start, length = _length(data, at + 1)
    if start + length > len(data):
        raise ValueError("the certificate is cut short")
    return data[start : start + length], start + length


def _end(data: bytes, at: int) -> int:
    start, length = _length(data, at + 1)
    return start + length


def _length(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < _LONG_FORM:
        return at + 1, first
    count = first - _LONG_FORM
    return at + 1 + count, int.from_bytes(data[at + 1 : at + 1 + count], "big")
