"""Measured load: how far a reading can be trusted, when a card is hot, and whether a move helps.

Unknown is never cool: a card without a reading keeps its heat, and is neither source nor target of
a move.

======== ========================================== ==========
heat     what happened                              becomes
======== ========================================== ==========
cool     the short window is hot                    warming
warming  both windows are hot, and stay so          hot
warming  the short window is not hot any more       cool
hot      a pod is being moved off it                relieving
hot      it is calm, or neither window is hot       settling
reliev.  the move ended, well or not                settling
settling calm for long enough                       cool
settling long enough, and both windows hot again    hot
======== ========================================== ==========
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, assert_never

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.units import Mib


class ReadingQuality(Enum):
    """How far a card's measurements can be trusted."""

    OK = "ok"
    STALE = "stale"  # the newest sample is too old, or the exporter repeats itself
    PARTIAL = "partial"  # too many samples of the window, or a whole series, are missing
    UNKNOWN = "unknown"  # nothing, or only impossible values


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """How busy one card was lately, as shares of its time, 0..1.

    Attributes:
        level_ratio: mean over the short window.
        slow_level_ratio: mean over the long window.
        fast_hot_ratio: share of the short window's samples above the hot line.
        slow_hot_ratio: the same for the long window.
        history_ratio: share of the forecast window's samples that exist.
        free_mib: measured free memory, not capacity less allocations.
        latest_ratio: the newest sample.
        active_ratio: how much of the card did work in the short window; None where that is not
            measured. A busy card merely has a kernel running.
        repeating: it brings nothing new: its newest sample, or the reading behind it, is not from
            one of the last two scrapes; or its exporter does not say when it read its cards, and
            none of them has changed in the last few, though one is busy.
        unchanged: its exporter does not say when it read its cards, and none has changed. Such an
            idle card may be idle, or its exporter frozen.
        pods: what each pod uses, by its UID: the mean over the long window.
        overusers: UIDs of the pods that use more memory of it than they are assigned.
    """

    level_ratio: float
    slow_level_ratio: float
    fast_hot_ratio: float
    slow_hot_ratio: float
    history_ratio: float
    free_mib: Mib
    latest_ratio: float
    active_ratio: float | None = None
    repeating: bool = False
    unchanged: bool = False
    pods: Mapping[str, float] = field(default_factory=dict)
    overusers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUsage:
    """A card's reading, or why there is no trusted one."""

    card: CardUuid
    quality: ReadingQuality
    reading: CardReading | None = None
    why: str = ""

    def __post_init__(self) -> None:
        assert (self.quality is ReadingQuality.OK) == (self.reading is not None), (
            "only a trusted usage has a reading"
        )

    @property
    def is_repeating(self) -> bool:
        """Whether the reading is trusted and brings nothing new."""
        return self.reading is not None and self.reading.repeating


class Heat(Enum):
    """What a card's load means for its pods."""

    COOL = "cool"
    WARMING = "warming"
    HOT = "hot"
    RELIEVING = "relieving"
    SETTLING = "settling"


HOT_STATES: Final = frozenset({Heat.HOT, Heat.RELIEVING})
"""The states of a card that is hot, whether or not a pod is leaving it."""


