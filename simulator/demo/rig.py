"""The demo's rig: a cluster, the five roles as processes, a Prometheus, and an observer."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from component.wiring import Wiring
from fracgpu import names
from fracgpu.disruption.policy import RebalancerPolicy
from kube.access import connect
from kube.client import KubeClient
from kube.errors import AlreadyExists
from kube.kinds import (
    CONFIGMAPS,
    DEVICE_CLASSES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    VALIDATING_WEBHOOKS,
)
from process.clock import Clock
from rebalancer.usage.prometheus import Prometheus
from simulator.background import background
from simulator.cards.models import plan_nodes
from simulator.cards.simulated_cards import cards_document, write_cards_file
from simulator.demo.control_plane import DemoControlPlane, open_control_plane
from simulator.demo.definitions import install_definitions
from simulator.demo.observer import MeasuredHeat, Observer
from simulator.demo.roles import (
    Addresses,
    NodePaths,
    RoleProcess,
    choose_addresses,
    process_spec,
    role_processes,
)
from simulator.demo.service_accounts import DEPLOY, deployed
from simulator.demo.supervisor import ProcessSpec, Supervisor, why_not_ready
from simulator.demo.workload import NAMESPACE, heating_workload
from simulator.envtest.prometheus import RealPrometheus
from simulator.kubelet.kubelet import Kubelet, KubeletConfig, KubeletFolders
from simulator.kubelet.pod_worker import PodTiming

# Prometheus evaluates the rules that are shipped, so that our dashboards can be pointed at it.
RULES: Final = DEPLOY / "alerts" / "fracgpu.rules.yaml"
# After an agent was killed, a demo cannot wait a minute as kubelet does.
_TIMING: Final = PodTiming(prepare_again_s=3.0)
_NODES_LIMIT_S: Final = 60.0
_QUERY_LIMIT_S: Final = 3.0
_QUERY_LIMIT_BYTES: Final = 8 * 1024 * 1024

# The rules are those of a real cluster; only their windows are shorter. On a busy machine a scrape
# every second is often late, so fewer samples and fewer cards suffice than by default.
DEMO_TIMES: Final[Mapping[str, Any]] = {
    "tick_s": 2,
    "startup_grace_s": 0,
    "fast_window_s": 10,
    "slow_window_s": 15,
    "forecast_window_s": 20,
    "memory_window_s": 20,
    "step_s": 1,
    "coverage_ratio": 0.5,
    "fresh_cards_ratio": 0.7,
    "settle_s": 10,
    "min_pod_age_s": 3,
    "card_cooldown_s": 30,
    "owner_cooldown_s": 60,
    "replacement_ttl_s": 60,
    "evict_ttl_s": 60,
    "plan_ttl_s": 30,
}
DEMO_POLICY: Final[Mapping[str, Any]] = {"mode": "active"}


class RigFailed(Exception):  # noqa: N818 - says what happened
    """The rig did not start; the message says which part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RigSettings:
    """The rig's size and control plane.

    Attributes:
        assets: folder with a real kube-apiserver and etcd (and other components, used if they
            are there), or None for the embedded API server.
        wiring: how a pod's request reaches its node.
        api_flags: further flags of a real kube-apiserver, without dashes.
    """

    nodes: int = 4
    cards_per_node: int = 4
    scrape_interval_s: float = 1.0
    assets: Path | None = None
    wiring: Wiring = Wiring.DEVICE_PLUGIN
    api_flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """Everything that runs; it ends with :func:`open_rig`'s block."""

    kube: KubeClient
    control_plane: DemoControlPlane
    wiring: Wiring
    addresses: Addresses
    kubelets: Mapping[str, Kubelet]
    supervisor: Supervisor
    observer: Observer
    prometheus: RealPrometheus
    kubeconfig: Path

    async def waiting_for(self) -> Sequence[str]:
        """Return what is not ready yet, with the reason."""
        waiting = []
        for name, address in self.addresses.scrape_targets().items():
            why = await why_not_ready(address)
            if why is not None:
                waiting.append(f"{name}: {why}")
        with_cards = {node.node for node in self.observer.nodes if node.cards}
        waiting += [f"{node}: no cards yet" for node in self.kubelets if node not in with_cards]
        return waiting

    def roles(self) -> Sequence[tuple[str, bool]]:
        """Return each role and whether its process runs."""
        return [(name, self.supervisor.pid(name) is not None) for name in self.supervisor.names()]

    def wired(self, node: str, pod_uid: str) -> Mapping[str, tuple[str, ...]]:
        """Return the cards that each container of a pod really got from the runtime."""
        kubelet = self.kubelets.get(node)
        return kubelet.cards_of(pod_uid) if kubelet is not None else {}


