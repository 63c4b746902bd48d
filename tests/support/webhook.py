"""An admission webhook over TLS with a test's answers, which keeps its requests."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from tests.certs.tls_harness import a_ca, a_leaf
from tests.certs.tls_harness import serving as presenting
from tests.support.scripted import serving

Json = dict[str, Any]


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

    def configuration(self, name: str, resource: str) -> Json:
        """Return a configuration that asks it about each creation of a core resource."""
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
        entry = {
            "name": f"{name}.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 30,  # the longest that an API server allows
            "clientConfig": self.client_config,
            "rules": [{**rule, "resources": [resource]}],
        }
        return {"metadata": {"name": name}, "webhooks": [entry]}


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
async def an_admission_webhook() -> AsyncIterator[AdmissionWebhook]:
    """Serve a webhook on loopback, with a certificate of its own CA."""
    ca = a_ca()
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
    try:
        async with serving(app, tls=presenting(a_leaf(ca)).context) as port:
            webhook.url = f"https://127.0.0.1:{port}/review"
            yield webhook
    finally:
        # By TLS a closed connection waits for the caller to close it as well; the test does not.
        for connection in connections:
            connection.abort()
        await asyncio.sleep(0)  # their sockets are closed in the next turn of the event loop
