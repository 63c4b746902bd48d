"""Moves on a real control plane, by rebalancers that are processes; kubelets and load are played.

Every card holds one companion pod. Workloads come and go on top; :meth:`MovingCluster.heat` makes
the card of one of them hot. Each rebalancer reaches the API server through a gate of its own, with
the permissions and under the policies of ``deploy/``.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import yaml

from component.wiring import Wiring
from fracgpu import names
from fracgpu.cards.card import Card, CordonEffect
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import ENDED, Move, MovePhase, decode_move
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.errors import AlreadyExists, NotFound
from kube.informer import Change, ChangeType, Informer
from kube.kinds import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    MOVES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    STATEFULSETS,
    Kind,
)
from kube.objects import identity
from kube.retry import RetryPolicy
from process.clock import SystemClock
from rebalancer.config import parse_policy
from rebalancer.usage import promql
from simulator.background import background
from simulator.demo.rebalancer import command
from simulator.demo.service_accounts import install_rights, token_of
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.ports import free_ports
from simulator.kubeconfig import write_kubeconfig
from tests.fakes.prometheus import answering, serving
from tests.support.api_gate import ApiGate, Trigger, Write, kind_of
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards
from tests.support.moving import NAMESPACE, SHORT_TIMES, end_pod, play_kubelets
from tests.support.moving_claims import ClaimedCards, moving_claims
from tests.support.processes import Child
from tests.support.real_scheduler import Harness, real_scheduler
from tests.support.waiting import until, until_true

POD_MIB: Final = 4000
EVICT: Final = {names.REBALANCE: "evict"}
_MOST_DEATHS: Final = 6  # after writes of one kind


def a_workload(
    name: str,
    *,
    replicas: int = 1,
    mib: int = POD_MIB,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a Deployment, ReplicaSet or StatefulSet whose pods are labelled with its name."""
    template = a_gpu_pod("template", mib=mib, namespace=NAMESPACE, annotations=annotations)
    metadata = {"labels": {"app": name}, "annotations": template["metadata"]["annotations"]}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": metadata, "spec": template["spec"]},
            **spec,
        },
    }


