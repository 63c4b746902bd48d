"""Computes what cards and pods use from samples, process owners and assignments."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deviceplugin.cards.interface import (
    CardHardware,
    CardProcess,
    CardSample,
    CardSamples,
    GroupLimits,
)
from deviceplugin.exporter.attribution import Owner
from deviceplugin.node.inventory import Inventory
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import allocations_by_card
from fracgpu.state.pod_info import PodInfo

_FULL_PERCENT = 100.0

_Holder = tuple[str, str]  # uid of a pod, name of its container

Counted = Mapping[tuple[str, str, CardUuid], GroupLimits]
"""By UID of the pod, container and card: what driver or kernel say of the container's cgroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCardUsage:
    """What one container holds of one card, and what it uses of it.

    Attributes:
        mib: what it is assigned.
        pod_mib: what its pod is assigned of the card, all containers together, at its peak.
        pod_limit_mib: how much of the card its pod may use, where driver or kernel limit it.
        used_mib: what it uses by the count of driver or kernel, where they count; else what its
            processes hold. None where that is unknown.
        processes_mib: what its processes hold, or None where that is unknown.
        counted: what driver or kernel say of it, where they count.
        sm_percent: its part of the card's time, 0..100; the parts of a card's pods never add up
            to more than the card's own figure. None where that is unknown.
    """

    namespace: str
    pod: str
    pod_uid: str
    container: str
    mib: int
    pod_mib: int = 0
    pod_limit_mib: int = 0
    used_mib: float | None = None
    processes_mib: float | None = None
    counted: GroupLimits | None = None
    sm_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """One card: its metrics, its pods, and the processes on it that belong to none of them.

    Attributes:
        degraded: the card is busy, and the driver does not report by which of its processes.
    """

    hardware: CardHardware
    sample: CardSample | None
    allocated_mib: int = 0
    pods: tuple[PodCardUsage, ...] = ()
    unattributed_processes: int = 0
    unattributed_mib: float = 0.0
    degraded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSnapshot:
    """All cards of the node at *taken_at_s*, in seconds since the epoch.

    Attributes:
        complete: no card of the node is missing in *cards*, as one is that never answered.
    """

    taken_at_s: float
    cards: tuple[CardUse, ...] = ()
    troubles: Mapping[CardUuid, str] = field(default_factory=dict)
    complete: bool = True


def build_usage_snapshot(
    *,
    taken_at_s: float,
    inventory: Inventory,
    samples: CardSamples,
    owners: Mapping[int, Owner | None],
    pods: Iterable[PodInfo],
    counted: Counted | None = None,
) -> UsageSnapshot:
    """Return the snapshot; *pods* are the pods of this node."""
    here, containers = _holders(pod for pod in pods if pod.record.live)
    return UsageSnapshot(
        taken_at_s=taken_at_s,
        cards=tuple(
            _card_use(
                hardware,
                samples.samples.get(hardware.card.uuid),
                owners,
                here.get(hardware.card.uuid, ()),
                containers,
                counted or {},
            )
            for hardware in inventory.card_list.cards
        ),
        troubles=samples.errors,
        complete=not inventory.card_list.left_out,
    )


