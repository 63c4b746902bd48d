"""A policy of the rebalancing judge that decides with the rebalancer's own code.

``make bench-rebalancer`` runs it. It only converts: what the judge measured goes in as
Prometheus' answers, its pods as from the API server, its history as past moves. Planned moves are
checked once more before they begin, one cycle later, as the rebalancer does.
"""

import json
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeVar
from zlib import crc32

from benchmarks.fixtures.judged_prometheus import (
    JudgedCard,
    JudgedPod,
    JudgedPrometheus,
)
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.disruption.brakes import effective_mode, open_breakers
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import CardHeat, CardUsage, blindness
from fracgpu.disruption.planner import advance_all, cards_to_cordon, plan_moves, validate_move
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.disruption.verification import verify
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.need import DEFAULT_STRATEGY
from fracgpu.state.bound_pod import bound_pod_of
from fracgpu.state.cluster_state import PlacedPod, scheduling_by_cards, settled_workloads
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import (
    Ending,
    Move,
    MoveMode,
    MoveSpec,
    Replacement,
    new_move,
)
from fracgpu.state.pod_info import pod_info_of
from fracgpu.units import Mib
from rebalancer.usage.measured import LoadRecorder, MeasuredUsage
from rebalancer.usage.prometheus import Sample
from simulator.usage_replay.world import disturbing, replaced

_TICK_S: Final = 57.0  # the judge's step: one scrape and one cycle
_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_KEPT: Final = timedelta(days=7)  # of past moves
_NAMESPACES: Final = 12
_CONTAINER: Final = "main"
# A card of the judge may hold more pods than the number that a device plugin offers by default.
_SLOTS: Final = 1_000

_ENDINGS: Final = {True: Ending.RELIEVED, False: Ending.USELESS, None: Ending.UNVERIFIED}

_T = TypeVar("_T")

# The defaults, at the judge's pace.
POLICY: Final = RebalancerPolicy(
    mode=Mode.ACTIVE,
    tick_s=_TICK_S,
    step_s=_TICK_S,
)


