"""An admission webhook over TLS with a test's answers, which keeps its requests."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from certs.authority import Pair, make_ca, make_serving

Json = dict[str, Any]
LIFE = timedelta(days=30)


def new_ca() -> Pair:
    return make_ca(name="test webhook CA", now=datetime.now(tz=UTC), life=LIFE)  # noqa: TID251


@dataclass
class AdmissionWebhook:
    """Answers every AdmissionReview with the result of :attr:`answer`."""

    url: str
    ca_pem: bytes
    answer: Callable[[Json], Json | Awaitable[Json]]
    requests: list[Json] = field(default_factory=list)

    @property
    def client_config(self) -> Json:
        return {"url": self.url, "caBundle": base64.b64encode(self.ca_pem).decode()}


def allow(request: Json) -> Json:
    """Return a response that allows the request."""
    return {"allowed": True}


def patching(*steps: Json) -> Callable[[Json], Json]:
    """Return a response that allows, with a JSON patch."""
    patch = base64.b64encode(msgspec.json.encode(steps)).decode()
    return lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": patch}


def refusing(message: str, *, code: int | None = None) -> Callable[[Json], Json]:
    status: Json = {"message": message} | ({"code": code} if code else {})
    return lambda request: {"allowed": False, "status": status}


@asynccontextmanager
async def an_admission_webhook(workdir: Path) -> AsyncIterator[AdmissionWebhook]:
    """Serve a webhook on loopback, with a certificate of its own CA."""
    ca = new_ca()
    now = datetime.now(tz=UTC)  # noqa: TID251 - the API server looks at the real time
    serving = make_serving(ca, names=["127.0.0.1"], now=now, life=LIFE)
    cert_file, key_file = workdir / "webhook.crt", workdir / "webhook.key"
    cert_file.write_bytes(serving.cert_pem)
    key_file.write_bytes(serving.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    webhook = AdmissionWebhook(url="", ca_pem=ca.cert_pem, answer=allow)
    connections: set[asyncio.Transport] = set()

    async def review(received: web.Request) -> web.Response:
        assert received.transport is not None
        connections.add(received.transport)
        request: Json = (await received.json())["request"]
        webhook.requests.append(request)
        given = webhook.answer(request)
        answer = given if isinstance(given, dict) else await given
        response = {"uid": request["uid"], **answer}
        body = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": response,
        }
        return web.json_response(body)

    app = web.Application()
    app.router.add_post("/review", review)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        webhook.url = f"https://127.0.0.1:{runner.addresses[0][1]}/review"
        yield webhook
    finally:
        await runner.cleanup()
        # By TLS a closed connection waits for the caller to close it as well; the test does not.
        for connection in connections:
            connection.abort()
        await asyncio.sleep(0)  # their sockets are closed in the next turn of the event loop
