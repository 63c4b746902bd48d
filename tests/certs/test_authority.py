import base64
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from certs.authority import (
    AuthorityError,
    Pair,
    make_ca,
    make_client,
    make_serving,
    read,
    read_pair,
    split,
)
from tests.certs.tls_harness import a_ca, a_leaf, ask, https, serving, trusting

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
CA = make_ca(name="test CA", now=NOON, life=30 * DAY)


async def test_a_client_that_trusts_only_the_authority_accepts_its_server() -> None:
    ca = a_ca()

    async with https(serving(a_leaf(ca, "127.0.0.1"))) as url:
        assert await ask(url, trusting(ca.cert_pem)) == "ok"
        assert await ask(url, trusting(a_ca().cert_pem, ca.cert_pem)) == "ok"


async def test_a_client_certificate_is_no_good_for_a_server() -> None:
    ca = a_ca()
    now = read(ca.cert_pem).not_before
    client = make_client(ca, name="127.0.0.1", now=now, life=timedelta(hours=1))

    async with https(serving(client)) as url:
        with pytest.raises(aiohttp.ClientConnectorCertificateError) as caught:
            await ask(url, trusting(ca.cert_pem))

    assert "unsuitable certificate purpose" in str(caught.value) or "mismatch" in str(caught.value)


def test_a_serving_certificate_names_what_it_was_made_for() -> None:
    names = ("fracgpu-webhook.fracgpu-system.svc", "localhost", "10.1.2.3", "::1")

    leaf = read_pair(make_serving(CA, names=names, now=NOON, life=DAY))

    assert leaf.names == frozenset(names)
    assert not leaf.is_ca
    assert leaf.issuer_key_id == read(CA.cert_pem).key_id


def test_a_name_longer_than_a_subject_may_be_is_fine_as_a_dns_name() -> None:
    long_name = f"{'a' * 60}.{'b' * 60}.svc"

    leaf = make_serving(CA, names=[long_name], now=NOON, life=DAY)

    assert read(leaf.cert_pem).names == {long_name}


def test_an_authority_signs_itself_and_says_so() -> None:
    info = read_pair(CA)

    assert info.is_ca
    assert info.key_id == info.issuer_key_id


@given(
    ca_days=st.integers(1, 4000),
    leaf_s=st.integers(1, 4000 * 86_400),
    age_days=st.integers(0, 4000),
)
def test_a_certificate_is_valid_from_before_its_making_and_never_outlives_its_authority(
    ca_days: int, leaf_s: int, age_days: int
) -> None:
    ca = make_ca(name="x", now=NOON, life=ca_days * DAY)
    made = NOON + min(ca_days - 1, age_days) * DAY

    leaf = read(make_serving(ca, names=["x"], now=made, life=timedelta(seconds=leaf_s)).cert_pem)

    assert made - timedelta(minutes=5, seconds=1) <= leaf.not_before <= made
    wanted_end = made + timedelta(seconds=leaf_s)
    assert leaf.not_after == min(wanted_end, read(ca.cert_pem).not_after)


def test_a_leaf_cannot_sign_and_a_nameless_server_is_refused() -> None:
    leaf = make_serving(CA, names=["x"], now=NOON, life=DAY)

    with pytest.raises(AuthorityError, match="may not sign others"):
        make_serving(leaf, names=["y"], now=NOON, life=DAY)
    with pytest.raises(AuthorityError, match="want at least one"):
        make_serving(CA, names=[], now=NOON, life=DAY)
    with pytest.raises(AuthorityError, match="want a DNS name or an IP address"):
        make_serving(CA, names=["bücher.example"], now=NOON, life=DAY)


def test_a_key_of_another_certificate_is_found_out() -> None:
    other = make_ca(name="test CA", now=NOON, life=DAY)

    with pytest.raises(AuthorityError, match="does not belong to the certificate"):
        read_pair(Pair(cert_pem=CA.cert_pem, key_pem=other.key_pem))


@pytest.mark.parametrize("key_pem", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA"])
def test_an_unreadable_key_is_an_error_that_quotes_nothing_of_it(key_pem: bytes) -> None:
    with pytest.raises(AuthorityError) as caught:
        read_pair(Pair(cert_pem=CA.cert_pem, key_pem=key_pem))

    assert str(caught.value) == "the private key cannot be read"
    assert caught.value.__cause__ is None


@given(st.binary(max_size=200))
def test_any_bytes_for_a_certificate_are_an_authority_error(noise: bytes) -> None:
    with pytest.raises(AuthorityError):
        read(noise)


def altered(*extensions: tuple[str, str], old: str = "", new: str = "") -> Pair:
    """Return a certificate with extensions as OIDs and hex, in whose DER *old* becomes *new*."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")])
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(NOON)
        .not_valid_after(NOON + DAY)
    )
    for oid, value in extensions:
        odd = x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), bytes.fromhex(value))
        builder = builder.add_extension(odd, critical=False)
    der = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    der = der.replace(bytes.fromhex(old), bytes.fromhex(new), 1) if old else der
    body = base64.encodebytes(der).decode()
    cert = f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n".encode()
    forms = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    return Pair(cert_pem=cert, key_pem=key.private_bytes(*forms, serialization.NoEncryption()))


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(altered(("2.5.29.17", "3006a30430020500")), id="an X.400 address as its name"),
        pytest.param(
            altered(("1.2.3.4.5", "0500"), ("1.2.3.4.6", "0500"), old="2a030406", new="2a030405"),
            id="one extension twice",
        ),
        pytest.param(altered(("1.2.3.4.5", "0500"), old="a003020102", new="a003020105"), id="v6"),
        pytest.param(altered(old="2a8648ce3d030107", new="2a8648ce3d030177"), id="a strange curve"),
    ],
)
def test_a_certificate_that_the_library_does_not_know_is_an_authority_error(odd: Pair) -> None:
    with pytest.raises(AuthorityError):
        read_pair(odd)


def test_a_pair_never_shows_its_key() -> None:
    assert "PRIVATE" in CA.key_pem.decode()
    assert "PRIVATE" not in repr(CA)


def test_a_bundle_comes_apart_into_its_certificates() -> None:
    other = make_ca(name="other", now=NOON, life=DAY)

    assert split(CA.cert_pem + b"\n" + other.cert_pem) == (CA.cert_pem, other.cert_pem)
    assert split(b" \n") == ()
    with pytest.raises(AuthorityError):
        split(b"nonsense")


def made_as_go_does() -> tuple[bytes, bytes]:
    """Return a root and a leaf with the extensions that cert-manager writes."""
    key, leaf_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())

    def signed(builder: x509.CertificateBuilder) -> bytes:
        times = builder.not_valid_before(NOON).not_valid_after(NOON + DAY)
        certificate = times.serial_number(1).issuer_name(name).sign(key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)

    root = signed(
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(own_id, critical=False)
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id)
    leaf = signed(
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .public_key(leaf_key.public_key())
        .add_extension(issuer, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("a.svc")]), critical=True)
    )
    return root, leaf


def test_certificates_that_cert_manager_made_are_read_as_well() -> None:
    root, leaf = (read(pem) for pem in made_as_go_does())

    assert (root.is_ca, leaf.is_ca) == (True, False)
    assert root.key_id == root.issuer_key_id == leaf.issuer_key_id
    assert leaf.key_id not in ("", root.key_id)
    assert leaf.names == {"a.svc"}
    assert leaf.not_after == NOON + DAY
