import asyncio
import base64
import contextlib
import json
import os
import socket
import ssl
import stat
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from certs.authority import Pair
from process.tls import ServingTls, TlsError, private_file, read_secret
from tests.certs.tls_harness import a_ca, a_client, a_leaf, ask, https, served, serving, trusting


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.cert_pem.decode())


async def test_new_connections_see_the_replaced_certificate_and_open_ones_live_on() -> None:
    ca = a_ca()
    first, second = a_leaf(ca), a_leaf(ca)
    tls = serving(first)
    connector = aiohttp.TCPConnector(ssl=trusting(ca.cert_pem), limit=1)

    async with https(tls) as url, aiohttp.ClientSession(connector=connector) as session:
        async with session.get(url) as response:
            port = response.headers["X-Caller-Port"]
        assert await served(url) == der(first)

        assert tls.replace(cert_pem=second.cert_pem, key_pem=second.key_pem)

        assert await served(url) == der(second)
        async with session.get(url) as response:
            assert (await response.text(), response.headers["X-Caller-Port"]) == ("ok", port)


async def test_every_handshake_fails_until_there_is_a_certificate() -> None:
    tls, ca = ServingTls(), a_ca()
    leaf = a_leaf(ca)

    async with https(tls) as url:
        before = tls.loaded
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(url, trusting(ca.cert_pem))
        tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem)
        assert (before, tls.loaded) == (False, True)
        assert await ask(url, trusting(ca.cert_pem)) == "ok"


async def test_a_client_without_server_name_gets_the_newest_certificate_too() -> None:
    first, second = (a_leaf(a_ca()) for _ in range(2))
    tls = serving(first)

    async with https(tls) as url:
        tls.replace(cert_pem=second.cert_pem, key_pem=second.key_pem)
        port = int(url.rstrip("/").rpartition(":")[2])
        blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        blind.check_hostname = False
        blind.verify_mode = ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=blind, server_hostname="")
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()

    assert shown == der(second)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_older_tls_is_refused() -> None:
    ca = a_ca()
    context = trusting(ca.cert_pem)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1

    async with https(serving(a_leaf(ca))) as url:
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(url, context)


async def test_a_key_of_another_certificate_is_refused_and_the_old_pair_is_served_on() -> None:
    ca = a_ca()
    first, other = a_leaf(ca), a_leaf(ca)
    tls = serving(first)

    with pytest.raises(TlsError, match="cannot be served"):
        tls.replace(cert_pem=other.cert_pem, key_pem=first.key_pem)

    async with https(tls) as url:
        assert await served(url) == der(first)


@pytest.mark.parametrize(
    ("cert_pem", "key_pem"),
    [(b"", b""), (b"nonsense", b"nonsense"), (b"\xff\x00", b"\xff\x00")],
)
def test_nonsense_is_refused(cert_pem: bytes, key_pem: bytes) -> None:
    with pytest.raises(TlsError):
        ServingTls().replace(cert_pem=cert_pem, key_pem=key_pem)


def test_an_encrypted_key_is_refused_rather_than_asked_about_on_the_terminal() -> None:
    leaf = a_leaf(a_ca())
    locked = load_pem_private_key(leaf.key_pem, password=None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2")
    )

    with pytest.raises(TlsError, match="the private key is encrypted"):
        ServingTls().replace(cert_pem=leaf.cert_pem, key_pem=locked)


def test_the_same_pair_again_changes_nothing() -> None:
    leaf = a_leaf(a_ca())
    tls = serving(leaf)

    assert not tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem)


