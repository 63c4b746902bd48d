import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from component.certificate_expiry import not_after
from tests.certs.tls_harness import a_ca, a_leaf

PEM = a_leaf(a_ca()).cert_pem


def test_the_end_of_a_certificate_is_what_its_maker_says() -> None:
    assert not_after(PEM) == x509.load_pem_x509_certificate(PEM).not_valid_after_utc


@pytest.mark.parametrize("year", [1999, 2030, 2049, 2050, 2099])
def test_both_forms_of_a_time_are_read(year: int) -> None:
    ends = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x" * 60)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - timedelta(days=1))
        .not_valid_after(ends)
        .sign(key, hashes.SHA256())
    )

    assert not_after(certificate.public_bytes(serialization.Encoding.PEM)) == ends


@given(st.integers(0, len(PEM)), st.binary(max_size=8))
def test_a_spoilt_certificate_is_read_or_refused_and_nothing_worse(at: int, junk: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert not_after(PEM[:at] + junk + PEM[at + len(junk) :]).tzinfo is UTC


def test_what_is_no_certificate_is_said() -> None:
    with pytest.raises(ValueError, match="no certificate in PEM form"):
        not_after(b"hello")