def a_job(name: str) -> dict[str, Any]:
    """Return a Job that may be moved: an eviction is no failure."""
    template = a_workload(name, annotations=EVICT)["spec"]["template"]
    template["spec"]["restartPolicy"] = "Never"
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    spec = {"backoffLimit": 0, "podFailurePolicy": {"rules": [ignored]}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


_PHASES: Final = (
    MovePhase.RESERVED,
    MovePhase.NOTICED,
    MovePhase.SURGING,
    MovePhase.REPLACEMENT_READY,
    MovePhase.EVICTING,
    MovePhase.EVICTED,
    MovePhase.VERIFYING,
    MovePhase.DONE,
)

# After each of these a rebalancer dies that is killed at every write of a surge.
EVERY_WRITE: Final = {
    "creating",
    *(f"entering {phase.value}" for phase in _PHASES),
    "releasing",
    "evicting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One rebalancer: its process, and the gate between it and the API server."""

    name: str
    process: Child
    gate: ApiGate

    def send(self, number: signal.Signals) -> None:
        """Send a signal now; the process is not waited for."""
        self.process.send(number)

    def kill_at(self, trigger: Trigger) -> None:
        """Let the process die at the first write that *trigger* selects, once it has succeeded."""
        self.gate.set_trap(trigger, lambda: self.send(signal.SIGKILL))

    @contextmanager
    def killed_at_every_write(self) -> Iterator[list[str]]:
        """Let the process die after each of its writes; yields their kinds as they happen.

        It has to be started again each time. Of one kind a few are enough: a process that begins
        with the same write each time would never come further.
        """
        found: list[str] = []

        def is_new(write: Write) -> bool:
            kind = kind_of(write)
            if write.of_lease or not write.for_real or found.count(kind) == _MOST_DEATHS:
                return False
            found.append(kind)
            return True

        def kill() -> None:
            if self.process.alive:
                self.send(signal.SIGKILL)
            self.gate.set_trap(is_new, kill)

        self.gate.set_trap(is_new, kill)
        try:
            yield found
        finally:
            self.gate.set_trap(lambda _: False)

    def hold_at(self, trigger: Trigger) -> asyncio.Event:
        """Let the process wait for the answer to such a write until the returned event is set."""
        go_on = asyncio.Event()
        self.gate.set_trap(trigger, held=go_on)
        return go_on

    def pause_at(self, trigger: Trigger) -> None:
        """Let the process stand still from such a write on, before it learns of its success."""
        self.gate.set_trap(trigger, lambda: self.send(signal.SIGSTOP), deliver=True)


@asynccontextmanager
async def a_replica(
    name: str,
    api: ControlPlane,
    token: str,
    *words: str,
    workdir: Path,
    times: Mapping[str, Any],
) -> AsyncIterator[Replica]:
    """Start a rebalancer with the holder of *token*'s permissions; it is killed at the end."""
    gate = ApiGate(api.url, ca_file=api.ca_file)
    async with gate.open():
        config = write_kubeconfig(
            workdir / f"{name}.kubeconfig", server=gate.url, token=token, ca_file=None
        )
        (telemetry,) = free_ports(1)
        process = Child(
            [
                *command(times),
                f"--kubeconfig={config}",
                *(
                    f"--telemetry-port={telemetry}",
                    "--telemetry-host=127.0.0.1",
                    "--drain-wait-s=0",
                ),
                *words,
            ],
            log=workdir / f"{name}.log",
        )
        await process.start()
        try:
            yield Replica(name=name, process=process, gate=gate)
        finally:
            await process.kill()


_ENOUGH: Final = 1000.0  # samples in a window
_FREE_MIB: Final = 20_000.0
_IDLE: Final = 0.05

_Rows = list[tuple[dict[str, str], float]]


class MeasuredLoad:
    """Answers the queries of a policy's windows; a load lasts as long as the test says it.

    Attributes:
        cards: every card's node.
        pods: the card of every pod that is bound.
        busy: the share of its card that a pod uses, 0..1; others use little.
        blind: while it is set, no query is answered.
    """

    def __init__(self, policy: RebalancerPolicy, cards: Mapping[str, str]) -> None:
        self.cards = cards
        self.pods: dict[str, str] = {}
        self.busy: dict[str, float] = {}
        self.blind = False
        self._hot_ratio = policy.hot_ratio
        self._answers = self._table(policy)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve on loopback; yield the base address."""
        heads: list[str] = []

        async def behave(writer: asyncio.StreamWriter) -> None:
            target = heads[-1].split(" ")[1]
            query = parse_qs(urlsplit(target).query)["query"][0]
            if self.blind:
                await answering("busy", status=503)(writer)
                return
            await answering({"status": "success", "data": self._data(query)})(writer)

        async with serving(behave, heads) as (url, _):
            yield url

    def level(self, card: str) -> float:
        """Return the busy share of a card, 0..1."""
        here = [uid for uid, its in self.pods.items() if its == card]
        return min(1.0, _IDLE + sum(self.busy.get(uid, 0.0) for uid in here))

    def _data(self, query: str) -> dict[str, Any]:
        now = SystemClock().now().timestamp()
        if query == promql.SERVER_TIME:
            return {"resultType": "scalar", "result": [now, f"{now:.3f}"]}
        rows = self._answers[query]()
        result = [{"metric": labels, "value": [now, str(value)]} for labels, value in rows]
        return {"resultType": "vector", "result": result}

    def _table(self, policy: RebalancerPolicy) -> Mapping[str, Callable[[], _Rows]]:
        def constant(value: float) -> Callable[[], _Rows]:
            return lambda: self._each(lambda _: value)

        def percent() -> _Rows:
            return self._each(lambda card: 100 * self.level(card))

        def hot() -> _Rows:
            return self._each(lambda card: float(self.level(card) > self._hot_ratio))

        of_pods = self._each_pod
        means = (
            promql.level,
            promql.slow_level,
        )
        absent = (
            promql.COLLECT_AGE,
            promql.power_changes(policy),
            promql.lately_power_changes(1.0),
            promql.active(policy),
            promql.POD_OVERUSE,
        )
        return {
            promql.AGE: constant(0.5),
            promql.FREE_MIB: constant(_FREE_MIB),
            promql.BUSY: percent,
            promql.peak(policy): percent,
            **{mean(policy): percent for mean in means},
            promql.samples(policy): constant(_ENOUGH),
            promql.history(policy): constant(_ENOUGH),
            promql.fast_hot(policy): hot,
            promql.slow_hot(policy): hot,
            promql.busy_changes(policy): constant(3),
            promql.lately_busy_changes(1.0): constant(3),
            promql.interval(policy.fast_window_s): constant(1.0),
            promql.interval(policy.forecast_window_s): constant(1.0),
            promql.pod_samples(policy): lambda: [(labels, _ENOUGH) for labels, _ in of_pods()],
            promql.pod_mean(policy): of_pods,
            **dict.fromkeys(absent, list),
        }

    def _each(self, value: Callable[[str], float]) -> _Rows:
        return [
            ({"UUID": card, "job": "gpu", "instance": node}, value(card))
            for card, node in self.cards.items()
        ]

    def _each_pod(self) -> _Rows:
        return [
            ({"UUID": card, "pod_uid": uid}, 100 * self.busy.get(uid, 0.0))
            for uid, card in self.pods.items()
        ]


CARD_MIB: Final = 24_000
COMPANION_MIB: Final = 14_000
BUSY: Final = 0.45
LEASE: Final = "fracgpu-rebalancer"

TIMES: Final[Mapping[str, Any]] = {
    **SHORT_TIMES,
    "settle_s": 5,
    "cordon_s": 60,
    "min_pod_age_s": 0,
    "ready_s": 2,
    "max_per_namespace_per_hour": 1000,
    "card_cooldown_s": 1,
    "breaker_aborts": 100,
}
CONFIG: Final[Mapping[str, Any]] = {"mode": "active", "maxPerHour": 1000, "maxPerDay": 1000}

_RIGHTS: Final = ("fracgpu-rebalancer", "fracgpu-moves")


class MovingCluster:
    """The cluster, its load, and its rebalancers by name."""

    def __init__(
        self,
        harness: Harness,
        load: MeasuredLoad,
        workdir: Path,
        prometheus: str,
        times: Mapping[str, Any],
        *,
        claimed: ClaimedCards | None = None,
    ) -> None:
        self.harness = harness
        self._claimed = claimed
        self._pods: dict[str, Change[PodInfo]] = {}
        self.kube: KubeClient = harness.client
        self.load = load
        self.replicas: dict[str, Replica] = {}
        self.clients = AsyncExitStack()
        self.restarting = False  # rebalancers that have ended, as kubelet does
        self._hot = ""
        self.arrived: Callable[[PodInfo], None] = lambda _: None  # a replacement, on its card
        self.unready: Callable[[PodInfo], bool] = lambda _: False
        self._workdir, self._prometheus, self._times = workdir, prometheus, times
        self._ready: dict[str, set[str]] = {}
        self.fewest_ready: dict[str, int] = {}

    async def pods(self, app: str = "") -> list[PodInfo]:
        """Return the pods of one workload, or all; those that are terminating included."""
        selector = f"app={app}" if app else None
        listed = await self.kube.list(PODS, namespace=NAMESPACE, label_selector=selector)
        found = [decode_pod_info(bytes(raw)) for raw in listed.items]
        return found if self._claimed is None else await self._claimed.of(self.kube, found)

    async def moves(self, app: str) -> list[Move]:
        """Return the Moves of one workload's pods, the oldest first."""
        found = [decode_move(bytes(raw)) for raw in (await self.kube.list(MOVES)).items]
        mine = [move for move in found if move.spec.pod.name.startswith(f"{app}-")]
        return sorted(mine, key=lambda move: move.name)

    async def move(self, app: str) -> Move:
        """Return the only Move of a workload."""
        (found,) = await self.moves(app)
        return found

    async def leader(self) -> str:
        """Return who holds the Lease; empty if nobody does."""
        try:
            lease = await self.kube.get_object(LEASES, LEASE, namespace=names.SYSTEM_NAMESPACE)
        except NotFound:
            return ""
        return str(lease["spec"].get("holderIdentity") or "")

    async def leading(self) -> Replica:
        """Return the leader; one is started if none runs."""
        if not any(replica.process.alive for replica in self.replicas.values()):
            await self.start(f"rebalancer-{len(self.replicas)}")

        async def one_leads() -> bool:
            name = await self.leader()
            return name in self.replicas and self.replicas[name].process.alive

        await until(one_leads, what="a rebalancer leads", limit_s=90)
        return self.replicas[await self.leader()]

    async def wait_move(
        self, app: str, holds: Callable[[Move], bool], *, what: str, limit_s: float = 60
    ) -> Move:
        """Wait until a workload has one Move of which something holds; returns it."""
        found: list[Move] = []

        async def check() -> bool:
            found[:] = await self.moves(app)
            return len(found) == 1 and holds(found[0])

        try:
            await until(check, what=what, limit_s=limit_s)
        except AssertionError as error:
            tails = [f"{name}: {one.process.tail(25)}" for name, one in self.replicas.items()]
            raise AssertionError("\n".join([f"{error}: {found}", *tails])) from None
        return found[0]

    async def wait_leader(self, name: str) -> None:
        async def leads() -> bool:
            return await self.leader() == name

        await until(leads, what=f"{name} leads")

    async def wait_sprung(self, replica: Replica) -> None:
        """Wait until what was set at the replica's gate has happened."""
        try:
            await until_true(replica.gate.sprung.is_set, what="the write")
        except AssertionError as error:
            raise AssertionError(f"{error}: {replica.process.tail(25)}") from None

    # What happens to it.

    async def add(self, kind: Kind, body: Mapping[str, Any], *, pods: int = 1) -> str:
        """Create a workload and wait until it is complete; returns its name."""
        created = await self.kube.create(kind, dict(body), namespace=NAMESPACE)
        app: str = created["metadata"]["name"]

        async def complete() -> bool:
            found = await self.pods(app)
            return len(found) == pods and all(pod.ready for pod in found)

        await until(complete, what=f"{app} is complete", limit_s=120)
        self.fewest_ready[app] = pods
        return app

    async def heat(self, app: str) -> PodInfo:
        """Make the card of a workload's pod hot; returns the pod."""
        pod = min(await self.pods(app), key=lambda pod: pod.record.name)
        card = card_of(pod)
        others = [one for one in await self.pods("companion") if card_of(one) == card]
        self.load.busy = {one.record.uid: BUSY for one in (pod, *others)}
        self._hot = app
        return pod

    def keep_load(self) -> None:
        """Let pods that are created from now on use little."""
        self._hot = ""

    def cool(self) -> None:
        """Let every pod use little."""
        self.keep_load()
        self.load.busy = {}

    async def start(self, name: str) -> Replica:
        """Start a rebalancer."""
        token = await token_of(self.kube, "rebalancer")
        words = [f"--prometheus-url={self._prometheus}", f"--identity={name}"]
        opened = a_replica(
            name, self.harness.api, token, *words, workdir=self._workdir, times=self._times
        )
        self.replicas[name] = await self.clients.enter_async_context(opened)
        return self.replicas[name]

    async def outage(self, seconds: float) -> None:
        """Stop kube-apiserver, and start it again after that time; etcd keeps its data."""
        await self.harness.api.stop_serving()
        await asyncio.sleep(seconds)
        await self.harness.api.serve_again()

    async def configure(self, **changes: Any) -> None:
        """Edit the ConfigMap as an administrator does."""
        patch = {"data": {"rebalancer": yaml.safe_dump({**CONFIG, **changes})}}
        await self.kube.patch(CONFIGMAPS, names.CONFIG_MAP, patch, namespace=names.SYSTEM_NAMESPACE)

    async def clean(self) -> None:
        """Remove every workload and every Move, and let nothing be hot, as in the beginning."""
        self.cool()
        self.load.blind = self.restarting = False
        self.unready = lambda _: False
        self.arrived = lambda _: None
        self.fewest_ready.clear()
        await self.configure()
        for kind in (DEPLOYMENTS, STATEFULSETS, JOBS, PDBS, RESOURCE_QUOTAS):
            for raw in (await self.kube.list(kind, namespace=NAMESPACE)).items:
                name = identity(bytes(raw)).name
                with suppress(NotFound):
                    await self.kube.delete(kind, name, namespace=NAMESPACE)

        async def only_companions() -> bool:
            for pod in await self.pods():
                if not pod.owner and not pod.record.name.startswith("companion-"):
                    with suppress(NotFound):
                        await end_pod(self.kube, pod.record.name)
            return all(pod.record.name.startswith("companion-") for pod in await self.pods())

        await until(only_companions, what="only companions are left", limit_s=90)
        for raw in (await self.kube.list(MOVES)).items:
            await self.kube.delete(MOVES, decode_move(bytes(raw)).name)

    # What must hold afterwards.

    async def settle(
        self, app: str, *, pods: int = 1, moves: int = 1, limit_s: float = 120
    ) -> list[Move]:
        """Wait until nothing of a workload's moves is left to do; returns its Moves.

        It has just its *pods*, Ready and with their owner; its Moves have ended; no reservation
        is held, no card is closed (one that was relieved may be avoided), and nothing carries the
        marks of a move.
        """
        wrong: list[str] = []

        async def settled() -> bool:
            wrong[:] = await self._wrong(app, pods=pods, moves=moves)
            return not wrong

        try:
            await until(settled, what=f"{app} is settled", limit_s=limit_s)
        except AssertionError as error:
            tails = [f"{name}: {one.process.tail(25)}" for name, one in self.replicas.items()]
            raise AssertionError("\n".join([f"{error}: {wrong}", *tails])) from None
        return await self.moves(app)

    async def _wrong(self, app: str, *, pods: int, moves: int) -> list[str]:
        found = await self.pods(app)
        wrong = [] if len(found) == pods else [f"{len(found)} pods instead of {pods}"]
        for pod in found:
            name = pod.record.name
            marks = {names.MOVED_BY, names.NOTICE} & set(pod.annotations)
            wrong += [f"{name} has no owner"] if pod.owner is None else []
            wrong += [f"{name} is not Ready"] if not pod.ready else []
            wrong += [f"{name} has {mark}" for mark in marks]
        of_app = await self.moves(app)
        wrong += [] if len(of_app) == moves else [f"{len(of_app)} Moves instead of {moves}"]
        wrong += [
            f"{one.name} is {one.status.phase}" for one in of_app if one.status.phase not in ENDED
        ]
        wrong += await self._held()
        for raw in (await self.kube.list(NODES)).items:
            node = read_node(bytes(raw))
            wrong += [
                f"card {cordon.card} is cordoned"
                for cordon in node.cordons
                if cordon.effect is CordonEffect.NO_SCHEDULE
            ]
        return wrong

    async def _held(self) -> list[str]:
        try:
            held = await self.harness.metric('fracgpu_scheduler_reservations{state="held"}')
        except OSError:
            return ["the extender does not answer"]
        return [f"{held:g} reservations are held"] if held else []

    # What follows the pods and the processes.

    def on_change(self, change: Change[PodInfo]) -> None:
        """Follow where pods are, and count each workload's Ready pods after every change."""
        self._pods[change.uid] = change
        self._follow(change, change.object)

    def on_claim(self, change: Change[DeviceClaim]) -> None:
        """Follow where a pod is that holds its card by a claim."""
        claim, pod = change.object, self._pods.get(change.object.holder)
        if self._claimed is not None and pod is not None and change.type is not ChangeType.DELETED:
            (joined,) = self._claimed.join([pod.object], [claim])
            self._follow(pod, joined)

    def _follow(self, change: Change[PodInfo], pod: PodInfo) -> None:
        app = pod.labels.get("app", "")
        gone = change.type is ChangeType.DELETED
        arrived = change.uid in self.load.pods
        if gone:
            self.load.pods.pop(change.uid, None)
        elif pod.record.assignment:
            self.load.pods[change.uid] = min(cards_of(pod))
        if app and app == self._hot and change.uid not in self.load.busy:
            self.load.busy[change.uid] = BUSY  # the replacement does the same work
        if app and app == self._hot and change.uid in self.load.pods and not arrived:
            self.arrived(pod)
        ready = self._ready.setdefault(app, set())
        counts = not gone and pod.ready and not pod.record.terminating
        (ready.add if counts else ready.discard)(change.uid)
        if app in self.fewest_ready:
            self.fewest_ready[app] = min(self.fewest_ready[app], len(ready))

    def is_unready(self, pod: PodInfo) -> bool:
        """Report whether the test keeps a pod from becoming Ready."""
        return self.unready(pod)

    async def restart_rebalancers(self) -> None:
        """Start rebalancers that have ended, while that is asked for."""
        while True:
            for replica in [*self.replicas.values()] if self.restarting else ():
                if not replica.process.alive:
                    await replica.process.start()
            await asyncio.sleep(0.2)


def cards_of(pod: PodInfo) -> set[str]:
    """Return the cards of a pod; none before it is bound."""
    return {part.card for parts in (pod.record.assignment or {}).values() for part in parts}


def card_of(pod: PodInfo) -> str:
    """Return the only card of a pod."""
    (one,) = cards_of(pod)
    return one


@asynccontextmanager
async def a_moving_cluster(
    workdir: Path,
    *,
    fleet: Mapping[str, Sequence[Card]] | None = None,
    companions: bool = True,
    by_claims: bool = False,
    times: Mapping[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[MovingCluster]:
    """Start the control plane with our extender; rebalancers are started by the test.

    Args:
        workdir: for state and logs.
        fleet: the cards of each node; by default four on each of two.
        companions: put one pod on every card.
        by_claims: the cluster's own kube-scheduler allocates claims, in place of our extender.
        times: changes of the rebalancer's times.
        config: changes of its key of the ConfigMap.
    """
    two = {name: some_cards(name, mib=CARD_MIB) for name in ("gpu-1", "gpu-2")}
    nodes = two if fleet is None else fleet
    bodies = [a_sharing_node(name, cards=cards) for name, cards in nodes.items()]
    on = {str(card.uuid): name for name, cards in nodes.items() for card in cards}
    text = yaml.safe_dump({**CONFIG, **config})
    wiring = Wiring.CLAIMS if by_claims else Wiring.DEVICE_PLUGIN
    all_times = {**TIMES, **(times or {})}
    load = MeasuredLoad(parse_policy(text, base=RebalancerPolicy(**all_times)), on)
    opened = (
        moving_claims(workdir, nodes)
        if by_claims
        else real_scheduler(workdir, bodies, controllers=True)
    )
    async with opened as harness, load.serve() as prometheus:
        kube = harness.client
        await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await install_rights(kube, only=_RIGHTS, wiring=wiring)
        await _write_config(kube, {"rebalancer": text, "wiring": wiring.value})
        claimed = ClaimedCards(nodes) if by_claims else None
        cluster = MovingCluster(harness, load, workdir, prometheus, all_times, claimed=claimed)
        # After an outage the load has to follow the pods at once: half a minute later, a rebalancer
        # that was started anew would already have judged the move by the pod that has left.
        backoff = RetryPolicy(longest_pause_s=0.5)
        informer = Informer(
            kube, PODS, decode=decode_pod_info, on_change=cluster.on_change, backoff=backoff
        )
        claims = Informer(
            kube,
            RESOURCE_CLAIMS,
            decode=decode_claim,
            on_change=cluster.on_claim,
            optional=True,
            backoff=backoff,
        )
        async with (
            cluster.clients,
            background(
                play_kubelets(kube, cluster.pods, unready=cluster.is_unready),
                cluster.restart_rebalancers(),
                informer.run(),
                claims.run(),
            ),
        ):
            await informer.wait_synced()
            if companions:
                await _fill(cluster, count=len(on))
            yield cluster


async def _write_config(kube: KubeClient, data: Mapping[str, str]) -> None:
    meta = {"name": names.CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE}
    try:
        await kube.create(CONFIGMAPS, {"metadata": meta, "data": data})
    except AlreadyExists:
        await kube.patch(CONFIGMAPS, meta["name"], {"data": data}, namespace=meta["namespace"])


async def _fill(cluster: MovingCluster, *, count: int) -> None:
    """Put one companion on every card; two do not fit on one."""
    never = {names.REBALANCE: "never"}
    for index in range(count):
        body = a_gpu_pod(
            f"companion-{index}", mib=COMPANION_MIB, namespace=NAMESPACE, annotations=never
        )
        body["metadata"]["labels"] = {"app": "companion"}
        await cluster.kube.create(PODS, body)

    async def running() -> bool:
        return all(pod.ready for pod in await cluster.pods("companion"))

    await until(running, what="every companion runs", limit_s=120)
