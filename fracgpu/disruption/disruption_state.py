"""The input of a plan: the cluster with usage, heat and past moves, and what is counted from it.

Which cards could bear one more pod, and what past moves forbid, is counted once for a plan.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fracgpu.cards.card import CardUuid, Health
from fracgpu.disruption.brakes import Budgets, counts
from fracgpu.disruption.heat import (
    CardHeat,
    CardReading,
    CardUsage,
    Heat,
)
from fracgpu.disruption.load_history import (
    FULL_SPAN_RATIO,
    NO_HISTORY,
    SPAN_S,
    LoadHistory,
    LoadModel,
    PodLoad,
    belief,
)
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from fracgpu.k8s.workloads.workload_state import WorkloadState
from fracgpu.placement.snapshot_index import Cells, SnapshotIndex
from fracgpu.request.need import Strategy
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import CARRIED_OUT, Move
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import Snapshot

# Mean share of its time from which on a card has nothing left to give, so that work is being lost.
FULL_RATIO: Final = 0.98
_DAY: Final = timedelta(days=1)
_GROWTHS: Final = 8  # moves from which it is learnt how a pod's use changes


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolCards:
    """What is measured of cool cards, by row and column as in the index of the snapshot.

    Attributes:
        level: how busy it was over the short window, 0..1; infinite for a card that is not known to
            be cool.
        history: share of the forecast window in which it was measured, 0..1.
        free_mib: its measured free memory.
        model: the number of its model in *models*.
    """

    level: NDArray[np.float64]
    history: NDArray[np.float64]
    free_mib: NDArray[np.int64]
    model: NDArray[np.int64]
    models: Mapping[str, int]

    def with_room(self, *, busy_ratio: float, model: str, free_mib: int) -> Cells:
        """Return the cards of a model that have free memory, and time for what a pod uses.

        How much is known of a card is another question: see `measured`.
        """
        found: Cells = (
            (self.level + busy_ratio <= 1.0)
            & (self.free_mib >= free_mib)
            & (self.model == self.models.get(model, -2))
        )
        return found

    def measured(self, *, losing: bool, policy: RebalancerPolicy) -> Cells:
        """Return the cards that were measured for long enough to be targets.

        While work is lost where the pod is, *losing*, less must be known of them.
        """
        found: Cells = self.history >= needed_history(losing=losing, policy=policy)
        return found

    def why_not_measured(self, cells: Cells, *, losing: bool, policy: RebalancerPolicy) -> str:
        """Return, for people, how many of *cells* only lack history, and when the first has it.

        That takes longer if samples are missing meanwhile. Empty if there are no such cards.
        """
        count = int(cells.sum())
        if not count:
            return ""
        missing = needed_history(losing=losing, policy=policy) - float(self.history[cells].max())
        minutes = ceil(max(0.0, missing) * policy.forecast_window_s / 60)
        lack = "cool card with room lacks" if count == 1 else "cool cards with room lack"
        return f"{count} {lack} history; the first can be a target in {minutes} min"


def is_losing(source: CardReading | None) -> bool:
    """Report whether a card has nothing left to give, so that its pods may lack something.

    Both windows have to show it: a load that varies comes near its whole time now and again.
    """
    return source is not None and min(source.level_ratio, source.slow_level_ratio) >= FULL_RATIO


def needed_history(*, losing: bool, policy: RebalancerPolicy) -> float:
    """Return the share of the forecast window in which a target must have been measured.

    While work is lost the long window has to do.
    """
    needed_s = policy.forecast_window_s
    if losing:
        needed_s = min(needed_s, policy.slow_window_s)
    return policy.coverage_ratio * (needed_s / policy.forecast_window_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """What the moves of the last day tell of the next one.

    Attributes:
        belief: how far forecasts are believed, 0..1.
        growth: by how much more pods used after their moves than before, as a share of a card.
        regretted: the pods whose moves cost more than they saved.
    """

    belief: float = 1.0
    growth: float = 0.0
    regretted: frozenset[str] = frozenset()


def _destinations(move: Move) -> tuple[CardUuid, ...]:
    target = move.spec.target.card
    return (target,) if move.landed is None else (target, move.landed)


def is_known_to_be_cool(heat: CardHeat | None, usage: CardUsage | None, *, empty: bool) -> bool:
    """Report whether a card may be a target at all: unknown is never cool.

    Args:
        heat: its heat.
        usage: what was measured of it.
        empty: no pod or other process is on it, so it is idle even if a frozen exporter says so.
    """
    reading = usage.reading if usage else None
    return (
        heat is not None
        and heat.heat is Heat.COOL
        and reading is not None
        and not reading.repeating
        and (empty or not reading.unchanged)
    )


def _cool_cards(state: "DisruptionState") -> CoolCards:
    matrix, places = state.index.matrix(state.snapshot), state.index.places(state.snapshot)
    shape, usage = (matrix.size, matrix.width), state.usage
    models: dict[str, int] = {}
    found = CoolCards(
        level=np.full(shape, np.inf),
        history=np.zeros(shape),
        free_mib=np.zeros(shape, np.int64),
        model=np.full(shape, -1, np.int64),
        models=models,
    )
    for node in state.snapshot.nodes.values():
        for uuid, info in node.cards.items():
            if uuid in places and is_known_to_be_cool(
                state.heat.get(uuid),
                usage.get(uuid),
                empty=not (info.pods or info.foreign_mib or info.unplaced_mib),
            ):
                at, reading = places[uuid], _reading(usage[uuid])
                found.history[at] = reading.history_ratio
                found.level[at] = reading.level_ratio
                found.free_mib[at] = reading.free_mib
                found.model[at] = models.setdefault(info.card.model, len(models))
    return found


def _reading(usage: CardUsage) -> CardReading:
    assert usage.reading is not None, "a cool card is measured"
    return usage.reading


@dataclass(frozen=True, kw_only=True, eq=False)
class DisruptionState:
    """The input of a plan; no two are equal. What is counted from it is counted when first asked.

    Attributes:
        pods: by UID, every live pod that holds or asks for a share of a card.
        scheduling: all nodes and pods, cards or none, as kube-scheduler's filters see them.
        workloads: the controllers of pods, and what guards pods.
        index: the cards of *snapshot* as arrays; it goes on to the next cycle.
        past: moves of the last day, those under way included.
        strategy: the cluster's default for placing a replacement; a pod may name its own.
        claims_in: by namespace, whether its new pods get claims; None where none is admitted.
        leading_since: when this process became the leader.
        budgets: what is left of them, counted once for a whole plan; None is counted when asked.
        history: what pods did over the memory window; those without one are taken to be steady.
    """

    snapshot: Snapshot
    usage: Mapping[CardUuid, CardUsage]
    heat: Mapping[CardUuid, CardHeat]
    pods: Mapping[str, PlacedPod]
    past: Sequence[Move] = ()
    scheduling: SchedulingCluster
    workloads: WorkloadState
    index: SnapshotIndex = field(default_factory=SnapshotIndex, repr=False)
    strategy: Strategy
    scheduler_name: str
    claims_in: Mapping[str, bool | None] = field(default_factory=dict)
    leading_since: datetime
    budgets: Budgets | None = None
    history: LoadHistory = field(default=NO_HISTORY, repr=False)

    def pods_of(self, owner_uid: str) -> Sequence[PlacedPod]:
        """Return the pods of one controller that hold or ask for a share of a card."""
        return self._by_owner.get(owner_uid, ())

    @cached_property
    def _by_owner(self) -> Mapping[str, Sequence[PlacedPod]]:
        found: dict[str, list[PlacedPod]] = {}
        for pod in self.pods.values():
            found.setdefault(pod.owner_uid, []).append(pod)
        return found

    def places(self, pod: PodInfo) -> bool:
        """Report whether a pod gets what is reserved for it; any kube-scheduler gives its claim."""
        return bool(pod.device_claim) or pod.scheduler_name == self.scheduler_name

    def keeps_wiring(self, pod: PodInfo) -> bool:
        """Report whether a pod's replacement would get its card as it did: by a claim, or not."""
        claims = bool(pod.device_claim)
        return self.claims_in.get(pod.record.namespace, claims) is claims

    def learn(self) -> None:
        """Learn what the strategies in use have to know, so that *index* ranks cards by them.

        Before, it ranks as the scheduler extender does until it has learnt. In a large cluster the
        first time takes as long as many plans do.
        """
        needs = (pod.info.need for pod in self.pods.values())
        named = {need.strategy for need in needs if need is not None and need.strategy is not None}
        self.index.learn(self.snapshot, {self.strategy, *named})

    def loads(self, policy: RebalancerPolicy) -> LoadModel:
        """Return what the loads of cards are expected to be; cards by `number_of`."""
        line = policy.hot_ratio
        if line not in self._loads:
            self._loads[line] = _load_model(self, line=line)
        return self._loads[line]

    @cached_property
    def _loads(self) -> dict[float, LoadModel]:
        return {}

    def number_of(self, card: CardUuid) -> int | None:
        """Return the number of a card in the load model; None if the index does not have it."""
        place = self.index.places(self.snapshot).get(card)
        return (
            None if place is None else place[0] * self.index.matrix(self.snapshot).width + place[1]
        )

    @cached_property
    def cool_cards(self) -> CoolCards:
        """What is measured of the cool cards, by their place in *index*."""
        return _cool_cards(self)

    def under_way(self) -> Sequence[Move]:
        """Return the moves whose replacement is not ready yet."""
        return [past_move for past_move in self.past if past_move.under_way]

    def left_by(
        self, owner_uid: str, *, policy: RebalancerPolicy, now: datetime
    ) -> frozenset[CardUuid]:
        """Return the cards that an owner left so lately that none of its pods returns."""
        span = timedelta(seconds=policy.return_cooldown_s)
        return frozenset(
            past_move.spec.source.card
            for past_move in self.past
            if past_move.spec.owner.uid == owner_uid
            and counts(past_move)
            and now - past_move.planned_at < span
        )

    def cards(self) -> frozenset[CardUuid]:
        """Return the cards that should be measured: the healthy ones of shared nodes."""
        return frozenset(
            uuid
            for node in self.snapshot.nodes.values()
            if node.node.shared
            for uuid, card in node.cards.items()
            if card.card.health is Health.HEALTHY
        )

    def reading(self, card: CardUuid) -> CardReading | None:
        usage = self.usage.get(card)
        return usage.reading if usage else None

    def node_of(self, card: CardUuid) -> str:
        return next((name for name, node in self.snapshot.nodes.items() if card in node.cards), "")

    def display(self, card: CardUuid) -> str:
        """Return a card's node and index, by which people know it; what is no card as it is."""
        info = self.snapshot.card(card)
        return f"{self.node_of(card)}/{info.card.index}" if info else card


