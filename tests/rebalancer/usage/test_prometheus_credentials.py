"""Credentials at work: a real Prometheus with passwords and TLS, and servers that misbehave."""

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from certs.authority import Pair
from rebalancer.usage.credentials import CredentialFiles
from rebalancer.usage.prometheus import Prometheus, QueryError, QueryFailed
from simulator.envtest.prometheus import RealPrometheus, Web
from tests.certs.tls_harness import a_ca, a_client, a_leaf, trusting
from tests.fakes.prometheus import answering, redirecting, repeating, serving, vector

# bcrypt at its lowest cost, from crypt(3) of the words here.
HASHES: Final = {
    "correct-horse": "$2b$04$abcdefghijklmnopqrstuuPoaPXzWjiVz4HaNq2LJXksWbO79E.S6",
    "battery-staple": "$2b$04$vutsrqponmlkjihgfedcbururPtyMh5rncmNxkZSoO4MvbhqFVFky",
}


def client(url: str, folder: Path | None = None, **options: Any) -> Prometheus:
    files = CredentialFiles(folder=folder)
    # A generous limit: on a busy machine bcrypt and handshakes take their time.
    return Prometheus(url, limit_s=60, limit_bytes=100_000, **{"credentials": files, **options})


async def trouble(prometheus: Prometheus) -> QueryFailed:
    try:
        await prometheus.query("time()")
    except QueryFailed as error:
        return error
    raise AssertionError("it answered")


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


