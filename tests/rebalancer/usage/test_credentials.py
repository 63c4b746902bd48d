"""Credentials for Prometheus: what the files of a Secret mean, and that no secret is shown."""

import base64
import os
import ssl
from pathlib import Path

import pytest

from rebalancer.usage.credentials import (
    CredentialFiles,
    Credentials,
    CredentialsUnusable,
    read_credentials,
    tls_context,
)
from tests.certs.tls_harness import a_ca, a_client


def secret(folder: Path, **keys: str) -> CredentialFiles:
    """Write a Secret as plain files; ``tls_crt`` stands for ``tls.crt``."""
    for key, value in keys.items():
        (folder / key.replace("_", ".")).write_text(value)
    return CredentialFiles(folder=folder)


def publish(folder: Path, version: str, **keys: str) -> None:
    """Publish a version of a Secret as kubelet does: a new folder, then the link exchanged."""
    inside = folder / f"..{version}"
    inside.mkdir()
    for key, value in keys.items():
        (inside / key).write_text(value)
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(f"..data/{key}")
    (folder / "..data_tmp").symlink_to(inside.name)
    os.replace(folder / "..data_tmp", folder / "..data")  # noqa: PTH105 - of a link


def test_a_secret_that_does_not_exist_means_no_credentials(tmp_path: Path) -> None:
    found = read_credentials(CredentialFiles(folder=tmp_path))

    assert found == Credentials()
    assert found.presented == "no credentials"


def test_a_token_is_sent_as_bearer_and_a_password_as_basic(tmp_path: Path) -> None:
    token = read_credentials(secret(tmp_path, token="s3cret\n"))
    (tmp_path / "token").unlink()
    basic = read_credentials(secret(tmp_path, username="me", password="pä:ss\n"))

    assert token.headers == {"Authorization": "Bearer s3cret"}
    sent = basic.headers["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == "me:pä:ss"
    assert basic.presented == (
        f"the username and password of --prometheus-credentials-dir {tmp_path}"
    )


def test_more_headers_come_line_by_line(tmp_path: Path) -> None:
    found = read_credentials(
        secret(tmp_path, headers="X-Scope-OrgID: team-a|team-b\n\nX-Two:  a b \n")
    )

    assert found.headers == {"X-Scope-OrgID": "team-a|team-b", "X-Two": "a b"}


def test_no_secret_is_in_a_repr_and_each_is_masked_in_a_text(tmp_path: Path) -> None:
    keys = {"username": "someone", "password": "hunter22", "headers": "X-Key: k3y-value"}
    found = read_credentials(secret(tmp_path, **keys))

    pair = base64.b64encode(b"someone:hunter22").decode()
    assert not any(word in repr(found) for word in ("hunter22", "k3y-value", pair))
    assert found.masked(f"got {pair}, hunter22 and k3y-value") == "got ***, *** and ***"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pasword": "x"}, "pasword is not a key here; did you mean password?"),
        ({"username": "x"}, "has username and no password; want both"),
        ({"password": "x"}, "has password and no username; want both"),
        ({"username": "a:b", "password": "x"}, "has a colon"),
        ({"username": "a", "password": "x", "token": "t"}, "has a password besides the token"),
        ({"token": "\n"}, "is empty"),
        ({"token": "two words"}, "has spaces"),
        ({"token": "a\nb"}, "has control characters"),
        ({"headers": "no header"}, "line 1 of headers in"),
        ({"headers": "X-A: é"}, "is not ASCII"),
        ({"headers": "authorization: Bearer x"}, "want the file token"),
        ({"headers": "\n".join(f"X-{i}: 1" for i in range(21))}, "21 headers; want 20 at most"),
        ({"tls_crt": "x"}, "has tls.crt and no tls.key"),
        ({"tls_key": "x"}, "has tls.key and no tls.crt"),
        ({"token": "x" * (1024 * 1024 + 1)}, "more than 1048576 bytes"),
    ],
)
def test_a_mistake_names_the_flag_and_the_file_and_shows_no_secret(
    tmp_path: Path, keys: dict[str, str], message: str
) -> None:
    files = secret(tmp_path, **keys)
    with pytest.raises(CredentialsUnusable) as caught:
        read_credentials(files)

    assert message in str(caught.value)
    assert f"--prometheus-credentials-dir {tmp_path}" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "two words" not in str(caught.value)


def test_a_file_that_is_missing_or_given_twice_names_its_flag(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for files, message in (
        (CredentialFiles(folder=gone), "--prometheus-credentials-dir"),
        (CredentialFiles(token_file=gone), "--prometheus-token-file"),
        (CredentialFiles(ca_file=gone), "--prometheus-ca-file"),
    ):
        with pytest.raises(CredentialsUnusable) as caught:
            read_credentials(files)
        assert str(caught.value) == f"{message} {gone} cannot be read: No such file or directory"

    secret(tmp_path, token="a", ca_crt="b")
    with pytest.raises(CredentialsUnusable, match="--prometheus-token-file is set and"):
        read_credentials(CredentialFiles(folder=tmp_path, token_file=tmp_path / "token"))
    with pytest.raises(CredentialsUnusable, match="--prometheus-ca-file is set and"):
        read_credentials(CredentialFiles(folder=tmp_path, ca_file=tmp_path / "ca.crt"))


def test_both_parts_of_a_password_are_of_one_version_of_the_secret(tmp_path: Path) -> None:
    publish(tmp_path, "1", username="old", password="old-word")
    first = read_credentials(CredentialFiles(folder=tmp_path))
    publish(tmp_path, "2", username="new", password="new-word")
    second = read_credentials(CredentialFiles(folder=tmp_path))

    def pair(found: Credentials) -> bytes:
        return base64.b64decode(found.headers["Authorization"].removeprefix("Basic "))

    assert (pair(first), pair(second)) == (b"old:old-word", b"new:new-word")


def test_a_context_trusts_the_given_authorities_alone(tmp_path: Path) -> None:
    ca = a_ca()
    given = read_credentials(secret(tmp_path, ca_crt=ca.cert_pem.decode()))

    assert [found["subject"] for found in tls_context(given).get_ca_certs()] == [
        ((("organizationName", "FracGPU"),), (("commonName", "test CA"),))
    ]
    public = tls_context(Credentials())
    assert len(public.get_ca_certs()) > 50
    assert public.minimum_version is ssl.TLSVersion.TLSv1_2
    assert public.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("content", ["", "no certificate", "é"])
def test_authorities_that_cannot_be_read_are_not_replaced_by_the_public_ones(
    tmp_path: Path, content: str
) -> None:
    found = read_credentials(secret(tmp_path, ca_crt=content))

    with pytest.raises(CredentialsUnusable, match=r"ca\.crt in --prometheus-credentials-dir"):
        tls_context(found)


def test_a_certificate_whose_key_does_not_match_is_refused(tmp_path: Path) -> None:
    ca = a_ca()
    mine, other = a_client(ca), a_client(ca)
    keys = {"tls_crt": mine.cert_pem.decode(), "tls_key": other.key_pem.decode()}
    found = read_credentials(secret(tmp_path, **keys))

    with pytest.raises(CredentialsUnusable, match=r"tls\.crt and tls\.key cannot be used"):
        tls_context(found)
