from datetime import timedelta
from typing import Any

import pytest

from certs.authority import Pair, make_ca, read
from certs.store import ROTATE_KEY, StoredSecret, asked_for, read_bundle, stored_bundle, stored_pair
from tests.fakes.clock import NOON

CA = make_ca(name="x", now=NOON, life=timedelta(days=1))
OTHER = make_ca(name="y", now=NOON, life=timedelta(days=1))


def a_secret(annotations: Any = None, **data: bytes) -> StoredSecret:
    named = {key.replace("_", "."): value for key, value in data.items()}
    return StoredSecret(name="s", data=named, body={"metadata": {"annotations": annotations}})


def a_complete_secret(annotations: Any = None) -> StoredSecret:
    return a_secret(annotations, tls_crt=CA.cert_pem, tls_key=CA.key_pem, ca_crt=CA.cert_pem)


def test_a_whole_secret_gives_its_pair_and_its_bundle() -> None:
    assert stored_pair(a_complete_secret()) == (CA, read(CA.cert_pem))
    assert stored_bundle(a_complete_secret()) == [(CA.cert_pem, read(CA.cert_pem))]


@pytest.mark.parametrize(
    "secret",
    [
        None,
        a_secret(),
        a_secret(tls_crt=CA.cert_pem),
        a_secret(tls_crt=CA.cert_pem, tls_key=OTHER.key_pem),
        a_secret(tls_crt=b"nonsense", tls_key=CA.key_pem),
    ],
)
def test_a_secret_that_lacks_a_part_or_mixes_two_gives_nothing(secret: StoredSecret | None) -> None:
    assert stored_pair(secret) == (None, None)
    assert stored_bundle(secret) == []


def test_a_bundle_of_nonsense_is_empty() -> None:
    assert read_bundle(b"nonsense") == []


@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        (None, False),
        ({}, False),
        ({ROTATE_KEY: ""}, False),
        ({ROTATE_KEY: read(OTHER.cert_pem).fingerprint}, False),
        ({ROTATE_KEY: read(CA.cert_pem).fingerprint}, True),
    ],
)
def test_only_the_certificate_that_was_named_is_asked_to_go(annotations: Any, asked: bool) -> None:
    secret = a_complete_secret(annotations)

    assert asked_for(secret, stored_pair(secret)[1]) is asked
    assert not asked_for(None, None)
    assert not asked_for(secret, None)


def test_nothing_of_a_key_shows_in_what_is_read() -> None:
    secret = a_complete_secret()
    pair, _ = stored_pair(secret)

    assert isinstance(pair, Pair)
    assert "PRIVATE" not in f"{secret!r} {pair!r}"