class JudgedMove(Protocol):
    """What became of a decision, as the judge tells it."""

    @property
    def pod(self) -> str: ...
    @property
    def begun_s(self) -> float: ...
    @property
    def landed(self) -> str | None: ...
    @property
    def ready_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Move *pod* to *target*; with *surge*, it leaves when its replacement is ready."""

    pod: str
    target: str
    surge: bool


class Policy:
    """Decides as the rebalancer does.

    Attributes:
        name: as the judge's tables show it.
        landing: ``target``, because a Move reserves the card that its replacement gets.
        held: how often each reason held a move back, for the judge's ``--why``.
    """

    name: Final = "fracgpu"
    landing: Final = "target"

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self._heat: dict[CardUuid, CardHeat] = {}
        self._planned: list[Move] = []
        self._moves: dict[str, MoveSpec] = {}
        self._ended: dict[str, Move] = {}
        self._replacements: dict[str, str] = {}
        self._given_up: list[Move] = []
        self._loads = LoadRecorder(self)
        self._prometheus: JudgedPrometheus | None = None
        self._ledger = Ledger()
        self._index = SnapshotIndex()
        self._pods: dict[str, PlacedPod] = {}
        self._scheduling = scheduling_by_cards((), ())
        self._workloads = settled_workloads(())
        self._cordoned: frozenset[CardUuid] = frozenset()

    def repelled(self) -> frozenset[str]:
        """Return the cards that are cordoned."""
        return frozenset(str(card) for card in self._cordoned)

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        """Return this cycle's answer to a query."""
        assert self._prometheus is not None, "a cycle asks"  # noqa: S101
        return await self._prometheus.query(query, at_s=at_s)

    def decide(
        self,
        now_s: float,
        cards: Sequence[JudgedCard],
        pods: Sequence[JudgedPod],
        history: Sequence[JudgedMove],
    ) -> list[Decision]:
        """Run one cycle; return the moves that begin now."""
        now = _EPOCH + timedelta(seconds=now_s)
        prometheus = JudgedPrometheus(POLICY, cards, pods, now.timestamp())
        self._prometheus = prometheus
        _at_once(self._loads.observe(POLICY, at_s=now.timestamp()))
        asked = [CardUuid(card.id) for card in cards]
        usage = _at_once(MeasuredUsage(prometheus).observe(asked, POLICY)).usage
        self._observe(cards, pods)
        self._replaced(history, pods)
        found = [self._past_move(fact, usage, now=now) for fact in history]
        begun = [past_move for past_move in found if past_move is not None]
        begun += self._given_up
        past = [*begun, *self._planned]
        self._heat = advance_all(self._heat, usage, past, policy=POLICY, now=now)
        state = DisruptionState(
            snapshot=self._ledger.snapshot(now=now),
            usage=usage,
            heat=self._heat,
            pods=self._pods,
            scheduling=self._scheduling,
            workloads=self._workloads,
            index=self._index,
            past=past,
            strategy=DEFAULT_STRATEGY,
            scheduler_name=names.SCHEDULER_NAME,
            leading_since=_EPOCH,
            history=self._loads.history(past),
        )
        state.learn()
        mode = self._mode(state, now=now)
        beginning = list(self._beginning(state, mode, now=now))
        begun += [disturbing(past_move.spec, now=past_move.planned_at) for past_move in beginning]
        waiting = [*begun, *self._planned]
        plan = plan_moves(replace(state, past=waiting), policy=POLICY, now=now)
        self._count(held.reason.label for held in plan.held)
        if mode is Mode.ACTIVE:
            self._planned += [new_move(move, now=now) for move in plan.moves]
        state = replace(state, past=[*begun, *self._planned])
        self._cordoned = cards_to_cordon(state, policy=POLICY, now=now)
        return [self._decision(past_move.spec) for past_move in beginning]

    def _mode(self, state: DisruptionState, *, now: datetime) -> Mode:
        """Return the mode for new moves, which an open circuit breaker changes."""
        breakers = open_breakers(state.past, policy=POLICY, now=now)
        self._count(f"breaker_{breaker.breaker.value}" for breaker in breakers)
        return effective_mode(POLICY, breakers)

    def _beginning(self, state: DisruptionState, mode: Mode, *, now: datetime) -> Iterator[Move]:
        """Yield the moves planned before that are still right; those that wait stay planned."""
        planned, self._planned = self._planned, []
        if mode is not Mode.ACTIVE:
            return
        if blindness(state.usage, state.cards(), POLICY):
            ttl = timedelta(seconds=POLICY.plan_ttl_s)
            self._planned = [waits for waits in planned if now - waits.planned_at <= ttl]
            return
        for past_move in planned:
            others = [past for past in state.past if past is not past_move]
            outdated = validate_move(
                replace(state, past=others), past_move.spec, policy=POLICY, now=now
            )
            if outdated is None:
                yield past_move
            else:
                self._count([f"outdated_{outdated.reason.label}"])
                self._given_up.append(past_move.ended(Ending.OUTDATED, now=now))

    def _decision(self, move: MoveSpec) -> Decision:
        self._moves[move.pod.uid] = move
        surge = move.mode is MoveMode.SURGE
        return Decision(pod=move.pod.uid, target=str(move.target.card), surge=surge)

    def _past_move(
        self, fact: JudgedMove, usage: Mapping[CardUuid, CardUsage], *, now: datetime
    ) -> Move | None:
        """Return a move of the history as its Move would tell it; None if it was deleted."""
        began = _EPOCH + timedelta(seconds=fact.begun_s)
        if now - began > _KEPT:
            return None
        if fact.pod in self._ended:
            return self._ended[fact.pod]
        move = self._moves[fact.pod]
        if fact.ready_s is None or fact.landed is None:
            return disturbing(move, now=began)
        landed = CardUuid(fact.landed)
        uid = self._replacements.get(fact.pod, "")
        past = replaced(
            disturbing(move, now=began), now=_EPOCH + timedelta(seconds=fact.ready_s)
        ).with_status(replacement=Replacement(name=uid, uid=uid, card=landed))
        settled = _EPOCH + timedelta(seconds=fact.ready_s + POLICY.settle_s)
        if now < settled:
            return past
        relieved = verify(
            before_ratio=move.reason.level_ratio,
            pod_ratio=move.reason.busy_ratio,
            source=usage[move.source.card].reading,
            target=usage[landed].reading,
            policy=POLICY,
            pod_uid=move.pod.uid,
        ).relieved
        ending = _ENDINGS[relieved]
        self._count([f"ended_{ending.value}"])
        self._ended[fact.pod] = past.ended(ending, now=now)
        return self._ended[fact.pod]

    def _observe(self, cards: Sequence[JudgedCard], pods: Sequence[JudgedPod]) -> None:
        """Bring nodes and pods up to date, as a watch would."""
        node_of = {card.id: card.node for card in cards}
        if not self._ledger.nodes:
            for node in sorted(set(node_of.values())):
                self._ledger.set_node(_node(node, [card for card in cards if card.node == node]))
        before, found = self._pods, {}
        for uid in before.keys() - {pod.id for pod in pods}:
            self._ledger.remove_pod(uid)
            self._index.observe({uid: None})
        for pod in pods:
            known = before.get(pod.id)
            if known is None or known.info.ready != pod.ready:
                body = decode_pod(_pod_body(pod, node_of[pod.card]))
                known = PlacedPod(
                    info=pod_info_of(body),
                    scheduling_constraints=scheduling_constraints_of(body),
                )
                self._ledger.set_pod(known.info.record)
                self._index.observe({pod.id: bound_pod_of(known.info)})
            found[pod.id] = known
        if found != before:
            self._pods = found
            self._scheduling = scheduling_by_cards(self._ledger.nodes.values(), found.values())
            self._workloads = settled_workloads(found.values())

    def _replaced(self, history: Sequence[JudgedMove], pods: Sequence[JudgedPod]) -> None:
        """Find the pods that took the place of moved ones, as their Moves would name them."""
        known = set(self._replacements.values())
        for fact in history:
            if fact.ready_s is not None and fact.pod not in self._replacements:
                owner = self._moves[fact.pod].owner.uid
                new = [
                    pod
                    for pod in pods
                    if pod.owner == owner and pod.card == fact.landed and pod.id not in known
                ]
                youngest = max(new, key=lambda pod: pod.started_s, default=None)
                self._replacements[fact.pod] = youngest.id if youngest else ""

    def _count(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self.held[reason] = self.held.get(reason, 0) + 1


def _node(name: str, cards: Sequence[JudgedCard]) -> NodeCards:
    return NodeCards(
        node=name,
        cards=tuple(
            Card(
                uuid=CardUuid(card.id),
                index=index,
                model=card.model,
                total_mib=Mib(card.capacity_mib),
                slots=_SLOTS,
            )
            for index, card in enumerate(cards)
        ),
    )


def _pod_body(pod: JudgedPod, node: str) -> bytes:
    """Return the pod of a Deployment, bound to its card."""
    started = _EPOCH + timedelta(seconds=pod.started_s)
    owner = {"kind": "ReplicaSet", "name": pod.owner, "uid": pod.owner, "controller": True}
    amounts = {names.GPU_MEM: str(pod.mib), names.GPU_SLOT: "1"}
    body: dict[str, Any] = {
        "metadata": {
            "name": pod.id,
            "namespace": f"team-{crc32(pod.owner.encode()) % _NAMESPACES}",
            "uid": pod.id,
            "labels": {"pod-template-hash": pod.owner},
            "ownerReferences": [owner],
            "annotations": {
                names.ASSIGNMENT: json.dumps({_CONTAINER: [{"card": pod.card, "mib": pod.mib}]})
            },
        },
        "spec": {
            "nodeName": node,
            "schedulerName": names.SCHEDULER_NAME,
            "containers": [
                {"name": _CONTAINER, "resources": {"limits": amounts, "requests": amounts}}
            ],
        },
        "status": {
            "phase": "Running" if pod.ready else "Pending",
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "conditions": [{"type": "Ready", "status": "True" if pod.ready else "False"}],
        },
    }
    return json.dumps(body).encode()


def _at_once(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise AssertionError("it waits for something")
