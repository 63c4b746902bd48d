"""One policy on a recording, in a closed loop: load follows the pod.

Each pod draws what was recorded of it, on the card where the replay has it; what a card did beyond
its pods stays with the card. A card gives at most its whole time: what is asked beyond that is
lost, and so is what a pod would have drawn while its replacement starts. The rebalancer's own code
decides, as if nothing but cards mattered for where a pod can run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import Final

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.disruption.brakes import effective_mode, open_breakers
from fracgpu.disruption.disruption_state import FULL_RATIO, DisruptionState
from fracgpu.disruption.heat import CardHeat, CardUsage
from fracgpu.disruption.load_history import FULL_SPAN_RATIO, SPAN_S
from fracgpu.disruption.planner import advance_all, plan_moves, validate_move
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.disruption.verification import verify
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod import bound_pod_of
from fracgpu.state.cluster_state import PlacedPod, scheduling_by_cards, settled_workloads
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import (
    Ending,
    Move,
    MoveMode,
    MovePhase,
    MoveSpec,
    Replacement,
    new_move,
)
from fracgpu.state.pod_info import pod_info_of
from fracgpu.units import Mib
from rebalancer.usage.measured import LoadRecorder
from simulator.usage_replay.pods import ReplayedPod, pod_body
from simulator.usage_replay.recording import Frame, Piece, RecordedCard
from simulator.usage_replay.windows import SampleWindow, readings, samples_of

_KEPT: Final = timedelta(days=7)
_LONG_AGO: Final = timedelta(days=1)
_SLOTS: Final = 1000
_SECONDS_PER_HOUR: Final = 3600.0
_ENDINGS: Final = {True: Ending.RELIEVED, False: Ending.USELESS, None: Ending.UNVERIFIED}


@dataclass(kw_only=True)
class ReplayFigures:
    """What a policy did in the whole time; hours are card-hours.

    Attributes:
        contended_h: of the hot hours, those of cards with at least two pods that use them.
        full_h: hours of cards without time left to give, where work waits.
        held: how often each reason, by its label, held a card or a pod back.
        lost_h: work that moving pods together lost, or that waited for a replacement to start.
    """

    moves: int = 0
    surged: int = 0
    useless: int = 0
    hot_h: float = 0.0
    contended_h: float = 0.0
    full_h: float = 0.0
    lost_h: float = 0.0
    held: Counter[str] = field(default_factory=Counter)

    def numbers(self) -> dict[str, float]:
        """Return all figures that are one number, by name."""
        return {name: value for name, value in vars(self).items() if name != "held"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedMove:
    """One move that a policy made."""

    at: datetime
    pod: str
    source: str
    target: str
    gain_points: float
    mode: MoveMode


class ReplayedWorld:
    """The cluster as it would have become under one policy; without one nothing is moved.

    Args:
        policy: decides as if it were active; budgets, freezes and breakers hold.
        strategy: the cluster's default for placing pods.
        step_s: time between two frames.
        startup_s: how long a replacement takes to be ready.
        hot_ratio: the share of its time above which a card is counted as hot, the same for all
            policies that are compared.
    """

    def __init__(
        self,
        policy: RebalancerPolicy | None,
        *,
        strategy: Strategy,
        step_s: float,
        startup_s: float,
        hot_ratio: float,
    ) -> None:
        self._hot_ratio = hot_ratio
        self.figures = ReplayFigures()
        self.moves: list[ReplayedMove] = []
        self._decides = policy is not None and policy.mode is not Mode.OFF
        self._policy = replace(policy or RebalancerPolicy(), mode=Mode.ACTIVE, paused=False)
        self._strategy = strategy
        self._step_s = step_s
        self._startup = timedelta(seconds=startup_s)
        length = samples_of(max(self._policy.forecast_window_s, self._policy.slow_window_s), step_s)
        self._card_samples: SampleWindow[CardUuid] = SampleWindow(length)
        self._pod_samples: SampleWindow[tuple[CardUuid, str]] = SampleWindow(length)
        self._loads = LoadRecorder()
        self._span = 0
        self._in_span: dict[str, list[tuple[float, bool]]] = {}
        self._cards: dict[CardUuid, RecordedCard] = {}
        self._pods: dict[str, ReplayedPod] = {}
        self._by_uid: dict[str, ReplayedPod] = {}
        self._placed: dict[str, PlacedPod] = {}
        self._ledger = Ledger()
        self._index = SnapshotIndex()
        self._heat: dict[CardUuid, CardHeat] = {}
        self._past: list[Move] = []
        self._planned: list[MoveSpec] = []
        self._began: datetime | None = None

    def play(self, piece: Piece) -> Iterator[Frame]:
        """Live through a piece of the recording; yield each frame when it is over."""
        if piece.cards.items() - self._cards.items():
            self._cards |= piece.cards
            self._set_nodes()
        for frame in piece.frames:
            self._began = self._began or frame.at
            self._appear(piece, frame)
            self._draw(frame)
            if self._decides:
                self._cycle(frame.at)
            yield frame

    # -- what happens ------------------------------------------------------------------------------

    def _set_nodes(self) -> None:
        by_node: dict[str, list[RecordedCard]] = {}
        for card in self._cards.values():
            by_node.setdefault(card.node, []).append(card)
        for node, cards in by_node.items():
            self._ledger.set_node(
                NodeCards(
                    node=node,
                    cards=tuple(
                        Card(
                            uuid=card.uuid,
                            index=card.index,
                            model=card.model,
                            total_mib=Mib(card.mib),
                            slots=_SLOTS,
                        )
                        for card in sorted(cards, key=lambda card: card.index)
                    ),
                )
            )

    def _appear(self, piece: Piece, frame: Frame) -> None:
        """Add the pods that were not there before, and drop those that are gone."""
        for uid in self._pods.keys() - frame.uses.keys():
            pod = self._pods.pop(uid)
            self._forget(pod)
        for uid in frame.uses.keys() - self._pods.keys():
            recorded = piece.pods.get(uid)
            if recorded is None or not recorded.mib.keys() <= self._cards.keys():
                continue
            first = frame.at == self._began
            pod = ReplayedPod(
                recorded=recorded,
                uid=uid,
                cards={card: card for card in recorded.mib},
                started_at=frame.at - _LONG_AGO if first else frame.at,
            )
            self._pods[uid] = pod
            self._remember(pod)
        self._card_samples.keep(self._cards)

    def _remember(self, pod: ReplayedPod) -> None:
        body = decode_pod(pod_body(pod, self._cards))
        info = pod_info_of(body)
        placed = PlacedPod(info=info, scheduling_constraints=scheduling_constraints_of(body))
        self._by_uid[pod.uid] = pod
        self._placed[pod.uid] = placed
        self._ledger.set_pod(placed.info.record)
        self._index.observe({pod.uid: bound_pod_of(info)})

    def _forget(self, pod: ReplayedPod) -> None:
        self._index.observe({pod.uid: None})
        self._ledger.remove_pod(pod.uid)
        self._placed.pop(pod.uid, None)
        self._by_uid.pop(pod.uid, None)

    def _draw(self, frame: Frame) -> None:
        """Measure every card as it would be with the pods where they are now."""
        asked = dict.fromkeys(frame.busy, 0.0)
        rest = dict(frame.busy)
        drawn: list[tuple[CardUuid, str, float]] = []
        for uid, uses in frame.uses.items():
            pod = self._pods.get(uid)
            for card, use in uses.items():
                if card in rest:
                    rest[card] -= use
                if pod is None:
                    continue
                if pod.down_until is not None and frame.at < pod.down_until:
                    self.figures.lost_h += use * self._step_s / _SECONDS_PER_HOUR
                    continue
                now_on = pod.cards.get(card, card)
                drawn.append((now_on, pod.uid, use))
                asked[now_on] = asked.get(now_on, 0.0) + use
        for card, left in rest.items():
            asked[card] += max(0.0, left)
        self._count(asked, drawn)
        scale = {card: 1 / max(1.0, load) for card, load in asked.items()}
        self._card_samples.push(
            {card: min(1.0, load) for card, load in asked.items() if card in frame.busy}
        )
        samples = {(card, uid): use * scale[card] for card, uid, use in drawn}
        self._pod_samples.push(samples)
        self._record(asked, samples, frame.at)
        self._pod_samples.keep(samples)

    def _record(
        self,
        asked: Mapping[CardUuid, float],
        samples: Mapping[tuple[CardUuid, str], float],
        now: datetime,
    ) -> None:
        """Add a frame to the span that it lies in; keep the span when the next one begins."""
        number = int(now.timestamp() // SPAN_S) + 1  # a span is named after its end
        if number != self._span:
            means = {
                uid: (
                    fmean(used for used, _ in uses),
                    2 * sum(full for _, full in uses) > len(uses),
                )
                for uid, uses in self._in_span.items()
            }
            self._loads.keep(self._span, means, self._policy)
            self._span, self._in_span = number, {}
        for (card, uid), used in samples.items():
            self._in_span.setdefault(uid, []).append((used, asked[card] >= FULL_SPAN_RATIO))

    def _count(
        self, asked: Mapping[CardUuid, float], drawn: list[tuple[CardUuid, str, float]]
    ) -> None:
        hours = self._step_s / _SECONDS_PER_HOUR
        users: dict[CardUuid, int] = {}
        for card, _, use in drawn:
            users[card] = users.get(card, 0) + (use > 0)
        for card, load in asked.items():
            if load > self._hot_ratio:
                self.figures.hot_h += hours
                self.figures.contended_h += hours if users.get(card, 0) > 1 else 0.0
            self.figures.full_h += hours if load >= FULL_RATIO else 0.0
            # The recording has no card above its whole time: what is above it now, a move did.
            self.figures.lost_h += max(0.0, load - 1.0) * hours

    # -- what is decided ---------------------------------------------------------------------------

    def _cycle(self, now: datetime) -> None:
        state = self._state(now)
        self._verify(state.usage, now)
        self._past = [past for past in self._past if now - past.planned_at < _KEPT]
        state = replace(state, past=list(self._past))
        state.learn()
        mode = effective_mode(self._policy, open_breakers(self._past, policy=self._policy, now=now))
        if mode is not Mode.ACTIVE:
            self._planned = []
            return
        for move in self._planned:
            if validate_move(state, move, policy=self._policy, now=now) is None:
                self._make(move, now)
        state = replace(state, past=list(self._past), snapshot=self._ledger.snapshot(now=now))
        plan = plan_moves(state, policy=self._policy, now=now)
        self.figures.held.update(held.reason.label for held in plan.held)
        self._planned = list(plan.moves)

    def _state(self, now: datetime) -> DisruptionState:
        snapshot = self._ledger.snapshot(now=now)
        free_mib = {
            card: info.card.capacity_mib - info.held_mib
            for node in snapshot.nodes.values()
            for card, info in node.cards.items()
        }
        usage = readings(
            self._card_samples,
            self._pod_samples,
            free_mib,
            policy=self._policy,
            step_s=self._step_s,
        )
        self._heat = advance_all(self._heat, usage, self._past, policy=self._policy, now=now)
        return DisruptionState(
            snapshot=snapshot,
            usage=usage,
            heat=self._heat,
            pods=dict(self._placed),
            scheduling=scheduling_by_cards(self._ledger.nodes.values(), self._placed.values()),
            workloads=settled_workloads(self._placed.values()),
            index=self._index,
            past=list(self._past),
            strategy=self._strategy,
            scheduler_name=names.SCHEDULER_NAME,
            history=self._loads.history(self._past),
            leading_since=now - timedelta(days=365),  # the grace after a start is no matter here
        )

    def _make(self, move: MoveSpec, now: datetime) -> None:
        pod = self._by_uid.get(move.pod.uid)
        if pod is None:
            return
        surge = move.mode is MoveMode.SURGE
        self._forget(pod)
        pod.moved += 1
        pod.uid = f"{pod.recorded.uid}-moved-{pod.moved}"
        pod.cards = {
            recorded: move.target.card if card == move.source.card else card
            for recorded, card in pod.cards.items()
        }
        pod.started_at = now
        pod.down_until = None if surge else now + self._startup
        self._remember(pod)
        replacement = Replacement(
            name=pod.uid, uid=pod.uid, node=move.target.node, card=move.target.card
        )
        self._past.append(
            disturbing(move, now=now).with_status(replacement=replacement, reserved_until=now)
        )
        self.figures.moves += 1
        self.figures.surged += surge
        self.moves.append(
            ReplayedMove(
                at=now,
                pod=move.pod.key,
                source=self._name(move.source.card),
                target=self._name(move.target.card),
                gain_points=move.reason.gain_points,
                mode=move.mode,
            )
        )

    def _verify(self, usage: Mapping[CardUuid, CardUsage], now: datetime) -> None:
        """End the moves whose replacement is ready, and those that can be verified."""
        settle = self._startup + timedelta(seconds=self._policy.settle_s)
        for number, past in enumerate(self._past):
            age = now - past.planned_at
            if past.ended_at is None and age >= settle:
                self._past[number] = self._ended(past, usage, now)
            elif past.under_way and age >= self._startup:
                self._past[number] = replaced(past, now=now)

    def _ended(self, past: Move, usage: Mapping[CardUuid, CardUsage], now: datetime) -> Move:
        source, target = usage.get(past.spec.source.card), usage.get(past.spec.target.card)
        relieved = verify(
            before_ratio=past.spec.reason.level_ratio,
            pod_ratio=past.spec.reason.busy_ratio,
            source=source.reading if source else None,
            target=target.reading if target else None,
            policy=self._policy,
        ).relieved
        ending = _ENDINGS[relieved]
        self.figures.useless += ending is Ending.USELESS
        return (replaced(past, now=now) if past.under_way else past).ended(ending, now=now)

    def _name(self, uuid: CardUuid) -> str:
        card = self._cards[uuid]
        return f"{card.node}/{card.index}"


def disturbing(spec: MoveSpec, *, now: datetime) -> Move:
    """Return the Move of a decision in the first phase that disturbs the pod."""
    move = new_move(spec, now=now)
    first = MovePhase.SURGING if spec.mode is MoveMode.SURGE else MovePhase.EVICTING
    for phase in (MovePhase.RESERVED, MovePhase.NOTICED, first):
        move = move.to(phase, now=now)
    return move


def replaced(move: Move, *, now: datetime) -> Move:
    """Return a disturbing Move once its pod is gone and the replacement is Ready."""
    return move.to(MovePhase.EVICTED, now=now).to(MovePhase.VERIFYING, now=now)
