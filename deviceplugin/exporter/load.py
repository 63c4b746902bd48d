"""The load of the node's cards for the Node object: heat as a slow average, and foreign memory.

Every watcher of nodes receives the whole Node object at each change, so both change seldom. A
change that keeps pods away from a card is written sooner than one that lets them in.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.exporter.usage import CardUse, UsageSnapshot
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib

Used = Mapping[CardUuid, Mapping[str, Mib]]

_FULL_PERCENT: Final = 100.0
# Heat is written again when it has changed by this much, as a share of a card's time.
_HEAT_STEP: Final = 0.1
_HEAT_DIGITS: Final = 2
# Foreign memory is written in steps, rounded up. Less than one step is what the driver itself needs
# for the programs on a card, beyond what it counts as theirs.
_FOREIGN_STEP_MIB: Final = 64
# What pods use is written again when a pod's has changed by this much.
_USED_STEP_MIB: Final = 256
# A process briefly counts as foreign when its pod is just gone, or not known yet.
_READINGS_UNTIL_FOREIGN: Final = 3
# A change for the worse is written after the gap divided by this.
_URGENT_PART: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """The load to write: UUID → busy share of time, 0..1; UUID → MiB of foreign memory.

    A card whose use is unknown is absent in *heat*; one without foreign memory in *foreign*. *used*
    is what pods use, by their UIDs: small changes are not written.
    """

    heat: Mapping[CardUuid, float] = field(default_factory=dict)
    foreign: Mapping[CardUuid, Mib] = field(default_factory=dict)
    used: Used = field(default_factory=dict)


def foreign_mib(use: CardUse, *, headroom_mib: int) -> int | None:
    """Return the MiB of a card that no pod's process uses; None where its use was not read.

    That is the memory in use, less what the processes of its pods hold. Where the driver does not
    report what those hold, less what the pods are assigned: what is in use beyond that is certainly
    not free. The administrator's headroom is meant for this use, and is subtracted too.
    """
    used_mib = use.sample.figures.used_mib if use.sample is not None else None
    if use.sample is None or used_mib is None:
        return None
    used = [pod.processes_mib for pod in use.pods]
    known_use = use.sample.processes_known and None not in used
    ours_mib = sum(mib or 0.0 for mib in used) if known_use else float(use.allocated_mib)
    mib = max(used_mib - ours_mib, use.unattributed_mib) - headroom_mib
    if mib < _FOREIGN_STEP_MIB:
        return 0
    return math.ceil(mib / _FOREIGN_STEP_MIB) * _FOREIGN_STEP_MIB


def used_mib(use: CardUse) -> Mapping[str, Mib]:
    """Return what the pods of a card use, by their UIDs, where that is known."""
    found: dict[str, float] = {}
    for pod in use.pods:
        if pod.used_mib is not None:
            found[pod.pod_uid] = found.get(pod.pod_uid, 0.0) + pod.used_mib
    return {uid: Mib(math.ceil(mib)) for uid, mib in found.items()}


@dataclass(slots=True)
class _Watched:
    """One card: its average, from when to when it was measured, and its last readings."""

    heat: float = 0.0
    first_s: float = 0.0
    last_s: float | None = None
    foreign: deque[int] = field(default_factory=lambda: deque(maxlen=_READINGS_UNTIL_FOREIGN))


class LoadAverage:
    """Averages what was measured, and decides when to write another load on the node.

    Args:
        average_s: time over which heat is averaged.
        gap_s: shortest time between two writes; a sixth of it where heat becomes unknown or
            foreign memory grows.
        stale_s: after this time without a figure, a card's heat is unknown.
        headroom_mib: MiB of each card that are never shared.
    """

    def __init__(
        self, *, average_s: float, gap_s: float, stale_s: float, headroom_mib: int
    ) -> None:
        self._average_s = average_s
        self._gap_s = gap_s
        self._stale_s = stale_s
        self._headroom_mib = headroom_mib
        self._cards: dict[CardUuid, _Watched] = {}
        self._used: Used = {}
        self._known_foreign: dict[CardUuid, int] = {}
        self._began_s: float | None = None
        self._written: NodeLoad | None = None
        self._written_at_s = 0.0

    def remember(self, foreign: Mapping[CardUuid, Mib]) -> None:
        """Start from what an earlier agent wrote, for each card until that card is read."""
        self._known_foreign = {**foreign, **self._known_foreign}

    def observe(self, snapshot: UsageSnapshot, *, now_s: float) -> None:
        """Add a snapshot, taken at *now_s* of the monotonic clock."""
        if self._began_s is None:
            self._began_s = now_s
        here = {use.hardware.card.uuid: use for use in snapshot.cards}
        self._used = {uuid: used for uuid, use in here.items() if (used := used_mib(use))}
        self._drop_all_but(here.keys(), complete=snapshot.complete)
        for uuid, use in here.items():
            card = self._cards.setdefault(uuid, _Watched())
            mib = foreign_mib(use, headroom_mib=self._headroom_mib)
            if mib is not None:
                card.foreign.append(mib)
                if len(card.foreign) == _READINGS_UNTIL_FOREIGN:
                    self._known_foreign[uuid] = min(card.foreign)
            percent = use.sample.figures.gpu_percent if use.sample is not None else None
            if percent is not None:
                self._average(card, percent / _FULL_PERCENT, now_s)

    def _drop_all_but(self, here: Collection[CardUuid], *, complete: bool) -> None:
        """Forget the cards that are gone; foreign memory stays for one that may come back."""
        for uuid in [uuid for uuid in self._cards if uuid not in here]:
            del self._cards[uuid]
        if here and complete:
            for uuid in [uuid for uuid in self._known_foreign if uuid not in here]:
                del self._known_foreign[uuid]

    def load_to_write(self, *, now_s: float) -> NodeLoad | None:
        """Return the load to write at *now_s*; None until there is one."""
        now = self._current(now_s)
        if self._written is None:
            due = self._began_s is not None and now_s - self._began_s >= self._gap_s
        else:
            waited_s = now_s - self._written_at_s
            urgent = waited_s >= self._gap_s / _URGENT_PART and _is_worse(self._written, now)
            due = urgent or (waited_s >= self._gap_s and _differs(self._written, now))
        if due:
            self._written, self._written_at_s = now, now_s
        return self._written

    def _average(self, card: _Watched, ratio: float, now_s: float) -> None:
        last_s = card.last_s
        card.last_s = now_s
        if last_s is None or now_s - last_s >= self._average_s:
            card.first_s, card.heat = now_s, ratio
            return
        # At first over the time since the first figure, later over the whole period.
        over_s = min(self._average_s, now_s - card.first_s)
        share = 1.0 - math.exp((last_s - now_s) / over_s) if over_s > 0 else 1.0
        card.heat += share * (ratio - card.heat)

    def _current(self, now_s: float) -> NodeLoad:
        heat = {
            uuid: round(min(1.0, card.heat), _HEAT_DIGITS)
            for uuid, card in self._cards.items()
            if card.last_s is not None and now_s - card.last_s <= self._stale_s
        }
        # The least of the last readings. A card that cannot be read keeps its value: what was not
        # free still counts as not free.
        foreign = {uuid: Mib(mib) for uuid, mib in self._known_foreign.items() if mib}
        return NodeLoad(heat=heat, foreign=foreign, used=self._used)


def _is_worse(written: NodeLoad, now: NodeLoad) -> bool:
    """Report whether a card's heat became unknown, or its foreign memory has grown."""
    grown = any(mib > written.foreign.get(uuid, 0) for uuid, mib in now.foreign.items())
    return grown or bool(written.heat.keys() - now.heat.keys())


def _differs(written: NodeLoad, now: NodeLoad) -> bool:
    """Report whether the difference is worth a write of the Node object."""
    if written.heat.keys() != now.heat.keys() or written.foreign != now.foreign:
        return True
    if _differ_in_use(written.used, now.used):
        return True
    return any(abs(ratio - written.heat[uuid]) >= _HEAT_STEP for uuid, ratio in now.heat.items())


def _differ_in_use(written: Used, now: Used) -> bool:
    return written.keys() != now.keys() or any(
        pods.keys() != written[uuid].keys()
        or any(abs(mib - written[uuid][uid]) >= _USED_STEP_MIB for uid, mib in pods.items())
        for uuid, pods in now.items()
    )