def secret(folder: Path, keys: Mapping[str, str]) -> Path:
    """Replace the files of a Secret."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for key, value in keys.items():
        (folder / key).write_text(value)
    return folder


def pem(pair: Pair) -> dict[str, str]:
    return {"tls.crt": pair.cert_pem.decode(), "tls.key": pair.key_pem.decode()}


@asynccontextmanager
async def prometheus_with_tls(
    folder: Path, ca: Pair, leaf: Pair, *, client_ca: Pair | None = None
) -> AsyncIterator[str]:
    """Start a Prometheus that serves *leaf*; given *client_ca*, it asks for a certificate."""
    tls = secret(folder, pem(leaf) | {"ca.crt": (client_ca or ca).cert_pem.decode()})
    config = {"cert_file": str(tls / "tls.crt"), "key_file": str(tls / "tls.key")}
    if client_ca is not None:
        config["client_auth_type"] = "RequireAndVerifyClientCert"
        config["client_ca_file"] = str(tls / "ca.crt")
    context = trusting(ca.cert_pem, client=a_client(client_ca) if client_ca else None)
    context.check_hostname = False  # for our own check of readiness
    web = Web(config={"tls_server_config": config}, context=context)
    async with RealPrometheus.start(folder / "prometheus", {}, web=web) as real:
        yield real.url


async def test_a_real_prometheus_asks_for_a_password_that_is_rotated_behind_a_path_prefix(
    tmp_path: Path,
) -> None:
    folder = secret(tmp_path / "secret", {})
    config = {"basic_auth_users": {"me": HASHES["correct-horse"]}}
    web = Web(config=config, prefix="/prom/one", headers=basic("correct-horse"))
    start = RealPrometheus.start(tmp_path / "prometheus", {}, web=web)
    async with start as real, client(real.url + "/", folder) as prometheus:
        without = await trouble(prometheus)
        secret(folder, {"username": "me", "password": "battery-staple"})
        wrong = await trouble(prometheus)
        secret(folder, {"username": "me", "password": "correct-horse\n"})
        (answer,) = await prometheus.query("time()")

        assert answer.value > 1e9
        assert real.url.endswith("/prom/one")
        assert without.trouble is wrong.trouble is QueryError.UNAUTHORIZED
        assert "presented no credentials; see --prometheus-credentials-dir" in str(without)
        assert f"presented the username and password of --prometheus-credentials-dir {folder}" in (
            str(wrong)
        )
        assert "battery-staple" not in str(wrong)

        # Prometheus reads its file anew for each request: the administrator changes the password.
        (tmp_path / "prometheus" / "web.yml").write_text(
            f"basic_auth_users: {{me: {HASHES['battery-staple']}}}"
        )
        assert (await trouble(prometheus)).trouble is QueryError.UNAUTHORIZED
        secret(folder, {"username": "me", "password": "battery-staple"})
        assert await prometheus.query("time()")


async def test_a_real_prometheus_is_believed_only_with_the_authority_of_the_secret(
    tmp_path: Path,
) -> None:
    ca = a_ca()
    folder = secret(tmp_path / "secret", {})
    async with (
        prometheus_with_tls(tmp_path / "p", ca, a_leaf(ca)) as url,
        client(url, folder) as prometheus,
    ):
        public = await trouble(prometheus)
        secret(folder, {"ca.crt": a_ca().cert_pem.decode()})
        other = await trouble(prometheus)
        secret(folder, {"ca.crt": ca.cert_pem.decode()})
        assert await prometheus.query("time()")

    assert public.trouble is other.trouble is QueryError.TLS
    assert "trusted are the public authorities, presented is no credentials" in str(public)
    assert f"the authorities of ca.crt in --prometheus-credentials-dir {folder}" in str(other)


async def test_a_certificate_for_another_name_is_accepted_only_under_that_name(
    tmp_path: Path,
) -> None:
    ca = a_ca()
    folder = secret(tmp_path / "secret", {"ca.crt": ca.cert_pem.decode()})
    async with prometheus_with_tls(tmp_path / "p", ca, a_leaf(ca, "prom.example")) as url:
        async with client(url, folder) as prometheus:
            assert (await trouble(prometheus)).trouble is QueryError.TLS
        async with client(url, folder, server_name="prom.example") as prometheus:
            assert await prometheus.query("time()")
        async with client(url, folder, server_name="other.example") as prometheus:
            assert (await trouble(prometheus)).trouble is QueryError.TLS


async def test_a_real_prometheus_asks_for_a_client_certificate_that_is_rotated(
    tmp_path: Path,
) -> None:
    ca, client_ca = a_ca(), a_ca()
    trusted = {"ca.crt": ca.cert_pem.decode()}
    folder = secret(tmp_path / "secret", trusted)
    async with (
        prometheus_with_tls(tmp_path / "p", ca, a_leaf(ca), client_ca=client_ca) as url,
        client(url, folder) as prometheus,
    ):
        assert (await trouble(prometheus)).trouble in (QueryError.TLS, QueryError.UNREACHABLE)
        secret(folder, trusted | pem(a_client(a_ca())))
        assert (await trouble(prometheus)).trouble in (QueryError.TLS, QueryError.UNREACHABLE)
        mixed = pem(a_client(client_ca)) | {"tls.key": pem(a_client(client_ca))["tls.key"]}
        secret(folder, trusted | mixed)
        unfit = await trouble(prometheus)
        secret(folder, trusted | pem(a_client(client_ca)))
        assert await prometheus.query("time()")
        secret(folder, trusted | pem(a_client(client_ca)))
        assert await prometheus.query("time()")

    assert unfit.trouble is QueryError.CREDENTIALS
    assert "tls.crt and tls.key cannot be used" in str(unfit)


async def test_a_token_and_a_tenant_are_read_anew_for_each_query(tmp_path: Path) -> None:
    folder = secret(tmp_path / "secret", {"token": "first\n", "headers": "X-Scope-OrgID: team-a"})
    async with (
        serving(answering(vector())) as (url, requests),
        client(url, folder) as prometheus,
    ):
        await prometheus.query("up")
        secret(folder, {"token": "second"})
        await prometheus.query("up")
        secret(folder, {"pasword": "x"})
        unusable = await trouble(prometheus)
        secret(folder, {})
        await prometheus.query("up")

    assert len(requests) == 3
    assert "Authorization: Bearer first\r\n" in requests[0]
    assert "X-Scope-OrgID: team-a\r\n" in requests[0]
    assert "Authorization: Bearer second\r\n" in requests[1]
    assert "X-Scope-OrgID" not in requests[1]
    assert "Authorization" not in requests[2]
    assert unusable.trouble is QueryError.CREDENTIALS
    assert "did you mean password?" in str(unusable)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_so_no_credentials_reach_another_host(
    tmp_path: Path, status: int
) -> None:
    folder = secret(tmp_path / "secret", {"token": "t0ken-word", "headers": "X-Key: k3y-value"})
    async with serving(answering(vector(({}, "1")))) as (elsewhere, received):
        target = elsewhere.replace("127.0.0.1", "localhost") + "/api/v1/query?token=t0ken-word"
        async with (
            serving(redirecting(target, status=status)) as (url, requests),
            client(url, folder) as prometheus,
        ):
            refused = await trouble(prometheus)

    assert len(requests) == 1
    assert received == []
    assert refused.trouble is QueryError.REFUSED
    assert f"HTTP {status} redirects to http://localhost, which is not followed" in str(refused)
    assert "t0ken-word" not in str(refused)


@pytest.mark.parametrize("status", [200, 400, 401, 503])
async def test_a_server_that_repeats_what_it_was_sent_brings_no_secret_into_the_log(
    tmp_path: Path, status: int
) -> None:
    keys = {"username": "me", "password": "correct-horse", "headers": "X-Key: k3y-value"}
    folder = secret(tmp_path / "secret", keys)
    with structlog.testing.capture_logs() as logs:
        requests: list[str] = []
        async with (
            serving(repeating(requests, status=status), requests) as (url, _),
            client(url, folder) as prometheus,
        ):
            error = await trouble(prometheus)

    pair = basic("correct-horse")["Authorization"].removeprefix("Basic ")
    shown = f"{error} {error!r} {error.__cause__} {logs}"
    assert not any(word in shown for word in ("correct-horse", "k3y-value", pair))
    if status != 200:  # its body is quoted, so this test can fail
        assert "***" in str(error)
    assert [line["event"] for line in logs] == [
        "credentials_sent_unencrypted",
        "prometheus_credentials_read",
    ]


async def test_a_server_without_the_tls_of_its_address_is_told_apart(tmp_path: Path) -> None:
    async with (
        RealPrometheus.start(tmp_path, {}) as real,
        client(real.url.replace("http:", "https:")) as prometheus,
    ):
        assert (await trouble(prometheus)).trouble is QueryError.TLS
