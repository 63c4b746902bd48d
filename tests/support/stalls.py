"""A webhook that delays a Binding between admission and the API server's transaction."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from aiohttp import web

from certs.authority import make_ca, make_serving
from kube.client import KubeClient
from kube.kinds import VALIDATING_WEBHOOKS
from process.clock import SystemClock
from simulator.envtest.ports import free_ports


class StallingWebhook:
    """A validating webhook for Bindings that delays one pod's review until released.

    Validating webhooks are called after every ValidatingAdmissionPolicy has passed (Source:
    pkg/kubeapiserver/options/plugins.go, AllOrderedPlugins).
    """

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self.asked = asyncio.Event()
        self._go_on = asyncio.Event()

    def release(self) -> None:
        self._go_on.set()

    async def review(self, request: web.Request) -> web.Response:
        review = await request.json()
        if review["request"]["name"] == self._pod:
            self.asked.set()
            await self._go_on.wait()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response({**review, "request": None, "response": response})


@asynccontextmanager
async def stalling_webhook(
    client: KubeClient, pod: str, workdir: Path
) -> AsyncIterator[StallingWebhook]:
    """Serve and register one; the API server waits for 30 s, the longest timeout it allows."""
    (port,) = free_ports(1)
    now, life = SystemClock().now(), timedelta(hours=1)
    ca = make_ca(name="stall", now=now, life=life)
    serving = make_serving(ca, names=("127.0.0.1",), now=now, life=life)
    for name, pem in (("stall.crt", serving.cert_pem), ("stall.key", serving.key_pem)):
        (workdir / name).write_bytes(pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(workdir / "stall.crt", workdir / "stall.key")
    webhook = StallingWebhook(pod)
    app = web.Application()
    app.router.add_post("/", webhook.review)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    rules = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"]}
    entry = {
        "name": "stall.example.org",
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/",
            "caBundle": base64.b64encode(ca.cert_pem).decode(),
        },
        "rules": [{**rules, "operations": ["CREATE"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }
    await client.create(VALIDATING_WEBHOOKS, {"metadata": {"name": "stall"}, "webhooks": [entry]})
    try:
        yield webhook
    finally:
        webhook.release()
        await client.delete(VALIDATING_WEBHOOKS, "stall")
        await runner.cleanup()
