"""The webhook put together: the only file that names its concrete parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kube.access import connect
from process.clock import SystemClock
from process.lifecycle import Running, Service
from process.telemetry import ReadyGate, TelemetryServer, new_registry
from process.tls import ServingTls
from webhook.certificate import SecretCertificate
from webhook.inventory import Inventory
from webhook.metrics import WebhookMetrics
from webhook.mutation import Rules
from webhook.server import Reviewer, WebhookServer
from webhook.settings import WebhookSettings


def build(settings: WebhookSettings) -> Service:
    """Put the webhook together; nothing is opened yet."""
    registry = new_registry()
    metrics = WebhookMetrics(registry)
    gate = ReadyGate()
    clock = SystemClock()
    rules = Rules(
        scheduler_name=settings.scheduler_name, agent_users=frozenset(settings.agent_users)
    )

    @asynccontextmanager
    async def open_parts() -> AsyncIterator[Running]:
        async with connect(settings.kubeconfig, user_agent="fracgpu-webhook") as client:
            tls = ServingTls()
            inventory = Inventory(client, clock)
            certificate = SecretCertificate(
                client, tls, metrics, namespace=settings.namespace, secret=settings.tls_secret
            )
            gate.add("inventory", inventory.problem)
            gate.add("certificate", certificate.problem)
            metrics.watch_age(lambda: inventory.age_s)
            server = WebhookServer(
                settings,
                Reviewer(inventory.classes, metrics, clock, rules=rules),
                tls,
                registry=registry,
                readiness=gate.readiness,
            )
            yield Running(tasks={**inventory.tasks, **certificate.tasks}, servers=(server,))

    return Service(
        name="webhook",
        open=open_parts,
        gate=gate,
        telemetry=TelemetryServer(
            registry, settings.telemetry_host, settings.telemetry_port, gate.readiness
        ),
        drain_wait_s=settings.drain_wait_s,
        drain_limit_s=settings.drain_limit_s,
    )
