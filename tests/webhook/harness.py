"""The webhook as the API server calls it: over HTTPS, with a certificate of an authority."""

import io
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from certs.authority import Pair
from fracgpu.cards.card_class import CardClass, SelectedNodes
from fracgpu.cards.pool_catalogue import NO_CATALOGUE
from fracgpu.request.grant_note import Seal
from process.clock import SystemClock
from process.connections import ConnectionLimits, Connections
from process.telemetry import Readiness
from process.tls import ServingTls
from tests.certs.tls_harness import a_ca, a_leaf, trusting
from tests.webhook.builders import CLASSES, RULES, Json
from webhook.admission_config import AdmissionConfig
from webhook.metrics import WebhookMetrics
from webhook.namespaces import NamespaceUnreadError
from webhook.server import AdmissionContext, AdmissionHandler, RequestGate, WebhookServer
from webhook.settings import WebhookSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The status and body of an answer."""

    status: int
    text: str

    @property
    def response(self) -> Json:
        parsed: Json = json.loads(self.text)["response"]
        return parsed


@dataclass(slots=True, kw_only=True)
class Harness:
    """A running webhook server, and the authority that a caller trusts."""

    url: str
    tls: ServingTls
    ca: Pair
    registry: CollectorRegistry
    classes: Sequence[CardClass] | None = CLASSES
    rules: AdmissionConfig = RULES
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    young: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    checks: dict[str, str | None] = field(default_factory=dict)

    async def ask_labels(self, namespace: str) -> Mapping[str, str] | None:
        """Return what the API server has for a namespace too *young* for the webhook's cache."""
        if namespace in self.unread:
            raise NamespaceUnreadError(f"namespace {namespace}: no answer")
        return None if namespace in self.gone else self.labels.get(namespace, {})

    async def post(self, body: Any, *, path: str = "/mutate") -> Answer:
        """POST bytes, an async stream of bytes, or a value to be sent as JSON."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        if isinstance(data, bytes):
            data = io.BytesIO(data)
        return await self._ask("POST", path, data=data)

    async def get(self, path: str) -> Answer:
        return await self._ask("GET", path)

    async def _ask(self, verb: str, path: str, **options: Any) -> Answer:
        connector = aiohttp.TCPConnector(force_close=True, ssl=trusting(self.ca.cert_pem))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(verb, self.url + path, **options) as response,
        ):
            return Answer(status=response.status, text=await response.text())

    def counted(self, outcome: str, *, dialect: str = "none") -> float | None:
        labels = {"outcome": outcome, "dialect": dialect}
        return self.registry.get_sample_value("fracgpu_webhook_decisions_total", labels)


@asynccontextmanager
async def a_webhook(
    *,
    body_limit_mib: int = 3,
    certificate: bool = True,
    limits: ConnectionLimits | None = None,
    body_timeout_s: float = 5.0,
    client_ca_file: str = "",
    client_names: tuple[str, ...] = (),
) -> AsyncIterator[Harness]:
    """Serve a webhook on loopback."""
    registry, ca = CollectorRegistry(), a_ca()
    tls = ServingTls(client_ca_file=client_ca_file)
    webhook = Harness(url="", tls=tls, ca=ca, registry=registry)
    knowledge = AdmissionContext(
        classes=lambda: webhook.classes,
        select=lambda rules: SelectedNodes(
            rules=rules, classes=tuple(webhook.classes or ()), count=1, without=0, some_without=()
        ),
        declared=lambda _: (),
        pools=lambda: NO_CATALOGUE,
        config=lambda: webhook.rules,
        namespace_labels=lambda name: (
            None if name in webhook.young else webhook.labels.get(name, {})
        ),
        ask_labels=webhook.ask_labels,
        seal=lambda namespace: Seal(scope=namespace),
    )
    settings = WebhookSettings(
        listen_host="127.0.0.1", listen_port=0, body_limit_mib=body_limit_mib
    )
    connections = Connections(limits or ConnectionLimits(most=settings.connection_limit))
    request_gate = RequestGate(
        connections, body_timeout_s=body_timeout_s, client_names=client_names
    )
    reviewer = AdmissionHandler(knowledge, WebhookMetrics(registry), SystemClock(), request_gate)
    readiness: Callable[[], Readiness] = lambda: Readiness(checks=webhook.checks)  # noqa: E731
    server = WebhookServer(
        settings,
        reviewer,
        tls,
        registry=registry,
        readiness=readiness,
        gate=request_gate,
    )
    if certificate:
        leaf = a_leaf(ca)
        tls.apply_secret({"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem})
    await server.start()
    try:
        webhook.url = f"https://127.0.0.1:{server.port}"
        yield webhook
    finally:
        await server.stop(1)
