"""The extender's certificate, and which clients may call."""

import base64
import json
import ssl
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from certs.authority import Pair, make_ca, make_client, make_serving
from component.certificate_watcher import CertificateWatcher
from component.metrics import CertificateMetrics
from fracgpu.names import SYSTEM_NAMESPACE
from kube.access import connect_to
from kube.client import KubeClient
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from process.clock import SystemClock
from process.telemetry import HttpServer
from process.tls import ServingTls, read_secret
from tests.fakes.clock import VirtualClock

DAY = timedelta(days=1)
NOW = SystemClock().now()
CA = make_ca(name="ours", now=NOW, life=DAY)
OTHER = make_ca(name="another", now=NOW, life=DAY)
LEAF = make_serving(CA, names=("localhost",), now=NOW, life=DAY)


def a_change(
    what: ChangeType = ChangeType.ADDED, *, leaf: Pair = LEAF, ca: bytes = CA.cert_pem
) -> Change[Mapping[str, bytes]]:
    parts = {"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem, "ca.crt": ca}
    data = {key: base64.b64encode(pem).decode() for key, pem in parts.items()}
    return Change(
        type=what,
        key=ObjectKey(SYSTEM_NAMESPACE, "s"),
        uid="s",
        resource_version="1",
        object=read_secret(json.dumps({"data": data}).encode()),
    )


def a_certificate(client: KubeClient, tls: ServingTls) -> CertificateWatcher:
    metrics = CertificateMetrics("scheduler", CollectorRegistry(), VirtualClock())
    return CertificateWatcher(client, tls, metrics=metrics, namespace=SYSTEM_NAMESPACE, secret="s")


def a_caller(tmp_path: Path, ca: Pair | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=CA.cert_pem.decode())
    if ca is not None:
        pair = make_client(ca, name="fracgpu-scheduler", now=NOW, life=DAY)
        pem = tmp_path / "client.pem"
        pem.write_bytes(pair.cert_pem + pair.key_pem)
        context.load_cert_chain(pem)
    return context


async def test_only_callers_whose_certificate_is_of_our_authority_are_heard(tmp_path: Path) -> None:
    tls = ServingTls(require_client_certificate=True)
    async with connect_to("http://127.0.0.1:9") as client:
        certificate = a_certificate(client, tls)
        assert certificate.problem() == f"there is no Secret {SYSTEM_NAMESPACE}/s yet"
        certificate.take(a_change())
        assert certificate.problem() is None

    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    server = HttpServer(app, host="localhost", port=0, ssl_context=tls.context)
    await server.start()
    try:
        url = f"https://localhost:{server.port}/"
        async with aiohttp.ClientSession() as http:
            async with http.get(url, ssl=a_caller(tmp_path, CA)) as answer:
                assert await answer.text() == "hello"
            for stranger in (None, OTHER):
                with pytest.raises((aiohttp.ClientError, OSError)):
                    async with http.get(url, ssl=a_caller(tmp_path, stranger)) as answer:
                        await answer.text()
    finally:
        await server.stop(1.0)


async def test_a_spoilt_or_deleted_secret_changes_nothing() -> None:
    tls = ServingTls(require_client_certificate=True)
    async with connect_to("http://127.0.0.1:9") as client:
        certificate = a_certificate(client, tls)
        spoilt = Pair(cert_pem=LEAF.cert_pem, key_pem=b"no key")
        certificate.take(a_change(leaf=spoilt))
        assert "cannot be served" in (certificate.problem() or "")

        certificate.take(a_change())
        certificate.take(a_change(leaf=spoilt))
        certificate.take(a_change(ChangeType.DELETED))

        assert certificate.problem() is None
        assert tls.loaded
