"""Issues and parses keys and certificates: the only module that uses an X.509 library."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_ORGANIZATION: Final = "FracGPU"
# Clocks differ, so certificates are valid from this long before they are issued.
_BACKDATED: Final = timedelta(minutes=5)
_COMMON_NAME_LIMIT: Final = 64  # characters, ub-common-name of RFC 5280
# What the library raises for a certificate that it cannot read as a whole.
_UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class AuthorityError(Exception):
    """A key or certificate cannot be parsed, or the two do not belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its private key, both PEM. The repr omits the key."""

    cert_pem: bytes
    key_pem: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateInfo:
    """The fields of a certificate, in plain values.

    Attributes:
        not_before: valid from, UTC.
        not_after: valid until, UTC.
        names: the DNS names and IP addresses of its subject alternative names.
        fingerprint: SHA-256 of its DER, in hex.
        key_id: identifies its public key.
        issuer_key_id: identifies the key that signed it; its own when self-signed.
        is_ca: whether it may sign others.
    """

    not_before: datetime
    not_after: datetime
    names: frozenset[str]
    fingerprint: str
    key_id: str
    issuer_key_id: str
    is_ca: bool


def make_ca(*, name: str, now: datetime, life: timedelta) -> Pair:
    """Return a new self-signed certificate authority with an ECDSA P-256 key.

    It may sign certificates of servers and clients, but of no further authorities.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = (
        _builder(now=now, end=now + life, life=life)
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(_key_id(key.public_key()), critical=False)
        .add_extension(_issuer_id(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def make_serving(ca: Pair, *, names: Sequence[str], now: datetime, life: timedelta) -> Pair:
    """Return a new server certificate for *names*, signed by *ca*.

    Args:
        ca: the authority and its key.
        names: DNS names and IP addresses, at least one; the first is also the subject.
        now: the current time.
        life: how long it is valid; never longer than *ca* itself.

    Raises:
        AuthorityError: *ca* cannot be read or may not sign, or a name is no name.
    """
    if not names:
        raise AuthorityError("a serving certificate has no name; want at least one")
    # Clients check only these names; the subject is for people (RFC 9525).
    alternatives = x509.SubjectAlternativeName([_san(each) for each in names])
    usage = ExtendedKeyUsageOID.SERVER_AUTH
    return _sign(ca, names[0], usage, now=now, life=life, alternatives=alternatives)


def make_client(ca: Pair, *, name: str, now: datetime, life: timedelta) -> Pair:
    """Return a new client certificate with *name* as its common name and only DNS name.

    Raises:
        AuthorityError: *ca* cannot be read or may not sign, or *name* is no name.
    """
    alternatives = x509.SubjectAlternativeName([_san(name)])
    usage = ExtendedKeyUsageOID.CLIENT_AUTH
    return _sign(ca, name, usage, now=now, life=life, alternatives=alternatives)


def read(cert_pem: bytes) -> CertificateInfo:
    """Parse the first certificate of a PEM text.

    Raises:
        AuthorityError: there is none, or it lacks an extension that ours have.
    """
    return _facts(_load(cert_pem))


def read_pair(pair: Pair) -> CertificateInfo:
    """Parse a certificate, and check that its private key belongs to it.

    Raises:
        AuthorityError: either cannot be parsed, or they do not belong together.
    """
    return _facts(_read_pair(pair)[0])


def split(bundle_pem: bytes) -> tuple[bytes, ...]:
    """Return the PEM of each certificate of a bundle.

    Raises:
        AuthorityError: it is not a list of certificates.
    """
    if not bundle_pem.strip():
        return ()
    try:
        certificates = x509.load_pem_x509_certificates(bundle_pem)
    except _UNREADABLE as error:
        raise AuthorityError(f"the CA bundle cannot be read: {error}") from error
    return tuple(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def _load(cert_pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(cert_pem)
    except _UNREADABLE as error:
        raise AuthorityError(f"the certificate cannot be read: {error}") from error


def _read_pair(pair: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = _load(pair.cert_pem)
    try:
        key = serialization.load_pem_private_key(pair.key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not chained and not quoted: an error message must not contain part of a key.
        raise AuthorityError("the private key cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthorityError(f"the private key is {type(key).__name__}; want an ECDSA key")
    try:
        belongs = key.public_key() == certificate.public_key()
    except _UNREADABLE:  # no algorithm that the library knows
        belongs = False
    if not belongs:
        raise AuthorityError("the private key does not belong to the certificate")
    return certificate, key


def _facts(certificate: x509.Certificate) -> CertificateInfo:
    try:
        extensions = certificate.extensions
        own, issuer = _key_ids(certificate, extensions)
        return CertificateInfo(
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
            names=_names(extensions),
            fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
            key_id=own.hex(),
            issuer_key_id=issuer.hex(),
            is_ca=_is_ca(extensions),
        )
    except _UNREADABLE as error:
        raise AuthorityError(f"the certificate cannot be read: {error}") from error


def _key_ids(certificate: x509.Certificate, extensions: x509.Extensions) -> tuple[bytes, bytes]:
    """Return its key id and its issuer's; Go omits the former in leaves, the latter in roots."""
    try:
        own = extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound:
        own = x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest
    try:
        issuer = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except x509.ExtensionNotFound:
        return own, own if certificate.issuer == certificate.subject else b""
    return own, issuer.key_identifier or b""


def _is_ca(extensions: x509.Extensions) -> bool:
    try:
        return extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _names(extensions: x509.Extensions) -> frozenset[str]:
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return frozenset(names.get_values_for_type(x509.DNSName)) | {str(each) for each in addresses}


def _sign(
    ca: Pair,
    subject: str,
    usage: x509.ObjectIdentifier,
    *,
    now: datetime,
    life: timedelta,
    alternatives: x509.SubjectAlternativeName,
) -> Pair:
    authority, authority_key = _read_pair(ca)
    if not _facts(authority).is_ca:
        raise AuthorityError("the authority's certificate may not sign others")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(now=now, end=min(now + life, authority.not_valid_after_utc), life=life)
        .subject_name(_name(subject[:_COMMON_NAME_LIMIT]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(_key_id(key.public_key()), critical=False)
        .add_extension(_issuer_id(authority_key.public_key()), critical=False)
        .add_extension(alternatives, critical=False)
    )
    return _pair(builder.sign(authority_key, hashes.SHA256()), key)


def _builder(*, now: datetime, end: datetime, life: timedelta) -> x509.CertificateBuilder:
    start = now - min(_BACKDATED, life / 20)
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _name(text: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, text),
        ]
    )


def _san(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise AuthorityError(
            f"{text!r} is not a valid name; want a DNS name or an IP address"
        ) from error


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_id(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _issuer_id(key: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        cert_pem=certificate.public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
