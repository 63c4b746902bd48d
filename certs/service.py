"""Builds the certs role."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from certs.cert_manager import AdoptedCertificates, CertManagerReconciler
from certs.metrics import CertsMetrics
from certs.node.files import CURRENT
from certs.node.node_files import CONFIGURATION, DesiredNodeFiles, NodeFiles
from certs.node.static_pod import KubeSchedulerProcesses
from certs.reconciler import DesiredCertificates, Leaf, Purpose, Reconciler
from certs.settings import CertsSettings, normal_name
from certs.trust.ca_injector import BundleTarget
from certs.work_loop import WorkLoop
from kube.access import connect
from kube.client import KubeClient
from kube.informer import Informer
from kube.kinds import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Kind
from kube.transport import ApiTransport
from process.clock import Clock, SystemClock
from process.lifecycle import Running, Service
from process.telemetry import ReadyGate, TelemetryServer, new_registry

OWN: Final = "own"
NODE: Final = "node"
_VERSION_LIMIT_S: Final = 10.0


def build(settings: CertsSettings) -> Service:
    """Build the role; nothing is opened before it runs."""
    clock, registry, gate = SystemClock(), new_registry(), ReadyGate()
    metrics = CertsMetrics(registry, clock)

    @asynccontextmanager
    async def open_parts() -> AsyncIterator[Running]:
        async with connect(settings.kubeconfig, user_agent="fracgpu-certs") as client:
            loop = _loop(settings, client, clock, metrics)
            gate.add("certificates", lambda: loop.problem)
            informers = _informers(client, loop, settings)
            tasks = {f"informer_{n}": each.run for n, each in enumerate(informers)}
            yield Running(tasks={**tasks, "certificates": loop.run})

    return Service(
        name="certs",
        open=open_parts,
        gate=gate,
        telemetry=TelemetryServer(
            registry, settings.telemetry_host, settings.telemetry_port, gate.readiness
        ),
        drain_wait_s=0,  # this role serves no requests
        drain_timeout_s=settings.drain_timeout_s,
    )


def desired_of(settings: CertsSettings) -> DesiredCertificates:
    """Return the desired certificates for *settings*."""
    serving = {
        serving_secret(each): Leaf(purpose=Purpose.SERVE, names=_names(each, settings))
        for each in settings.services
    }
    calling = {
        client_secret(each): Leaf(purpose=Purpose.CALL, names=(normal_name(each),))
        for each in settings.clients
    }
    return DesiredCertificates(
        ca_secret=settings.ca_secret,
        leaves=serving | calling,
        services=settings.services,
        targets=targets_of(settings),
        readers=settings.restarted_deployments,
        node_readers=settings.restarted_daemonsets,
        ca_life=timedelta(seconds=settings.ca_life_s),
        leaf_life=timedelta(seconds=settings.serving_life_s),
        overlap=timedelta(seconds=settings.overlap_s),
        grace=timedelta(seconds=settings.retire_after_s),
    )


def adopted_of(settings: CertsSettings) -> AdoptedCertificates:
    """Return the bundle and targets to keep current when cert-manager issues the certificates."""
    return AdoptedCertificates(
        bundle_secret=serving_secret(settings.webhook_service),
        service=settings.webhook_service,
        secrets=_leaf_secrets(settings),
        targets=targets_of(settings),
    )


def desired_node_files_of(settings: CertsSettings) -> DesiredNodeFiles:
    """Return the desired files on a control-plane node."""
    return DesiredNodeFiles(
        folder=Path(settings.node_folder),
        secret=client_secret(settings.clients[0]),
        service=settings.node_service,
        configuration=Path(settings.node_configuration),
    )


def targets_of(settings: CertsSettings) -> list[BundleTarget]:
    """Return the webhook configurations that must trust the authority."""
    return [
        BundleTarget(kind=kind, name=name)
        for name in settings.webhook_configurations
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
    ]


def serving_secret(service: str) -> str:
    """Return the name of the Secret of a Service's certificate."""
    return f"{service}-tls"


def client_secret(caller: str) -> str:
    """Return the name of the Secret of a caller's certificate."""
    return f"{caller}-client"


def _leaf_secrets(settings: CertsSettings) -> list[str]:
    serving = [serving_secret(each) for each in settings.services]
    return serving + [client_secret(each) for each in settings.clients]


def _loop(
    settings: CertsSettings, client: KubeClient, clock: Clock, metrics: CertsMetrics
) -> WorkLoop:
    namespace = settings.namespace
    if settings.mode == OWN:
        desired = desired_of(settings)
        transport = client.transport
        assert isinstance(transport, ApiTransport), "the client is one of kube.access"  # noqa: S101
        return Reconciler(
            client,
            clock,
            namespace=namespace,
            desired=desired,
            metrics=metrics,
            server=partial(transport.version, timeout_s=_VERSION_LIMIT_S),
        )
    if settings.mode == NODE:
        node = desired_node_files_of(settings)
        return NodeFiles(
            client,
            clock,
            namespace=namespace,
            wanted=node,
            kube_scheduler=KubeSchedulerProcesses(
                config=str(node.folder / CURRENT / CONFIGURATION), proc=Path(settings.node_proc)
            ),
            metrics=metrics,
        )
    adopted = adopted_of(settings)
    return CertManagerReconciler(
        client, clock, namespace=namespace, wanted=adopted, metrics=metrics
    )


def _names(service: str, settings: CertsSettings) -> tuple[str, ...]:
    # The API server calls a webhook at SERVICE.NAMESPACE.svc; other clients in the cluster may use
    # the longer and shorter names.
    local = f"{service}.{settings.namespace}"
    ours = (f"{local}.svc", f"{local}.svc.{settings.cluster_domain}", local, service)
    return tuple(dict.fromkeys(normal_name(each) for each in (*ours, *settings.extra_names)))


def _informers(
    client: KubeClient, loop: WorkLoop, settings: CertsSettings
) -> Iterable[Informer[None]]:
    """Return informers of all objects the loop reads, which wake it on every change."""

    def watch(kind: Kind, name: str, namespace: str | None = None) -> Informer[None]:
        return Informer(
            client,
            kind,
            decode=lambda _: None,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            on_change=lambda _: loop.wake(),
        )

    if settings.mode == NODE:
        return [watch(SECRETS, desired_node_files_of(settings).secret, settings.namespace)]
    own = [settings.ca_secret] if settings.mode == OWN else []
    secrets = [watch(SECRETS, name, settings.namespace) for name in own + _leaf_secrets(settings)]
    return secrets + [watch(each.kind, each.name) for each in targets_of(settings)]
