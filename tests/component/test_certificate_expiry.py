import contextlib
from datetime import UTC

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from component.certificate_expiry import not_after
from tests.certs.tls_harness import a_ca, a_leaf

PEM = a_leaf(a_ca()).cert_pem


def test_the_end_of_a_certificate_is_that_of_the_first_in_the_file() -> None:
    chain = PEM + a_ca().cert_pem

    assert not_after(chain) == x509.load_pem_x509_certificate(PEM).not_valid_after_utc


@given(st.integers(0, len(PEM)), st.binary(max_size=8))
def test_a_spoilt_certificate_is_read_or_refused_and_nothing_worse(at: int, junk: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert not_after(PEM[:at] + junk + PEM[at + len(junk) :]).tzinfo is UTC


def test_what_is_no_certificate_is_said() -> None:
    with pytest.raises(ValueError, match="no certificate in PEM form"):
        not_after(b"hello")
