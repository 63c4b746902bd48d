"""What the rebalancer goes by: what an administrator sets, and the times and shares behind it."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from fracgpu.disruption.change_freeze import ChangeFreeze


class Mode(Enum):
    """How far the rebalancer may go."""

    ACTIVE = "active"  # cordon hot cards and move pods
    RECOMMEND = "recommend"  # decide, and show each move as an object for people; change nothing
    DRY_RUN = "dryRun"  # decide, ask the API server whether it would be allowed, change nothing
    OFF = "off"  # decide nothing


class MakeRoom(Enum):
    """How far the rebalancer may go for a pod that waits; never farther than its mode."""

    ACTIVE = "active"  # move pods
    RECOMMEND = "recommend"  # show the moves to people
    OFF = "off"  # plan nothing, except in a dry run, which shows what there would be


class Namespaces(Enum):
    """Whose pods may be moved."""

    ALL = "all"  # but those of namespaces that are labelled fracgpu.io/rebalance: never
    LABELLED = "labelled"  # only those of namespaces that are labelled fracgpu.io/rebalance: allow


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancerPolicy:
    """When a card is hot, what may move, and how much at once.

    The first group can be set in the ConfigMap (`rebalancer.config`), the second is what
    `aggressiveness` sets beside it (`fracgpu.disruption.aggressiveness`), and the third is the same
    in every cluster. A simulator, whose hours take seconds, builds a policy with other values.

    Attributes:
        paused: no pod is disturbed anew; a move that has disturbed its pod is finished.
        aggressiveness: the level, 1 to 5, that the values were derived from.
        change_freezes: times in which the same holds.
        reset_breakers_at: what happened before this time opens no circuit breaker.
        hot_ratio: busy share above which a sample is hot.
        max_in_flight: moves at once.
        notice_s: how long before it is disturbed a pod is told of its move.
        make_room_after_s: how long a pod must have been unschedulable before room is made.
        ignored_keys: keys of earlier versions that were written and set nothing any more.
    """

    mode: Mode = Mode.DRY_RUN
    paused: bool = False
    aggressiveness: int = 3
    change_freezes: tuple[ChangeFreeze, ...] = ()
    namespaces: Namespaces = Namespaces.ALL
    hot_ratio: float = 0.8
    max_in_flight: int = 3
    max_per_hour: int = 12
    max_per_day: int = 80
    notice_s: float = 0
    make_room: MakeRoom = MakeRoom.OFF
    make_room_after_s: float = 120
    reset_breakers_at: datetime | None = None
    ignored_keys: tuple[str, ...] = ()

    fast_window_s: float = 600
    fast_hot_ratio: float = 0.8  # share of the short window's samples that must be hot
    slow_window_s: float = 1800
    slow_hot_ratio: float = 0.6
    forecast_window_s: float = 3600  # what a target's forecast looks at
    memory_window_s: float = 21600  # how far back loads are remembered
    settle_s: float = 600  # how long a relieved card must be calm before it counts as cool
    max_cordoned_ratio: float = 0.25  # share of all cards that may be cordoned at once
    min_pod_busy_ratio: float = 0.1  # share of a card below which moving a pod relieves nothing
    min_pod_age_s: float = 900
    max_per_namespace_per_hour: int = 2
    make_room_moves: int = 8  # moves that make room for one pod
    max_per_owner_per_day: int = 3
    owner_cooldown_s: float = 3600  # between two moves of one owner; doubled after a useless one
    card_cooldown_s: float = 600  # between two moves off, or two moves onto, one card
    return_cooldown_s: float = 3600  # how long an owner is not moved back to a card it left

    tick_s: float = 15  # between two cycles
    startup_grace_s: float = 600  # no new move this long after becoming the leader
    step_s: float = 30  # resolution of the windows
    hold_cycles: int = 1  # more cycles that both windows must agree before a card is hot
    min_active_ratio: float = 0.5  # share of the short window with work on the multiprocessors
    coverage_ratio: float = 0.8  # share of the short window's samples that must exist
    fresh_cards_ratio: float = 0.8  # share of the cards that must be measured
    free_margin_mib: int = 256  # measured free MiB that a target must have beyond the request
    attribution_ratio: float = 0.6  # share of a card's use that its pods must account for
    give_up_cooldown_s: float = 300  # after a move of an owner was given up before it began
    cordon_s: float = 300  # after which a cordon lapses unless it is renewed
    plan_ttl_s: float = 120  # from plan to the first step that disturbs the pod, notice apart
    ready_s: float = 30  # how long a replacement must be Ready before the old pod is evicted
    evict_ttl_s: float = 600  # how long an eviction is tried
    replacement_ttl_s: float = 600  # for the replacement to be Ready, unless its owner takes longer
    make_room_hold_s: float = 1800  # how long freed cards are kept for the pod, from the plan on
    breaker_window_s: float = 1800  # how long an aborted move counts
    breaker_aborts: int = 2  # moves aborted after a pod was disturbed, in that time
    breaker_lost_s: float = 86400  # how long a lost pod counts

    @property
    def clear_ratio(self) -> float:
        """Mean below which a card is calm: in the proportion of 0.65 to 0.8."""
        return round(self.hot_ratio * 0.65 / 0.8, 6)

    @property
    def ceiling_ratio(self) -> float:
        """Most that the target of a move that makes room may be busy afterwards: 0.6 to 0.8."""
        return round(self.hot_ratio * 0.6 / 0.8, 6)

    def frozen_until(self, now: datetime) -> datetime | None:
        """Return when the change freezes that hold at *now* end; None if there is none."""
        ends = [freeze.until(now) for freeze in self.change_freezes]
        return max((end for end in ends if end is not None), default=None)

    @property
    def digest(self) -> str:
        """A short hash, by which a Move names its policy."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]
