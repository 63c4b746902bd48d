"""Builds the extender: the only module of this role that names its concrete parts."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from component import config_keys, placement_config
from component.certificate_watcher import CertificateWatcher
from component.config_watcher import ConfigWatcher
from component.leader_gate import LeaderGate, ListWatcher
from component.metrics import CertificateMetrics
from component.refused_config import RefusedConfigReporter
from component.wiring import Wiring, Wirings, read_wirings
from fracgpu.cards.card import NodeCards
from fracgpu.device_claims.claim import decode_claim
from fracgpu.k8s.disruption_budget import PodDisruptionBudget, read_budget
from fracgpu.k8s.pod import LIVE_PODS
from fracgpu.k8s.workloads.quota import read_quota
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.move_object import decode_move
from fracgpu.state.node_info import observe_offered_node, read_offered_node
from fracgpu.state.reservation import MoveClaims, read_claims
from kube.access import connect
from kube.client import KubeClient
from kube.events import EventRecorder
from kube.informer import Change, Informer
from kube.kinds import MOVES, NODES, PDBS, PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from kube.leader_election import LeaderElector, LeaseDurations, LeaseNotes
from process.clock import Clock, SystemClock
from process.event_loop import MeasuredEventLoop, longest_pause_s
from process.http2.connections import ALPN
from process.lifecycle import Running, Server, Service
from process.memory import read_tls_in_small_pieces
from process.telemetry import ReadyGate, Registry, TelemetryServer, new_registry
from process.tls import ServingTls
from scheduler.binding_record import BindingRecord
from scheduler.cache.assumptions import Assumptions, AssumptionTimeouts
from scheduler.cache.comparer import CacheComparer
from scheduler.cache.event_handlers import AnyPod, decode_any_pod
from scheduler.cache.pod_marker import PodMarker
from scheduler.claims.cache import (
    ClaimCache,
    ObservedPod,
    any_pod,
    decode_observed_pod,
    uid_of,
)
from scheduler.claims.controller import ClaimController
from scheduler.claims.gangs import ClaimGangs
from scheduler.claims.planner import ClaimPlanner
from scheduler.claims.preemption import Preemptions
from scheduler.claims.quota import ClaimQuota, Quotas
from scheduler.core import SchedulerCore
from scheduler.extender.api import pending_only
from scheduler.extender.bind import Binder
from scheduler.extender.bind_groups import BindGroups
from scheduler.extender.binding_cycles import BindingCycles
from scheduler.extender.filter import StaleCacheRetry, narrowed
from scheduler.extender.preempt import Preemptor
from scheduler.extender.server import ExtenderServer
from scheduler.fence import Fence
from scheduler.leader_endpoint import Endpoint, LeaderEndpoint
from scheduler.metrics import RequestActivity, SchedulerMetrics
from scheduler.page import hot_line
from scheduler.page.board import Board, PageFacts
from scheduler.page.explainer import Explainer
from scheduler.page.filter_answers import FilterAnswers
from scheduler.page.server import PageServer
from scheduler.pod_activator import PodActivator
from scheduler.pool_events import PoolEvents
from scheduler.resizer import Resizer
from scheduler.settings import SchedulerSettings
from scheduler.settling_memory import settling_memory
from scheduler.version_skew import VersionSkewCheck
from scheduler.workload_learner import WorkloadLearner

_LEARN_S = 60.0  # between two checks whether the workload has changed


def build(settings: SchedulerSettings) -> Service:
    """Build the extender; nothing is opened before it runs."""
    read_tls_in_small_pieces()
    clock = SystemClock()
    registry = new_registry()
    gate = ReadyGate()

    @asynccontextmanager
    async def parts() -> AsyncIterator[Running]:
        async with connect(settings.kubeconfig, user_agent="fracgpu-scheduler") as client:
            wirings = await read_wirings(
                client, namespace=settings.namespace, clock=clock, name=settings.config_map
            )
            yield _wire(settings, client, clock, registry, gate, wirings)

    return Service(
        name="scheduler",
        open=parts,
        gate=gate,
        telemetry=TelemetryServer(
            registry, settings.telemetry_host, settings.telemetry_port, gate.readiness
        ),
        drain_wait_s=settings.drain_wait_s,
        drain_timeout_s=settings.drain_timeout_s,
        new_loop=MeasuredEventLoop,
    )


class _Shared:
    """The parts that do not depend on who allocates the cards."""

    def __init__(
        self,
        settings: SchedulerSettings,
        client: KubeClient,
        clock: Clock,
        registry: Registry,
        gate: ReadyGate,
        *,
        notes: LeaseNotes | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        identity = settings.identity or socket.gethostname()
        self.metrics = SchedulerMetrics(registry)
        self.activity = RequestActivity()
        self.recorder = EventRecorder(client, "fracgpu-scheduler", clock, instance=identity)
        self.refused = RefusedConfigReporter(
            self.recorder, name=settings.config_map, namespace=settings.namespace
        )
        self.config = config = placement_config.watch_strategy(
            client,
            name=settings.config_map,
            namespace=settings.namespace,
            on_refused=partial(self.refused.key, placement_config.KEY),
            metrics=self.metrics.config,
        )
        self.core = SchedulerCore(
            strategy=lambda: config.value, clock=clock, on_unreadable=self.metrics.unreadable
        )
        self.page = _Page(
            settings,
            client,
            self.core,
            clock,
            identity=identity,
            strategy=lambda: config.value,
        )
        self.election = LeaderElector(
            client,
            clock,
            name=settings.lease,
            namespace=settings.namespace,
            identity=identity,
            times=LeaseDurations.lasting(settings.lease_duration_s),
            notes=notes,
        )
        self.leader_gate = LeaderGate(self.election)
        gate.add("leader and lists", self.leader_gate.why_not_ready)

    def follow(self, **lists: ListWatcher) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return the tasks that follow *lists*, the configuration and the election."""
        lists["config"] = self.config
        return {
            **{name: self.leader_gate.follow(name, each) for name, each in lists.items()},
            "refused config": self.refused.run,
            "election": self.leader_gate.run,
        }

    def preemptor(self, budgets: Informer[PodDisruptionBudget]) -> Preemptor:
        """Return who chooses victims."""
        return Preemptor(
            self.core.ledger,
            self.core.bound_pods,
            self.core.matrix,
            budgets=lambda: tuple(budgets.items().values()),
            strategy=lambda: self.config.value,
            clock=self._clock,
        )

    def upkeep(
        self,
        *,
        nodes: Callable[[], Iterable[NodeCards]],
        pods: Callable[[], Iterable[AnyPod]],
        moves: Callable[[], Iterable[MoveClaims]],
        moves_served: Callable[[], bool],
    ) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return the tasks that compare, tell and learn, beside those that place pods."""
        core, metrics, gate = self.core, self.metrics, self.leader_gate
        ledger, waiting, clock = core.ledger, self.page.board.waiting, self._clock
        metrics.watch(
            assumed=lambda: len(ledger.assumed),
            leads=lambda: gate.leads,
            moves_served=moves_served,
            reservations=lambda: ledger.reservations.states(now=clock.now()),
            longest_pause_s=partial(longest_pause_s, asyncio.get_running_loop()),
            waiting=waiting.by_reason,
        )
        comparer = CacheComparer(
            ledger,
            core.matrix,
            nodes=nodes,
            pods=pods,
            moves=moves,
            clock=clock,
            on_drift=metrics.compared,
            on_overcommitted=metrics.overcommitted,
            every_s=self._settings.cache_comparison_period_s,
        )
        pool_events = PoolEvents(
            self.recorder, waiting=lambda: waiting.by_uid, nodes=nodes, clock=clock
        )
        learner = WorkloadLearner(core.least_waste, self.activity)
        learn = partial(learner.run, clock, core.changes, every_s=_LEARN_S)
        return {
            "audit": gate.once_listed(comparer.run),
            "pool events": gate.once_listed(pool_events.run),
            "learn the mix": gate.once_listed(learn),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lists:
    """What is listed of the cluster, as those see it who know nothing of claims.

    Attributes:
        watched: the informers.
        nodes: returns the nodes as the ledger is to have them.
        pods: returns the pods without a claim of ours.
        holders: yields all that may hold cards, whatever changes meanwhile.
        find: returns a pod by namespace and name.
        move_changed: takes notice of what a Move claims.
        tasks: what else follows them.
    """

    watched: Mapping[str, ListWatcher]
    nodes: Callable[[], Iterable[NodeCards]]
    pods: Callable[[], Iterable[AnyPod]]
    holders: Callable[[], Iterable[AnyPod]]
    find: Callable[[str, str], AnyPod | None]
    move_changed: Callable[[Change[MoveClaims]], None]
    tasks: Mapping[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)


def _extender_lists(
    core: SchedulerCore, client: KubeClient, *, on_pod: Callable[[Change[AnyPod]], None]
) -> _Lists:
    def pod_changed(change: Change[AnyPod]) -> None:
        core.handlers.pod_changed(change)
        on_pod(change)

    nodes = Informer(client, NODES, decode=read_offered_node, on_change=core.handlers.node_changed)
    pods = Informer(
        client,
        PODS,
        decode=decode_any_pod,
        field_selector=LIVE_PODS,  # with Jobs the ended ones can be most of all pods
        on_change=pod_changed,
    )
    return _Lists(
        watched={"nodes": nodes, "pods": pods},
        nodes=lambda: nodes.items().values(),
        pods=lambda: pods.items().values(),
        holders=lambda: tuple(pods.items().values()),
        find=pods.get,
        move_changed=core.handlers.move_changed,
    )


class _ClaimParts:
    """What makes claims, and the lists of which kube-scheduler's allocations are counted.

    Args:
        preemptor: chooses victims.
        on_pod: called with each change of a pod.
        both: whether an extender of ours assigns cards as well.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        shared: _Shared,
        settings: SchedulerSettings,
        client: KubeClient,
        clock: Clock,
        preemptor: Preemptor,
        *,
        on_pod: Callable[[Change[AnyPod]], None],
        both: bool,
    ) -> None:
        self.cache = cache = ClaimCache(
            shared.core,
            on_pod=on_pod,
            on_due=lambda uid: self.controller.note(uid),  # noqa: PLW0108 - it is made below
            assignments=both,
        )
        self.nodes = Informer(
            client, NODES, decode=observe_offered_node, on_change=cache.node_changed
        )
        self.pods = Informer(
            client,
            PODS,
            decode=decode_observed_pod,
            field_selector=LIVE_PODS,
            on_change=cache.pod_changed,
        )
        self.claims = Informer(
            client, RESOURCE_CLAIMS, decode=decode_claim, on_change=cache.claim_changed
        )
        quotas = Quotas(lambda namespace: self.controller.quota_changed(namespace))  # noqa: PLW0108
        self.quotas = Informer(client, RESOURCE_QUOTAS, decode=read_quota, on_change=quotas.changed)
        planner = ClaimPlanner(shared.core, cache.nodes)
        preemptions = Preemptions(
            client,
            cache,
            shared.core,
            preemptor,
            clock=clock,
            leads=lambda: shared.leader_gate.leads,
            limit_s=settings.bind_timeout_s,
            on_evicted=lambda *one: self.controller.preempted(*one),  # noqa: PLW0108
        )
        quota = ClaimQuota(cache, quotas.of)
        self.controller = ClaimController(
            client,
            cache,
            planner,
            preemptions,
            quota,
            ClaimGangs(
                shared.core,
                cache,
                planner,
                preemptions,
                quota,
                clock=clock,
                on_due=lambda uid: self.controller.note(uid),  # noqa: PLW0108
            ),
            find=self.pods.get,
            leads=lambda: shared.leader_gate.leads,
            recorder=shared.recorder,
            clock=clock,
            limit_s=settings.bind_timeout_s,
            activity=shared.activity,
            on_outcome=shared.metrics.claim,
        )

        shared.page.board.claim_status = self.controller.status_of
        self.lists = _Lists(
            tasks={"claims of pods": shared.leader_gate.once_listed(self.controller.run)},
            watched={
                "nodes": self.nodes,
                "pods": self.pods,
                "claims": self.claims,
                "quotas": self.quotas,
            },
            nodes=lambda: (node.cards for node in self.nodes.items().values()),
            pods=lambda: map(any_pod, self._without_claim()),
            holders=self._holders if both else lambda: cache.holders,
            find=self._find,
            move_changed=cache.move_changed,
        )

    def _without_claim(self) -> Iterable[ObservedPod]:
        for pod in tuple(self.pods.items().values()):
            if isinstance(pod, BoundPod) or not pod.info.claim_key:
                yield pod

    def _find(self, namespace: str, name: str) -> AnyPod | None:
        pod = self.pods.get(namespace, name)
        return None if pod is None else any_pod(pod)

    def _holders(self) -> Iterable[AnyPod]:
        yield from self.cache.holders
        for pod in self._without_claim():
            if not self.cache.holds(uid_of(pod)):
                yield any_pod(pod)


