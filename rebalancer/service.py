"""Builds the rebalancer: the only module that names its concrete parts."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from component.config_watcher import ConfigWatcher
from component.leader_gate import LeaderGate
from component.placement_config import watch_strategy
from component.wiring import Wirings, read_wirings
from fracgpu import names
from fracgpu.disruption.policy import RebalancerPolicy
from kube.access import connect
from kube.client import KubeClient
from kube.event_correlator import EventCorrelator
from kube.events import EventRecorder
from kube.leader_election import LeaderElector, LeaseDurations
from process.clock import Clock, SystemClock
from process.lifecycle import Running, Service
from process.telemetry import ReadyGate, TelemetryServer, new_registry
from rebalancer.cluster_cache import ClusterCache
from rebalancer.config import KEY, parse_policy
from rebalancer.controller import Controller, ControllerParts
from rebalancer.event_reporter import EventReporter
from rebalancer.metrics import RebalancerMetrics
from rebalancer.moves.cordons import Cordons
from rebalancer.moves.executor import MoveExecutor
from rebalancer.moves.janitor import Janitor
from rebalancer.moves.observer import Observer
from rebalancer.moves.side_effects import SideEffects
from rebalancer.moves.store import MoveStore
from rebalancer.settings import RebalancerSettings
from rebalancer.usage.credentials import CredentialFiles
from rebalancer.usage.measured import LoadRecorder, MeasuredUsage
from rebalancer.usage.prometheus import Prometheus


def build(settings: RebalancerSettings, *, base: RebalancerPolicy | None = None) -> Service:
    """Build the role; nothing is opened before it runs.

    Args:
        settings: of the process.
        base: what the ConfigMap changes; a simulator's has shorter times.
    """
    registry, gate, clock = new_registry(), ReadyGate(), SystemClock()
    metrics = RebalancerMetrics(registry)

    @asynccontextmanager
    async def parts() -> AsyncIterator[Running]:
        prometheus = Prometheus(
            settings.prometheus_url,
            limit_s=settings.query_timeout_s,
            limit_bytes=settings.answer_limit_mib * 1024 * 1024,
            credentials=CredentialFiles(
                folder=settings.prometheus_credentials_dir,
                token_file=settings.prometheus_token_file,
                ca_file=settings.prometheus_ca_file,
            ),
            server_name=settings.prometheus_server_name,
        )
        async with connect(settings.kubeconfig, user_agent=names.REBALANCER) as client, prometheus:
            wirings = await read_wirings(client, namespace=settings.namespace, clock=clock)
            yield running(
                settings,
                client,
                wirings=wirings,
                base=base or RebalancerPolicy(),
                prometheus=prometheus,
                metrics=metrics,
                gate=gate,
                clock=clock,
            )

    return Service(
        name="rebalancer",
        open=parts,
        gate=gate,
        telemetry=TelemetryServer(
            registry, settings.telemetry_host, settings.telemetry_port, gate.readiness
        ),
        drain_wait_s=0.0,  # the rebalancer serves no requests
        drain_timeout_s=settings.drain_timeout_s,
    )


def running(  # noqa: PLR0913 - the parts of one process
    settings: RebalancerSettings,
    client: KubeClient,
    *,
    wirings: Wirings,
    base: RebalancerPolicy,
    prometheus: Prometheus,
    metrics: RebalancerMetrics,
    gate: ReadyGate,
    clock: Clock,
) -> Running:
    """Connect the controller to its parts, and return the tasks to run."""
    identity = settings.identity or socket.gethostname()
    election = LeaderElector(
        client,
        clock,
        name=names.REBALANCER,
        namespace=settings.namespace,
        identity=identity,
        times=LeaseDurations.lasting(settings.lease_duration_s),
    )
    leader_gate = LeaderGate(election)
    writer = client.guarded(leader_gate.guard)
    cache = ClusterCache(client, wirings)
    changed = asyncio.Event()
    config: ConfigWatcher[RebalancerPolicy] = ConfigWatcher(
        client,
        name=names.CONFIG_MAP,
        namespace=settings.namespace,
        key=KEY,
        parse=partial(parse_policy, base=base),
        default=base,
        on_change=lambda _: changed.set(),
        on_refused=lambda _: changed.set(),
        metrics=metrics.config,
    )
    placement = watch_strategy(
        client, name=names.CONFIG_MAP, namespace=settings.namespace, metrics=metrics.config
    )
    store = MoveStore(writer)
    events = EventRecorder(
        writer, names.REBALANCER, clock, instance=identity, correlator=EventCorrelator()
    )
    reporter = EventReporter(events, metrics, namespace=settings.namespace)

    controller = Controller(
        ControllerParts(
            cache=cache,
            usage=MeasuredUsage(prometheus, on_trouble=metrics.no_answer),
            loads=LoadRecorder(prometheus),
            config=config,
            placement=placement,
            changed=changed,
            store=store,
            executor=MoveExecutor(
                Observer(client),
                SideEffects(writer),
                reporter,
                store.put,
            ),
            janitor=Janitor(writer, store),
            cordons=Cordons(writer),
            reporter=reporter,
            metrics=metrics,
            clock=clock,
            scheduler_name=settings.scheduler_name,
        )
    )

    async def rebalance() -> None:
        await cache.wait_synced()
        await config.wait_synced()
        await placement.wait_synced()
        await election.wait_leading()
        metrics.leader.set(1)
        await controller.run()

    gate.add("cluster", lambda: cache.problem)
    # Trouble does not affect readiness: this replica still has the lease, its moves and cordons.
    gate.remark("rebalancing", controller.trouble)
    return Running(
        tasks={
            **cache.tasks(),
            "config": config.run,
            "placement": placement.run,
            "lease": leader_gate.run,
            "rebalance": rebalance,
        }
    )