def test_a_secret_is_applied_when_it_is_complete() -> None:
    leaf, tls = a_leaf(a_ca()), ServingTls()

    with pytest.raises(TlsError, match=r"the Secret has no tls\.key"):
        tls.apply_secret({"tls.crt": leaf.cert_pem})
    with pytest.raises(TlsError, match=r"no tls\.crt and no tls\.key"):
        tls.apply_secret({"tls.crt": b""})

    assert tls.apply_secret({"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem})
    assert tls.loaded


def test_a_secret_is_read_from_its_json() -> None:
    data = {"odd": "not base64!", "tls.crt": base64.b64encode(b"abc").decode()}

    assert read_secret(json.dumps({"data": data}).encode()) == {"tls.crt": b"abc"}


@pytest.mark.parametrize("raw", [b"", b"[]", b"7", b"nonsense", b"\xff"])
def test_what_is_no_json_object_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the informer catches exactly this
        read_secret(raw)


@pytest.mark.parametrize("data", [None, [], 7, {}, {"a": 1}, {"a": None}, {"a": "*"}, {"a": "é"}])
def test_values_that_are_not_base64_are_left_out(data: object) -> None:
    assert read_secret(json.dumps({"data": data}).encode()) == {}


def test_a_key_is_only_ever_in_a_file_of_our_own_that_goes_away() -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are what we compare

    with private_file(b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
        # In memory, without a name in any directory.
        assert str(Path(path).readlink()).startswith("/memfd:")

    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above


def test_without_files_in_memory_the_key_is_in_a_file_only_we_can_read(tmp_path: Path) -> None:
    with private_file(b"secret", folder=tmp_path) as path:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        assert Path(path).read_bytes() == b"secret"

    assert mode == 0o600
    assert list(tmp_path.iterdir()) == []


async def test_with_client_certificates_required_only_clients_of_the_ca_get_in() -> None:
    ours, theirs = a_ca(), a_ca()
    leaf, friend, stranger = a_leaf(ours), a_client(ours), a_client(theirs)
    tls = ServingTls(require_client_certificate=True)
    with pytest.raises(TlsError, match="no CA to check them"):
        tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem)
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=ours.cert_pem)

    async with https(tls) as url:
        with pytest.raises(aiohttp.ClientError):
            await ask(url, trusting(ours.cert_pem))
        with pytest.raises(aiohttp.ClientError):
            await ask(url, trusting(ours.cert_pem, client=stranger))
        assert await ask(url, trusting(ours.cert_pem, client=friend)) == "ok"

        both = ours.cert_pem + theirs.cert_pem
        tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=both)

        assert await ask(url, trusting(ours.cert_pem, client=stranger)) == "ok"
        assert await ask(url, trusting(ours.cert_pem, client=friend)) == "ok"


def answer(
    url: str, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bytes, ssl.SSLSession | None, bool]:
    """Send a request on a connection that offers *session*.

    Returns what was answered, nothing if the server has hung up; the connection's own session; and
    whether it resumed the one that was offered.
    """
    host, _, port = url.removeprefix("https://").rstrip("/").partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host, session=session) as connection,
    ):
        # With TLS 1.3, a session and a refusal come with the first data.
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        got = b"".join(iter(lambda: connection.recv(4096), b""))
        return got, connection.session, bool(connection.session_reused)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_whose_ca_is_removed_does_not_get_in_by_an_older_session(
    version: ssl.TLSVersion,
) -> None:
    ours, retired = a_ca(), a_ca()
    leaf = a_leaf(ours)
    context = trusting(ours.cert_pem, client=a_client(retired))
    context.minimum_version = context.maximum_version = version
    tls = ServingTls(require_client_certificate=True)
    both = ours.cert_pem + retired.cert_pem
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=both)

    async with https(tls) as url:
        before, session, _ = await asyncio.to_thread(answer, url, context)
        tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=ours.cert_pem)
        after, resumed = b"", False
        with contextlib.suppress(OSError):
            after, _, resumed = await asyncio.to_thread(answer, url, context, session)

    assert before.endswith(b"ok")
    assert (after, resumed) == (b"", False)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_no_ticket_is_given_where_client_certificates_are_checked(
    version: ssl.TLSVersion,
) -> None:
    ca = a_ca()
    leaf = a_leaf(ca)
    context = trusting(ca.cert_pem, client=a_client(ca))
    context.minimum_version = context.maximum_version = version
    tls = ServingTls(require_client_certificate=True)
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=ca.cert_pem)

    async with https(tls) as url:
        got, session, _ = await asyncio.to_thread(answer, url, context)

    assert (got[-2:], session is not None and session.has_ticket) == (b"ok", False)