class _ExtenderParts:
    """What answers kube-scheduler, and binds the pods that it places.

    Args:
        record: the Bindings under way, which the Lease names.
        lists: pods, as observed.
        preemptor: chooses victims.

    Attributes:
        assumptions: the Bindings that no event has confirmed yet.
        resizer: grants other sizes to running pods; is to be told of each change of a pod.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        shared: _Shared,
        settings: SchedulerSettings,
        client: KubeClient,
        clock: Clock,
        *,
        registry: Registry,
        gate: ReadyGate,
        record: BindingRecord,
        lists: _Lists,
        preemptor: Preemptor,
    ) -> None:
        core, election, leader_gate = shared.core, shared.election, shared.leader_gate
        metrics, page = shared.metrics, shared.page
        certificate_tasks: Mapping[str, Callable[[], Awaitable[None]]] = {}
        tls = None
        if settings.tls_secret:
            tls = ServingTls(require_client_certificate=True, alpn=ALPN)
            certificate = CertificateWatcher(
                client,
                tls,
                metrics=CertificateMetrics("scheduler", registry, clock),
                namespace=settings.namespace,
                secret=settings.tls_secret,
            )
            certificate_tasks = certificate.tasks
            gate.add("certificate", certificate.problem)
        marker = PodMarker(
            client,
            term=lambda: election.term,
            clock=clock,
            limit_s=settings.bind_timeout_s,
            on_mark=metrics.marked,
        )
        find = pending_only(lists.find)
        cycles = BindingCycles(core.nominations, core.changes, clock, find=find)
        self.assumptions = Assumptions(
            client,
            core.ledger,
            clock,
            marker=marker,
            times=AssumptionTimeouts(
                request_s=settings.bind_timeout_s,
                check_s=settings.assumption_check_s,
                lapse_s=settings.assumption_timeout_s,
            ),
            on_lapse=metrics.lapsed,
            on_count=cycles.settle,
        )
        self.resizer = Resizer(
            client,
            ledger=core.ledger,
            marker=marker,
            leads=lambda: leader_gate.leads,
            record=election.renew,
            recorder=shared.recorder,
            clock=clock,
            limit_s=settings.bind_timeout_s,
        )
        fence = Fence(
            lists.pods,
            record,
            marker,
            clock,
            on_bound=self.assumptions.count_bound,
            limit_s=settings.fence_timeout_s,
        )
        leader_gate.also(fence.why_not)
        activator = PodActivator(
            core.ledger,
            core.matrix,
            pods=lists.pods,
            find=find,
            marker=marker,
            strategy=lambda: shared.config.value,
            leads=lambda: leader_gate.leads,
            clock=clock,
        )
        binder = Binder(
            client,
            cards=core.cards,
            assumptions=self.assumptions,
            find=find,
            leads=lambda: leader_gate.leads,
            term=lambda: election.term,
            record=election.renew,
            clock=clock,
            metrics=metrics,
            limit_s=settings.bind_timeout_s,
            host_left=core.host_left,
            groups=BindGroups(clock, pause_s=settings.bind_pause_s),
        )
        self.tasks = {
            **certificate_tasks,
            **_beside_kube_scheduler(settings, client, clock, gate, leader_gate, metrics),
            "assumptions": self.assumptions.expire,
            "fence": leader_gate.once_listed(fence.run),
            "resizes": leader_gate.once_listed(fence.once_up(self.resizer.run)),
            "wake": leader_gate.once_listed(fence.once_up(activator.run)),
            "gangs": leader_gate.once_listed(partial(core.gangs.run, marker)),
        }
        self.server = ExtenderServer(
            extender=core.extender,
            stale_cache_retry=StaleCacheRetry(
                core.extender, core.changes, clock, limit_s=settings.stale_cache_timeout_s
            ),
            cycles=cycles,
            gangs=core.gangs,
            preemptor=preemptor,
            binder=binder,
            leader_gate=leader_gate,
            metrics=metrics,
            clock=clock,
            registry=registry,
            readiness=gate.readiness,
            host=settings.listen_host,
            port=settings.listen_port,
            body_limit_mib=settings.body_limit_mib,
            ssl_context=None if tls is None else tls.context,
            on_filtered=page.answers.note,
            narrow=narrowed if settings.narrow_filter else None,
            activity=shared.activity,
            find=find,
        )


def _wire(
    settings: SchedulerSettings,
    client: KubeClient,
    clock: Clock,
    registry: Registry,
    gate: ReadyGate,
    wirings: Wirings,
) -> Running:
    """Return the parts of the wirings that the cluster has.

    With both, nodes and pods are listed once, and one ledger counts assignments and claims.
    """
    extends, claims = map(wirings.serves, (Wiring.DEVICE_PLUGIN, Wiring.CLAIMS))
    record = BindingRecord(lambda: extender.assumptions.under_way())  # noqa: PLW0108 - made below
    shared = _Shared(settings, client, clock, registry, gate, notes=record if extends else None)
    page, leader_gate = shared.page, shared.leader_gate

    def pod_changed(change: Change[AnyPod]) -> None:
        if extends:
            extender.resizer.pod_changed(change)
        page.board.pod_changed(change)

    budgets = Informer(client, PDBS, decode=read_budget)
    preemptor = shared.preemptor(budgets)
    if claims:
        parts = _ClaimParts(
            shared, settings, client, clock, preemptor, on_pod=pod_changed, both=extends
        )
        lists = parts.lists
    else:
        lists = _extender_lists(shared.core, client, on_pod=pod_changed)
    moves = Informer(client, MOVES, decode=read_claims, on_change=lists.move_changed, optional=True)
    tasks = {
        **shared.follow(**lists.watched, budgets=budgets, moves=moves),
        **page.tasks(leader_gate),
        **lists.tasks,
        **shared.upkeep(
            nodes=lists.nodes,
            pods=lists.holders,
            moves=lambda: moves.items().values(),
            moves_served=lambda: moves.served,
        ),
        "settle memory": settling_memory(
            leader_gate, shared.core, clock, lists=tuple(lists.watched.values())
        ),
    }
    servers = page.servers(leader_gate)
    if extends:
        extender = _ExtenderParts(
            shared,
            settings,
            client,
            clock,
            registry=registry,
            gate=gate,
            record=record,
            lists=lists,
            preemptor=preemptor,
        )
        tasks |= extender.tasks
        servers = (extender.server, *servers)
    return Running(tasks=tasks, servers=servers)


def _beside_kube_scheduler(
    settings: SchedulerSettings,
    client: KubeClient,
    clock: Clock,
    gate: ReadyGate,
    leader_gate: LeaderGate,
    metrics: SchedulerMetrics,
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the tasks that only a replica in a pod has: its endpoint, and the version check."""
    tasks: dict[str, Callable[[], Awaitable[None]]] = {}
    if settings.announce_service:
        announcement = LeaderEndpoint(
            client,
            clock,
            service=settings.announce_service,
            namespace=settings.namespace,
            endpoint=Endpoint(
                address=settings.announce_address,
                port=settings.listen_port,
                node=settings.announce_node,
            ),
            leads=lambda: leader_gate.leads,
        )
        tasks["announcement"] = leader_gate.once_listed(announcement.run)
    if settings.own_pod:
        skew = VersionSkewCheck(
            client,
            clock,
            namespace=settings.namespace,
            pod=settings.own_pod,
            on_known=metrics.skew,
        )
        tasks["versions"] = skew.run
        gate.add("kube-scheduler version", skew.problem)
    return tasks


