"""Builds the webhook: the only module that names its concrete parts."""

import asyncio
import gc
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import Final

from component.certificate_watcher import CertificateWatcher
from component.metrics import CertificateMetrics
from component.wiring import read_wirings
from fracgpu import names
from kube.access import connect
from kube.events import EventRecorder
from process.clock import SystemClock
from process.connections import ConnectionLimits, Connections
from process.lifecycle import Running, Service
from process.memory import freeze_until, give_back_large_blocks, read_tls_in_small_pieces
from process.telemetry import ReadyGate, TelemetryServer, new_registry
from process.tls import ServingTls
from webhook.admission_config import AdmissionConfig
from webhook.card_classes import CardClassIndex
from webhook.config_watcher import AdmissionConfigWatcher
from webhook.metrics import WebhookMetrics
from webhook.namespaces import NamespaceLabels
from webhook.seal_keys import SealKeys
from webhook.server import AdmissionContext, AdmissionHandler, RequestGate, WebhookServer
from webhook.settings import WebhookSettings

_COMPONENT: Final = "fracgpu-webhook"
_CLAIM_BYTES: Final = 5


def build(settings: WebhookSettings) -> Service:
    """Build the webhook; nothing is opened before it runs."""
    # Memory taken by large requests must be returned: docs/figures.md has what it took.
    give_back_large_blocks()
    read_tls_in_small_pieces()
    registry = new_registry()
    metrics = WebhookMetrics(registry)
    ready_gate = ReadyGate()
    clock = SystemClock()

    @asynccontextmanager
    async def open_parts() -> AsyncIterator[Running]:
        async with connect(settings.kubeconfig, user_agent="fracgpu-webhook") as client:
            wirings = await read_wirings(client, namespace=settings.namespace, clock=clock)
            base = AdmissionConfig(
                scheduler_name=settings.scheduler_name,
                agent_users=frozenset(settings.agent_users),
                rebalancer_users=frozenset(settings.rebalancer_users),
            )
            tls = ServingTls(client_ca_file=settings.client_ca_file)
            connections = Connections(ConnectionLimits(most=settings.connection_limit))
            request_gate = RequestGate(
                connections,
                body_timeout_s=settings.body_timeout_s,
                client_names=settings.client_names,
            )
            metrics.watch_connections(lambda: connections.count)
            card_classes = CardClassIndex(
                client,
                clock,
                label_reserved_mib=lambda: rules.config.value.label_reserved_mib,
                pools=lambda: rules.pools.value,
                on_counted=lambda: rules.compare_pools(),  # noqa: PLW0108 - it is made below
            )
            rules = AdmissionConfigWatcher(
                client,
                events=EventRecorder(client, _COMPONENT, clock, instance=socket.gethostname()),
                metrics=metrics.config,
                namespace=settings.namespace,
                base=base,
                on_change=card_classes.refresh,
                measured=card_classes.smallest_by_model,
            )
            seal_keys = SealKeys(clock)
            certificate = CertificateWatcher(
                client,
                tls,
                metrics=CertificateMetrics("webhook", registry, clock),
                namespace=settings.namespace,
                secret=settings.tls_secret,
                service_name=settings.service and f"{settings.service}.{settings.namespace}.svc",
                on_taken=seal_keys.follow,
            )
            namespaces = NamespaceLabels(client, clock)
            ready_gate.add("inventory", card_classes.problem)
            ready_gate.add("certificate", certificate.problem)
            ready_gate.add("configuration", rules.problem)
            ready_gate.add("namespaces", namespaces.problem)
            metrics.watch_age(lambda: card_classes.age_s)
            context = AdmissionContext(
                classes=card_classes.classes,
                select=card_classes.select,
                declared=card_classes.declared,
                pools=partial(attrgetter("value"), rules.pools),
                config=partial(attrgetter("value"), rules.config),
                namespace_labels=namespaces.of,
                ask_labels=namespaces.fetch,
                seal=seal_keys.seal,
                wirings=wirings,
                claim=_new_claim,
            )
            server = WebhookServer(
                settings,
                AdmissionHandler(context, metrics, clock, request_gate),
                tls,
                registry=registry,
                readiness=ready_gate.readiness,
                gate=request_gate,
            )
            watchers = (card_classes, certificate, rules, namespaces)
            tasks = {name: loop for watcher in watchers for name, loop in watcher.tasks.items()}

            async def settle_memory() -> None:
                await freeze_until(lambda: card_classes.problem() is None, clock)
                await asyncio.Event().wait()

            # Everything loaded by now lives as long as the process, so the garbage collector
            # need not traverse it while a request waits.
            gc.collect()
            gc.freeze()
            yield Running(tasks={**tasks, "settle_memory": settle_memory}, servers=(server,))

    return Service(
        name="webhook",
        open=open_parts,
        gate=ready_gate,
        telemetry=TelemetryServer(
            registry, settings.telemetry_host, settings.telemetry_port, ready_gate.readiness
        ),
        drain_wait_s=settings.drain_wait_s,
        drain_timeout_s=settings.drain_timeout_s,
    )


def _new_claim() -> str:
    return f"{names.CLAIM_PREFIX}{secrets.token_hex(_CLAIM_BYTES)}"
