"""The expiry of a certificate."""

from datetime import datetime

from cryptography import x509  # 7 MiB, so only the roles that serve TLS import this module


def not_after(cert_pem: bytes) -> datetime:
    """Return when the first certificate of a PEM file expires.

    Raises:
        ValueError: there is no certificate, or it is not as RFC 5280 specifies.
    """
    try:
        return x509.load_pem_x509_certificate(cert_pem).not_valid_after_utc
    except (ValueError, x509.InvalidVersion) as error:
        raise ValueError(f"no certificate in PEM form can be read: {error}") from error
