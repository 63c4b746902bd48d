"""What the node says of its cards' load: heat as a slow average, and memory that is nobody's.

Both stand on the node object, which every watcher of nodes gets anew at each change; so they change
seldom. What would let a pod go where it should not is told sooner than what would let one in.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.exporter.usage import CardUse, UsageSnapshot
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib

_FULL_PERCENT: Final = 100.0
# Heat is told anew when it has changed by as much, as a share of a card's time.
_HEAT_STEP: Final = 0.1
_HEAT_DIGITS: Final = 2
# Foreign memory is told in steps, rounded up. Less than one is what the driver itself needs for the
# programs on a card, beyond what it counts as theirs.
_FOREIGN_STEP_MIB: Final = 64
# A process counts as foreign for a moment when its pod has just gone, or is not known yet.
_READINGS_UNTIL_FOREIGN: Final = 3
# What gets worse is told after this part of the gap.
_URGENT_PART: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What the node should say: UUID → busy share of time, 0..1; UUID → MiB of nobody we know.

    A card whose use nobody can tell has no heat; one without foreign memory is not in *foreign*.
    """

    heat: Mapping[CardUuid, float] = field(default_factory=dict)
    foreign: Mapping[CardUuid, Mib] = field(default_factory=dict)


def foreign_mib(use: CardUse, *, headroom_mib: int) -> int | None:
    """Say how many MiB of a card are used by nobody we know: None where the card was not read.

    What the card has in use, less what the processes of its pods hold. Where the driver does not
    tell what those hold, less what the pods were promised: what is in use beyond that is surely not
    free. What the administrator has set aside on each card is there for this use.
    """
    if use.sample is None:
        return None
    known = [it.used_mib for it in use.pods]
    told = use.sample.processes_known and None not in known
    ours_mib = sum(it or 0.0 for it in known) if told else float(use.allocated_mib)
    used_mib = use.sample.figures.used_mib
    rest_mib = used_mib - ours_mib if used_mib is not None else 0.0
    mib = max(rest_mib, use.unattributed_mib) - headroom_mib
    if mib < _FOREIGN_STEP_MIB:
        return 0
    return math.ceil(mib / _FOREIGN_STEP_MIB) * _FOREIGN_STEP_MIB


@dataclass(slots=True)
class _Watched:
    """One card: its average, between which moments it was measured, and its last readings."""

    heat: float = 0.0
    first_s: float = 0.0
    last_s: float | None = None
    foreign: deque[int] = field(default_factory=lambda: deque(maxlen=_READINGS_UNTIL_FOREIGN))


class LoadAverage:
    """Averages what was measured, and decides when the node should say something else.

    Args:
        average_s: time over which heat is averaged.
        gap_s: shortest time between two reports; a sixth of it where heat becomes unknown or
            foreign memory grows.
        stale_s: after as much without a figure, nobody knows how hot a card is.
        headroom_mib: MiB of each card that are never handed out.
    """

    def __init__(
        self, *, average_s: float, gap_s: float, stale_s: float, headroom_mib: int
    ) -> None:
        self._average_s = average_s
        self._gap_s = gap_s
        self._stale_s = stale_s
        self._headroom_mib = headroom_mib
        self._cards: dict[CardUuid, _Watched] = {}
        self._known_foreign: dict[CardUuid, int] = {}
        self._began_s: float | None = None
        self._told: NodeLoad | None = None
        self._told_s = 0.0

    def remember(self, foreign: Mapping[CardUuid, Mib]) -> None:
        """Take over what an earlier agent said: it stands for each card until that card is read."""
        self._known_foreign = {**foreign, **self._known_foreign}

    def observe(self, snapshot: UsageSnapshot, *, now_s: float) -> None:
        """Take notice of one picture, taken at *now_s* by a clock that never goes back."""
        if self._began_s is None:
            self._began_s = now_s
        here = {use.hardware.card.uuid: use for use in snapshot.cards}
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
        """Forget the cards that are gone; what is foreign on one that may come back stays."""
        for uuid in [it for it in self._cards if it not in here]:
            del self._cards[uuid]
        if here and complete:
            for uuid in [it for it in self._known_foreign if it not in here]:
                del self._known_foreign[uuid]

    def say(self, *, now_s: float) -> NodeLoad | None:
        """Give what the node should say at *now_s*; None until there is something to say."""
        now = self._now(now_s)
        if self._told is None:
            ripe = self._began_s is not None and now_s - self._began_s >= self._gap_s
        else:
            waited_s = now_s - self._told_s
            urgent = waited_s >= self._gap_s / _URGENT_PART and _is_worse(self._told, now)
            ripe = urgent or (waited_s >= self._gap_s and _differs(self._told, now))
        if ripe:
            self._told, self._told_s = now, now_s
        return self._told

    def _average(self, card: _Watched, ratio: float, now_s: float) -> None:
        last_s = card.last_s
        card.last_s = now_s
        if last_s is None or now_s - last_s >= self._average_s:
            card.first_s, card.heat = now_s, ratio
            return
        # At first over what there is, later over the whole time.
        over_s = min(self._average_s, now_s - card.first_s)
        share = 1.0 - math.exp((last_s - now_s) / over_s) if over_s > 0 else 1.0
        card.heat += share * (ratio - card.heat)

    def _now(self, now_s: float) -> NodeLoad:
        heat = {
            uuid: round(min(1.0, it.heat), _HEAT_DIGITS)
            for uuid, it in self._cards.items()
            if it.last_s is not None and now_s - it.last_s <= self._stale_s
        }
        # What was there in each of the last readings. A card that cannot be read keeps its figures:
        # what was not free is not free now.
        foreign = {uuid: Mib(it) for uuid, it in self._known_foreign.items() if it}
        return NodeLoad(heat=heat, foreign=foreign)


def _is_worse(told: NodeLoad, now: NodeLoad) -> bool:
    """Whether a card's heat is no longer known, or more of it is used by nobody."""
    grown = any(mib > told.foreign.get(uuid, 0) for uuid, mib in now.foreign.items())
    return grown or bool(told.heat.keys() - now.heat.keys())


def _differs(told: NodeLoad, now: NodeLoad) -> bool:
    """Whether it is worth a change of the node object."""
    if told.heat.keys() != now.heat.keys() or told.foreign != now.foreign:
        return True
    return any(abs(it - told.heat[uuid]) >= _HEAT_STEP for uuid, it in now.heat.items())
