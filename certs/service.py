"""Puts the certificates role together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from certs.injection import BundleTarget
from certs.loop import CertsLoop, Wanted
from certs.metrics import CertsMetrics
from certs.settings import CertsSettings, normal_name
from kube.access import connect
from kube.client import KubeClient
from kube.informer import Informer
from kube.kinds import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Kind
from process.clock import SystemClock
from process.lifecycle import Running, Service
from process.telemetry import ReadyGate, TelemetryServer, new_registry


def build(settings: CertsSettings) -> Service:
    """Put the role together; nothing is opened before it runs."""
    clock, registry, gate = SystemClock(), new_registry(), ReadyGate()
    metrics = CertsMetrics(registry, clock)
    wanted = wanted_of(settings)

    @asynccontextmanager
    async def open_parts() -> AsyncIterator[Running]:
        async with connect(settings.kubeconfig, user_agent="fracgpu-certs") as client:
            loop = CertsLoop(
                client, clock, namespace=settings.namespace, wanted=wanted, metrics=metrics
            )
            gate.add("certificates", lambda: loop.problem)
            informers = _informers(client, loop, wanted, settings.namespace)
            tasks = {f"informer_{n}": each.run for n, each in enumerate(informers)}
            yield Running(tasks={**tasks, "certificates": loop.run})

    return Service(
        name="certs",
        open=open_parts,
        gate=gate,
        telemetry=TelemetryServer(
            registry, settings.telemetry_host, settings.telemetry_port, gate.readiness
        ),
        drain_wait_s=0,  # nobody calls this role
        drain_limit_s=settings.drain_limit_s,
    )


def wanted_of(settings: CertsSettings) -> Wanted:
    """Spell out what the settings ask for."""
    return Wanted(
        ca_secret=settings.ca_secret,
        serving={f"{each}-tls": _names(each, settings) for each in settings.services},
        targets=[
            BundleTarget(kind=kind, name=name)
            for name in settings.webhook_configurations
            for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
        ],
        ca_life=timedelta(seconds=settings.ca_life_s),
        serving_life=timedelta(seconds=settings.serving_life_s),
        overlap=timedelta(seconds=settings.overlap_s),
    )


def _names(service: str, settings: CertsSettings) -> tuple[str, ...]:
    # The API server calls a webhook at SERVICE.NAMESPACE.svc; the longer and shorter ones are
    # what other clients in the cluster may write.
    local = f"{service}.{settings.namespace}"
    ours = (f"{local}.svc", f"{local}.svc.{settings.cluster_domain}", local, service)
    return tuple(dict.fromkeys(normal_name(each) for each in (*ours, *settings.extra_names)))


def _informers(
    client: KubeClient, loop: CertsLoop, wanted: Wanted, namespace: str
) -> list[Informer[None]]:
    """Watch all that the loop reads, so that it looks again at once; contents do not matter."""

    def watch(kind: Kind, name: str, namespace: str | None = None) -> Informer[None]:
        return Informer(
            client,
            kind,
            decode=lambda _: None,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            on_change=lambda _: loop.look(),
        )

    secrets = [watch(SECRETS, name, namespace) for name in (wanted.ca_secret, *wanted.serving)]
    return secrets + [watch(each.kind, each.name) for each in wanted.targets]
