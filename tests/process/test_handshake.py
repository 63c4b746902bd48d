import ssl
from datetime import timedelta

import pytest

from certs.authority import Pair, make_client, make_serving
from process.handshake import why_refused
from process.tls import ServingTls
from tests.certs.tls_harness import HOUR, a_ca, a_leaf, now

NAME = "fracgpu-webhook.fracgpu-system.svc"


def asked(leaf: Pair, trusted_pem: bytes, *, name: str = NAME, partial: bool = False) -> str:
    tls = ServingTls()
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem)
    return why_refused(tls.context, name=name, trusted_pem=trusted_pem, partial=partial)


def test_a_certificate_that_is_in_order_is_taken() -> None:
    ca = a_ca()
    leaf = a_leaf(ca, NAME)

    assert asked(leaf, ca.cert_pem) == ""
    assert asked(leaf, a_ca().cert_pem + ca.cert_pem) == "", "one authority of a bundle is enough"
    assert asked(leaf, leaf.cert_pem, partial=True) == "", "without its authority"


def test_another_authority_is_told() -> None:
    assert "issuer certificate" in asked(a_leaf(a_ca(), NAME), a_ca().cert_pem)


def test_another_name_is_told_and_none_is_not_compared() -> None:
    ca = a_ca()
    leaf = a_leaf(ca, "localhost")

    assert asked(leaf, ca.cert_pem) == (
        f"Hostname mismatch, certificate is not valid for '{NAME}'."
    )
    assert asked(leaf, ca.cert_pem, name="") == ""


@pytest.mark.parametrize(
    ("begins", "why"),
    [(-3 * HOUR, "certificate has expired"), (3 * HOUR, "certificate is not yet valid")],
)
@pytest.mark.parametrize("partial", [False, True])
def test_dates_are_told(begins: timedelta, why: str, *, partial: bool) -> None:
    ca = a_ca(life=12 * HOUR)
    leaf = make_serving(ca, names=(NAME,), now=now() + begins, life=HOUR)
    trusted = leaf.cert_pem if partial else ca.cert_pem

    # OpenSSL 3.6 goes on: "or the system clock is incorrect".
    assert asked(leaf, trusted, partial=partial).startswith(why)


def test_a_certificate_for_another_purpose_is_told() -> None:
    ca = a_ca()
    client = make_client(ca, name=NAME, now=now(), life=HOUR)

    assert asked(client, ca.cert_pem, name="") == "unsuitable certificate purpose"


def test_authorities_that_are_none_are_told() -> None:
    ca = a_ca()

    assert asked(a_leaf(ca, NAME), b"nothing").startswith("its CA certificates cannot be read")


def test_a_server_that_asks_for_a_client_certificate_is_judged_by_its_own_alone() -> None:
    ca = a_ca()
    leaf = a_leaf(ca, NAME)
    tls = ServingTls(require_client_certificate=True)
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=ca.cert_pem)

    assert why_refused(tls.context, name=NAME, trusted_pem=ca.cert_pem, partial=False) == ""


def test_a_server_without_a_certificate_is_told() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    assert why_refused(context, name=NAME, trusted_pem=a_ca().cert_pem, partial=False) != ""