def budgets_of(state: DisruptionState, *, policy: RebalancerPolicy, now: datetime) -> Budgets:
    """Return what is left of the budgets."""
    return state.budgets or Budgets(state.past, policy=policy, now=now)


def card_level(state: DisruptionState, card: CardUuid) -> float:
    """Return how busy a card was over the window; 0 if it was not measured."""
    reading = state.reading(card)
    return reading.level_ratio if reading else 0.0


def _load_model(state: DisruptionState, *, line: float) -> LoadModel:
    matrix = state.index.matrix(state.snapshot)
    rest = np.zeros(matrix.size * matrix.width)
    loads: list[PodLoad] = []
    for uuid, (row, column) in state.index.places(state.snapshot).items():
        info, reading = state.snapshot.card(uuid), state.reading(uuid)
        if info is not None and reading is not None:
            number = row * matrix.width + column
            of_pods = sum(reading.pods.values())
            rest[number] = max(0.0, _lasting(reading) - of_pods)
            loads += _loads_on(state, info.pods, reading, number)
    for past_move in state.under_way():
        for card in _destinations(past_move):
            at = state.number_of(card)
            if at is not None:
                rest[at] += past_move.spec.reason.busy_ratio
    return LoadModel(state.history, loads, rest, line=line)


def _loads_on(
    state: DisruptionState, uids: Iterable[str], reading: CardReading, number: int
) -> Iterator[PodLoad]:
    """Yield the loads of those pods of a card of which something is known."""
    for uid in uids:
        use = reading.pods.get(uid)
        if uid in state.pods and (use is not None or uid in state.history.rows):
            yield PodLoad(
                uid=uid,
                owner_uid=state.pods[uid].owner_uid,
                card=number,
                busy_ratio=use or 0.0,
                full=_lasting(reading) >= FULL_SPAN_RATIO,
            )