@asynccontextmanager
async def open_rig(settings: RigSettings, workdir: Path, clock: Clock) -> AsyncIterator[Rig]:
    """Start everything below *workdir* (a short path, for sockets) and stop it at the end.

    Raises:
        RigFailed: the simulated nodes were not ready in time.
        PrometheusFailed: there is no Prometheus, or it did not start.
        ControlPlaneError: a real control plane was requested and did not start.
    """
    plans = plan_nodes(settings.nodes, settings.cards_per_node)
    wiring, by_claims = settings.wiring, settings.wiring is Wiring.CLAIMS
    addresses = choose_addresses([plan.name for plan in plans])
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(
            open_control_plane(
                settings.assets,
                workdir,
                extender_port=None if by_claims else addresses.extender,
                flags=settings.api_flags,
            )
        )
        kube = await stack.enter_async_context(connect(plane.kubeconfig))
        await prepare_cluster(kube, addresses, DEMO_POLICY, wiring)
        await plane.prepare_rights(kube)
        prometheus = await stack.enter_async_context(
            RealPrometheus.start(
                workdir / "prometheus",
                targets=addresses.scrape_targets(),
                scrape_interval_s=settings.scrape_interval_s,
                rule_files=[RULES],
            )
        )
        heat = MeasuredHeat(
            await stack.enter_async_context(
                Prometheus(prometheus.url, limit_s=_QUERY_LIMIT_S, limit_bytes=_QUERY_LIMIT_BYTES)
            )
        )
        observer = Observer(
            kube,
            heat,
            clock,
            namespace=NAMESPACE,
            heated=f"{heating_workload().name}-",
            hot_line=RebalancerPolicy().hot_ratio,
            by_claims=by_claims,
        )
        places = {
            plan.name: NodePaths(
                folders=KubeletFolders.under(workdir / f"n{number}"),
                cards_file=workdir / f"n{number}" / "cards.json",
            )
            for number, plan in enumerate(plans)
        }
        for plan in plans:
            write_cards_file(places[plan.name].cards_file, cards_document(plan.cards))
        kubelets = {
            name: Kubelet(
                kube,
                clock,
                KubeletConfig(node=name, folders=place.folders, cgroups=True, timing=_TIMING),
            )
            for name, place in places.items()
        }
        await stack.enter_async_context(
            running(
                plane.run_controllers(kube, clock),
                plane.run_scheduler(kube, clock),
                observer.run(),
                *(kubelet.run() for kubelet in kubelets.values()),
            )
        )
        try:
            async with asyncio.timeout(_NODES_LIMIT_S):
                await observer.wait_synced()
                for kubelet in kubelets.values():
                    await kubelet.wait_ready()
        except TimeoutError:
            raise RigFailed(f"the nodes were not ready within {_NODES_LIMIT_S:g} s") from None
        processes = role_processes(
            addresses, places, prometheus_url=prometheus.url, times=DEMO_TIMES, wiring=wiring
        )
        specs = await _specs(kube, plane, addresses, processes)
        supervisor = Supervisor(specs, log_dir=workdir)
        await stack.enter_async_context(running(supervisor.run()))
        yield Rig(
            kube=kube,
            control_plane=plane,
            wiring=wiring,
            addresses=addresses,
            kubelets=kubelets,
            supervisor=supervisor,
            observer=observer,
            prometheus=prometheus,
            kubeconfig=plane.kubeconfig,
        )


@asynccontextmanager
async def running(*parts: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run loops while the block runs; the first error of any ends all of them."""
    try:
        async with background(*parts):
            yield
    except BaseExceptionGroup as several:
        # The exception group is ours; callers expect the block's own error.
        raise (several.exceptions[0] if len(several.exceptions) == 1 else several) from None


async def prepare_cluster(
    kube: KubeClient,
    addresses: Addresses,
    policy: Mapping[str, Any],
    wiring: Wiring = Wiring.DEVICE_PLUGIN,
) -> None:
    """Create what an administrator creates: namespaces, configuration, webhook configuration."""
    for namespace in (names.SYSTEM_NAMESPACE, NAMESPACE):
        try:
            await kube.create(NAMESPACES, {"metadata": {"name": namespace}})
        except AlreadyExists:
            continue
    await install_definitions(kube)
    for device_class in deployed("DeviceClass", wiring):
        await kube.create(DEVICE_CLASSES, device_class)
    for config in deployed("ConfigMap", wiring):
        if config["metadata"]["name"] == names.CONFIG_MAP:
            config["data"]["rebalancer"] = yaml.safe_dump(dict(policy))
        await kube.create(CONFIGMAPS, config)
    await _create_webhooks(kube, addresses)


async def _create_webhooks(kube: KubeClient, addresses: Addresses) -> None:
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        for configuration in deployed(kind.kind):
            for entry in configuration["webhooks"]:
                path = entry["clientConfig"]["service"]["path"]
                # As deployed, but by URL: no Service reaches a process on loopback.
                entry["clientConfig"] = {"url": f"https://127.0.0.1:{addresses.webhook}{path}"}
            await kube.create(kind, configuration)


async def _specs(
    kube: KubeClient,
    plane: DemoControlPlane,
    addresses: Addresses,
    processes: Sequence[RoleProcess],
) -> list[ProcessSpec]:
    return [
        process_spec(
            process,
            telemetry_port=addresses.telemetry[process.name],
            kubeconfig=await plane.kubeconfig_of(kube, process.role, node=process.node),
        )
        for process in processes
    ]
