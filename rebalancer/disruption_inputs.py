"""Puts together what a plan is made from: the cluster, its usage, heat and past moves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import CardHeat
from fracgpu.disruption.move import PastMove
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.request.need import Strategy
from rebalancer.cluster_cache import ClusterCache
from rebalancer.usage.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionInputs:
    """What the cluster itself does not show; see :class:`DisruptionState`."""

    measured: Measured
    heat: Mapping[CardUuid, CardHeat]
    past: Sequence[PastMove]
    strategy: Strategy
    scheduler_name: str
    leading_since: datetime
    index: SnapshotIndex = field(default_factory=SnapshotIndex)


def disruption_state(
    cache: ClusterCache, inputs: DisruptionInputs, *, now: datetime
) -> DisruptionState:
    """Return the input of a plan for *now*; the index of *inputs* is the only one of the cache."""
    inputs.index.observe(cache.take_bound_changes())
    return DisruptionState(
        snapshot=cache.snapshot(now=now),
        usage=inputs.measured.usage,
        heat=inputs.heat,
        pods=cache.placed_pods,
        past=inputs.past,
        scheduling=cache.scheduling(),
        workloads=cache.workloads(),
        index=inputs.index,
        strategy=inputs.strategy,
        scheduler_name=inputs.scheduler_name,
        leading_since=inputs.leading_since,
    )