def _lasting(reading: CardReading) -> float:
    """Return how busy a card is over both windows: a pod that left stays in the long one."""
    return min(reading.level_ratio, reading.slow_level_ratio)


def hindsight(state: DisruptionState, *, policy: RebalancerPolicy, now: datetime) -> Hindsight:
    """Return what moves saved beside what was forecast, and how their pods' use changed."""
    loads = state.loads(policy)
    outcomes: list[tuple[float, float]] = []
    growth: list[float] = []
    regretted: set[str] = set()
    again = {past_move.spec.pod.uid for past_move in state.past if counts(past_move)}
    for past_move in sorted(state.past, key=lambda past_move: past_move.planned_at):
        move, at = past_move.spec, past_move.disturbed_at or past_move.planned_at
        if (
            past_move.ending not in CARRIED_OUT
            or move.beneficiary is not None
            or now - at > _DAY
            or (source := state.number_of(move.source.card)) is None
        ):
            continue
        pod = past_move.replacement_uid
        reading = state.reading(past_move.landed) if past_move.landed else None
        use = reading.pods.get(pod) if reading else None
        if use is None:
            if pod in again:  # what it saved was not worth keeping
                outcomes.append((move.reason.saved_points / 100, 0.0))
            continue
        growth.append(use - move.reason.busy_ratio)
        spans = int(now.timestamp() // SPAN_S) - int(at.timestamp() // SPAN_S) - 1
        saved = loads.saved_since(pod, source, spans=spans)
        # What nobody knows yet to have saved anything counts as if it had not: a policy whose
        # forecasts are wrong has made a few moves by the time that this is known.
        outcomes.append((move.reason.saved_points / 100, saved or 0.0))
        if saved is not None and saved < 0:
            regretted.add(pod)
    lately = growth[-_GROWTHS:]
    return Hindsight(
        belief=belief(outcomes),
        growth=max(0.0, sum(lately) / (len(lately) + 1)),
        regretted=frozenset(regretted),
    )