def _card_use(
    hardware: CardHardware,
    sample: CardSample | None,
    owners: Mapping[int, Owner | None],
    holders: Iterable[PodCardUsage],
    containers: Mapping[str, str],
    counted: Counted,
) -> CardUse:
    here = [
        _counted(use, counted.get((*_holder(use), hardware.card.uuid)))
        for use in sorted(holders, key=lambda use: (use.namespace, use.pod, use.container))
    ]
    allocated_mib = sum(use.mib for use in here)
    if sample is None or not sample.processes_known:
        return CardUse(
            hardware=hardware,
            sample=sample,
            allocated_mib=allocated_mib,
            pods=tuple(here),
            degraded=sample is not None and bool(sample.figures.gpu_percent),
        )
    processes: dict[_Holder, list[CardProcess]] = {_holder(use): [] for use in here}
    # The container of a process may not be known yet, or have no slice of this card. Its use then
    # counts for the first of the pod's containers that has one.
    first = {use.pod_uid: _holder(use) for use in reversed(here)}
    foreign = []
    for process in sample.processes:
        owner = owners.get(process.pid)
        if owner is None or owner.pod_uid not in first:
            foreign.append(process)
            continue
        holder = (owner.pod_uid, containers.get(owner.container_id, ""))
        processes[holder if holder in processes else first[owner.pod_uid]].append(process)
    shares = _sm_shares(sample)
    return CardUse(
        hardware=hardware,
        sample=sample,
        allocated_mib=allocated_mib,
        pods=tuple(_measured(use, processes[_holder(use)], shares) for use in here),
        unattributed_processes=len(foreign),
        unattributed_mib=sum(process.used_mib or 0 for process in foreign),
        degraded=shares is None or None in shares.values(),
    )


def _counted(use: PodCardUsage, stands: GroupLimits | None) -> PodCardUsage:
    return use if stands is None else replace(use, used_mib=stands.used_mib, counted=stands)


def _holder(use: PodCardUsage) -> _Holder:
    return use.pod_uid, use.container


def _holders(
    pods: Iterable[PodInfo],
) -> tuple[Mapping[CardUuid, Sequence[PodCardUsage]], Mapping[str, str]]:
    """Return the containers with a slice of each card, and names of containers by runtime id."""
    found = defaultdict[CardUuid, list[PodCardUsage]](list)
    containers: dict[str, str] = {}
    for pod in pods:
        record = pod.record
        assignment = record.assignment or {}
        peaks = allocations_by_card(assignment, record.containers)
        for container, slices in assignment.items():
            for part in slices:
                peak = peaks[part.card]
                found[part.card].append(
                    PodCardUsage(
                        namespace=record.namespace,
                        pod=record.name,
                        pod_uid=record.uid,
                        container=container,
                        mib=part.mib,
                        pod_mib=peak.mib,
                        pod_limit_mib=peak.limit_mib,
                    )
                )
        if assignment:
            containers |= {identity: name for name, identity in pod.container_ids.items()}
    return found, containers


def _sm_shares(sample: CardSample) -> Mapping[int, float | None] | None:
    """Return each process's part of the card's time, in percent of the card, by pid.

    The driver's figures for single processes do not add up to the card's own under time-slicing,
    so they only divide it. The part of a process whose time the driver counts for another one, or
    not at all, is None, unless the card is known to be idle; then the rest of the card's time may
    be that one's, and the others' parts are not made larger. None for all where the card is busy,
    and none of its processes is.
    """
    total = sum(process.sm_percent or 0.0 for process in sample.processes)
    card_percent = sample.figures.gpu_percent
    if total <= 0 and card_percent:
        return None
    if total <= 0:
        idle = card_percent is not None
        return {
            process.pid: 0.0 if idle or process.sm_percent is not None else None
            for process in sample.processes
        }
    scale = min(1.0, _FULL_PERCENT / total) if card_percent is None else card_percent / total
    if any(process.sm_percent is None for process in sample.processes):
        scale = min(1.0, scale)
    return {
        process.pid: None if process.sm_percent is None else process.sm_percent * scale
        for process in sample.processes
    }


def _measured(
    use: PodCardUsage, processes: Sequence[CardProcess], shares: Mapping[int, float | None] | None
) -> PodCardUsage:
    processes_mib = _sum(process.used_mib for process in processes)
    parts = [None if shares is None else shares[process.pid] for process in processes]
    # A container without a process on the card uses nothing of it, where anything is known at all.
    return replace(
        use,
        used_mib=processes_mib if use.counted is None else use.used_mib,
        processes_mib=processes_mib,
        sm_percent=None if shares is None else _sum(parts),
    )


def _sum(parts: Iterable[float | None]) -> float | None:
    """Return the sum; None if a part of it is unknown."""
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