class _Page:
    """The parts of the page; without a port for it they only take notice of changes."""

    def __init__(
        self,
        settings: SchedulerSettings,
        client: KubeClient,
        core: SchedulerCore,
        clock: Clock,
        *,
        identity: str,
        strategy: Callable[[], Strategy],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._identity = identity
        self._strategy = strategy
        self.answers = FilterAnswers(clock)
        self.board = Board(
            core, self.answers, facts=self._facts, clock=clock, epoch=uuid.uuid4().hex[:12]
        )
        self._explainer = Explainer(client, core, self.board, strategy=strategy, clock=clock)
        self._moves = Informer(
            client, MOVES, decode=decode_move, on_change=self.board.move_changed, optional=True
        )
        self._hot_line = ConfigWatcher(
            client,
            name=settings.config_map,
            namespace=settings.namespace,
            key=config_keys.REBALANCER,
            parse=hot_line.parse_hot_ratio,
            default=hot_line.DEFAULT,
        )

    def tasks(self, leader_gate: LeaderGate) -> dict[str, Callable[[], Awaitable[None]]]:
        if not self._settings.page_port:
            return {}
        return {
            "page": leader_gate.once_listed(self.board.run),
            "hot line": leader_gate.once_listed(self._hot_line.run),
            "moves of the page": leader_gate.once_listed(self._moves.run),
        }

    def servers(self, leader_gate: LeaderGate) -> tuple[Server, ...]:
        if not self._settings.page_port:
            return ()
        return (
            PageServer(
                self.board,
                self._explainer,
                why_not=lambda: self._why_not(leader_gate),
                clock=self._clock,
                port=self._settings.page_port,
            ),
        )

    def _why_not(self, leader_gate: LeaderGate) -> str | None:
        why_not = leader_gate.why_not()
        if why_not is None or leader_gate.leads:
            return why_not
        lease, namespace = self._settings.lease, self._settings.namespace
        return (
            f"{why_not}, and the page is there: forward a port of the pod that is the holder of "
            f"Lease {lease} in {namespace}"
        )

    def _facts(self) -> PageFacts:
        return PageFacts(
            leader=self._identity,
            strategy=self._strategy(),
            hot_ratio=self._hot_line.value,
            moves_served=self._moves.served,
        )