_NEXT: Final[Mapping[Heat, frozenset[Heat]]] = {
    Heat.COOL: frozenset({Heat.WARMING}),
    Heat.WARMING: frozenset({Heat.COOL, Heat.HOT}),
    Heat.HOT: frozenset({Heat.RELIEVING, Heat.SETTLING}),
    Heat.RELIEVING: frozenset({Heat.SETTLING}),
    Heat.SETTLING: frozenset({Heat.COOL, Heat.HOT}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHeat:
    """A card's heat, since when, and what the next transition depends on.

    Attributes:
        agreed: cycles in a row in which both windows were hot.
        calm_since: since when the level has been below the clear line, without a gap.
    """

    heat: Heat
    since: datetime
    agreed: int = 0
    calm_since: datetime | None = None

    def to(self, heat: Heat, *, now: datetime) -> "CardHeat":
        """Return the card in another heat.

        A change that ``_NEXT`` does not list is a bug of the caller, hence the assertion.
        """
        assert heat in _NEXT[self.heat], f"{self.heat.value} -> {heat.value}"
        return replace(self, heat=heat, since=now)


def is_hot_now(reading: CardReading, policy: RebalancerPolicy) -> bool:
    """Report whether both windows are hot now."""
    return _fast_is_hot(reading, policy) and _slow_is_hot(reading, policy)


def _fast_is_hot(reading: CardReading, policy: RebalancerPolicy) -> bool:
    return _is_active(reading, policy) and reading.fast_hot_ratio >= policy.fast_hot_ratio


def _slow_is_hot(reading: CardReading, policy: RebalancerPolicy) -> bool:
    return _is_active(reading, policy) and reading.slow_hot_ratio >= policy.slow_hot_ratio


def _is_active(reading: CardReading, policy: RebalancerPolicy) -> bool:
    return reading.active_ratio is None or reading.active_ratio >= policy.min_active_ratio


def advance(
    before: CardHeat, usage: CardUsage, *, relieving: bool, policy: RebalancerPolicy, now: datetime
) -> CardHeat:
    """Return a card's heat one cycle later.

    Args:
        before: its heat in the cycle before.
        usage: what was measured now; without a reading only the counts towards a change are reset.
        relieving: a pod is being moved off the card.
        policy: the limits and times.
        now: the time of this cycle.
    """
    reading = usage.reading
    if reading is None:
        return replace(before, agreed=0, calm_since=None)
    calm = reading.level_ratio < policy.clear_ratio
    heat = replace(
        before,
        agreed=before.agreed + 1 if is_hot_now(reading, policy) else 0,
        calm_since=(before.calm_since or now) if calm else None,
    )
    match heat.heat:
        case Heat.COOL:
            return heat.to(Heat.WARMING, now=now) if _fast_is_hot(reading, policy) else heat
        case Heat.WARMING:
            return _from_warming(heat, reading, policy=policy, now=now)
        case Heat.HOT:
            if relieving:
                return heat.to(Heat.RELIEVING, now=now)
            over = calm or not (_fast_is_hot(reading, policy) or _slow_is_hot(reading, policy))
            return heat.to(Heat.SETTLING, now=now) if over else heat
        case Heat.RELIEVING:
            return heat if relieving else heat.to(Heat.SETTLING, now=now)
        case Heat.SETTLING:
            return _from_settling(heat, policy=policy, now=now)
        case _:
            assert_never(heat.heat)


def _from_warming(
    heat: CardHeat, reading: CardReading, *, policy: RebalancerPolicy, now: datetime
) -> CardHeat:
    if heat.agreed > policy.hold_cycles:
        return heat.to(Heat.HOT, now=now)
    return heat if _fast_is_hot(reading, policy) else heat.to(Heat.COOL, now=now)


def _from_settling(heat: CardHeat, *, policy: RebalancerPolicy, now: datetime) -> CardHeat:
    settle = timedelta(seconds=policy.settle_s)
    if heat.calm_since is not None and now - heat.calm_since >= settle:
        return heat.to(Heat.COOL, now=now)
    if now - heat.since >= settle and heat.agreed > policy.hold_cycles:
        return heat.to(Heat.HOT, now=now)
    return heat


class Unrelievable(Enum):
    """Why moving a pod would not cool a hot card."""

    ONE_POD_ALONE = "one pod alone makes it hot, and the heat would follow the pod"
    NOT_ATTRIBUTED = "its pods account for too little of its use"
    NO_USEFUL_POD = "every pod is too small to matter or too large for any other card"


class HeatCause(Enum):
    """What keeps a hot card busy; the value is a metric label."""

    SEVERAL_PODS = "several_pods"
    ONE_POD = "one_pod"  # it would be hot anywhere
    NOT_ATTRIBUTED = "not_attributed"  # processes of no pod, or of pods that are not measured
    NOT_MEASURED = "not_measured"  # there is no trusted reading now


def heat_cause(reading: CardReading | None, policy: RebalancerPolicy) -> HeatCause:
    """Return what keeps a hot card busy, as far as its pods are measured."""
    if reading is None:
        return HeatCause.NOT_MEASURED
    uses = _attributed(reading, policy)
    if not uses:
        return HeatCause.NOT_ATTRIBUTED
    alone = len(uses) == 1 or max(uses) > policy.hot_ratio
    return HeatCause.ONE_POD if alone else HeatCause.SEVERAL_PODS


def unrelievable(reading: CardReading, policy: RebalancerPolicy) -> Unrelievable | None:
    """Return why moving a pod off this card would not help, or None if it may help."""
    uses = _attributed(reading, policy)
    if not uses:
        return Unrelievable.NOT_ATTRIBUTED
    if len(uses) == 1:
        return Unrelievable.ONE_POD_ALONE
    if not any(policy.min_pod_busy_ratio <= use <= policy.hot_ratio for use in uses):
        return Unrelievable.NO_USEFUL_POD
    return None


def _attributed(reading: CardReading, policy: RebalancerPolicy) -> Sequence[float]:
    """Return what each pod uses; nothing if the pods account for too little of the card's use."""
    uses = [use for use in reading.pods.values() if use > 0]
    enough = sum(uses) >= policy.attribution_ratio * reading.slow_level_ratio
    return uses if enough else []


def fresh_ratio(usage: Mapping[CardUuid, CardUsage], cards: frozenset[CardUuid]) -> float:
    """Return the share of *cards* with a trusted reading, 0..1; 1 if there are no cards."""
    trusted = sum(uuid in usage and usage[uuid].quality is ReadingQuality.OK for uuid in cards)
    return trusted / len(cards) if cards else 1.0


def blindness(
    usage: Mapping[CardUuid, CardUsage], cards: frozenset[CardUuid], policy: RebalancerPolicy
) -> str:
    """Return why too little is known to start any move; empty if enough is known.

    Args:
        usage: what was measured.
        cards: the cards that should be measured.
        policy: the share of cards that is enough.
    """
    if not cards:
        return ""
    trusted = sum(uuid in usage and usage[uuid].quality is ReadingQuality.OK for uuid in cards)
    repeating = sum(uuid in usage and usage[uuid].is_repeating for uuid in cards)
    if trusted - repeating >= policy.fresh_cards_ratio * len(cards):
        return ""
    whys = {usage[uuid].why for uuid in cards if uuid in usage and usage[uuid].why}
    if repeating:
        whys.add(f"{repeating} bring nothing new")
    because = f" ({'; '.join(sorted(whys)[:3])})" if whys else ""
    return f"{trusted} of {len(cards)} cards have trusted readings{because}"
