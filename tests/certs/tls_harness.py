"""Real servers and clients for tests about certificates."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import aiohttp
from aiohttp import web

from certs.authority import Pair, make_ca, make_client, make_serving
from process.clock import SystemClock
from process.telemetry import HttpServer
from process.tls import ServingTls, private_file

HOUR = timedelta(hours=1)


def now() -> datetime:
    return SystemClock().now()


def a_ca(*, life: timedelta = HOUR) -> Pair:
    return make_ca(name="test CA", now=now(), life=life)


def a_leaf(ca: Pair, *names: str, life: timedelta = HOUR) -> Pair:
    return make_serving(ca, names=names or ("localhost", "127.0.0.1"), now=now(), life=life)


def a_client(ca: Pair) -> Pair:
    return make_client(ca, name="kube-scheduler", now=now(), life=HOUR)


def trusting(*ca_pems: bytes, client: Pair | None = None) -> ssl.SSLContext:
    """Return a context that trusts only these authorities, as strictly as OpenSSL can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=b"".join(ca_pems).decode())
    if client is not None:
        with private_file(client.cert_pem + client.key_pem) as path:
            context.load_cert_chain(path)
    return context


def serving(pair: Pair) -> ServingTls:
    """Return what serves with this certificate."""
    tls = ServingTls()
    tls.replace(cert_pem=pair.cert_pem, key_pem=pair.key_pem)
    return tls


@asynccontextmanager
async def https(tls: ServingTls) -> AsyncIterator[str]:
    """Serve "ok" with whatever *tls* holds; yield the address."""

    async def ok(request: web.Request) -> web.Response:
        assert request.transport is not None
        caller = request.transport.get_extra_info("peername")
        return web.Response(text="ok", headers={"X-Caller-Port": str(caller[1])})

    app = web.Application()
    app.router.add_get("/", ok)
    server = HttpServer(app, host="127.0.0.1", port=0, ssl_context=tls.context)
    await server.start()
    try:
        yield f"https://127.0.0.1:{server.port}/"
    finally:
        await server.stop(1)


async def ask(url: str, context: ssl.SSLContext) -> str:
    """Send one request on a new connection; return the body."""
    connector = aiohttp.TCPConnector(force_close=True, ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as response:
        return await response.text()


async def served(url: str) -> bytes:
    """Return the certificate (DER) served on a new connection, whoever signed it."""
    host, _, port = url.removeprefix("https://").rstrip("/").partition(":")
    address = (host, int(port))
    pem = await asyncio.to_thread(ssl.get_server_certificate, address, timeout=10)
    return ssl.PEM_cert_to_DER_cert(pem)
