"""The input of a plan: the cluster with usage, heat and past moves; values without decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fracgpu.cards.card import CardUuid, Health
from fracgpu.disruption.brakes import Budgets
from fracgpu.disruption.cool_cards import CoolCards, PlanIndex
from fracgpu.disruption.heat import (
    CardHeat,
    CardReading,
    CardUsage,
)
from fracgpu.disruption.move import PastMove
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from fracgpu.k8s.workloads.workload_state import WorkloadState
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.need import Strategy
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.snapshot import Snapshot


class OwnerIndex:
    """The pods by owner, computed once for each set of pods."""

    def __init__(self) -> None:
        self._pods: Mapping[str, PlacedPod] | None = None
        self._found: dict[str, list[PlacedPod]] = {}

    def of(self, owner_uid: str, pods: Mapping[str, PlacedPod]) -> Sequence[PlacedPod]:
        """Return those of *pods* whose controller has this UID."""
        if self._pods is not pods:
            self._pods, self._found = pods, {}
            for pod in pods.values():
                self._found.setdefault(pod.owner_uid, []).append(pod)
        return self._found.get(owner_uid, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionState:
    """The input of a plan.

    Attributes:
        pods: by UID, every live pod that holds or asks for a share of a card.
        scheduling: all nodes and pods, cards or none, as kube-scheduler's filters see them.
        workloads: the controllers of pods, and what guards pods.
        index: the cards of *snapshot* as arrays; it goes on to the next cycle.
        past: moves of the last day, those under way included.
        strategy: the cluster's default for placing a replacement; a pod may name its own.
        leading_since: when this process became the leader.
        budgets: what is left of them, counted once for a whole plan; None is counted when asked.
    """

    snapshot: Snapshot
    usage: Mapping[CardUuid, CardUsage]
    heat: Mapping[CardUuid, CardHeat]
    pods: Mapping[str, PlacedPod]
    past: Sequence[PastMove] = ()
    scheduling: SchedulingCluster
    workloads: WorkloadState
    index: SnapshotIndex = field(default_factory=SnapshotIndex, compare=False, repr=False)
    strategy: Strategy
    scheduler_name: str
    leading_since: datetime
    budgets: Budgets | None = None
    owners: OwnerIndex = field(default_factory=OwnerIndex, compare=False, repr=False)
    plan_index: PlanIndex = field(default_factory=PlanIndex, compare=False, repr=False)

    def pods_of(self, owner_uid: str) -> Sequence[PlacedPod]:
        """Return the pods of one controller that hold or ask for a share of a card."""
        return self.owners.of(owner_uid, self.pods)

    def learn(self) -> None:
        """Learn what the strategies in use have to know, so that *index* ranks cards by them.

        Before, it ranks as the scheduler extender does until it has learnt. In a large cluster the
        first time takes as long as many plans do.
        """
        needs = (pod.info.need for pod in self.pods.values())
        named = {need.strategy for need in needs if need is not None and need.strategy is not None}
        self.index.learn(self.snapshot, {self.strategy, *named})

    def cool_cards(self) -> CoolCards:
        """Return what is measured of the cool cards, by their place in *index*."""
        return self.plan_index.cool(self.usage, self.heat, index=self.index, snapshot=self.snapshot)

    def under_way(self) -> Sequence[PastMove]:
        """Return the moves whose replacement is not ready yet."""
        return self.plan_index.under_way(self.past)

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


def budgets_of(state: DisruptionState, *, policy: RebalancerPolicy, now: datetime) -> Budgets:
    """Return what is left of the budgets."""
    return state.budgets or Budgets(state.past, policy=policy, now=now)


def card_level(state: DisruptionState, card: CardUuid) -> float:
    """Return how busy a card was over the window; 0 if it was not measured."""
    reading = state.reading(card)
    return reading.level_ratio if reading else 0.0
