"""What an administrator can tune about moving pods: each value with its meaning and range."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from typing import Any, Final

from fracgpu.disruption.change_freeze import ChangeFreeze

_KEY: Final = "fracgpu.tunable"


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
class Tunable:
    """One value: its field, what it means, its default and the range it must lie in.

    Attributes:
        integer: only whole numbers will do.
    """

    name: str
    meaning: str
    default: float
    low: float
    high: float
    integer: bool


def _tuned(default: float, meaning: str, *, low: float, high: float) -> Any:
    return field(default=default, metadata={_KEY: (meaning, low, high)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancerPolicy:
    """When a card is hot, what may move, and how much at once.

    docs/rebalancer-settings.md lists them all. Without configuration the rebalancer runs in dry-run
    mode.

    Attributes:
        paused: no move is begun; those under way are finished.
        aggressiveness: the level, 1 to 5, that the values were derived from.
        change_freezes: times in which no move is begun.
        reset_breakers_at: what happened before this time opens no circuit breaker.
    """

    mode: Mode = Mode.DRY_RUN
    paused: bool = False
    aggressiveness: int = 3
    change_freezes: tuple[ChangeFreeze, ...] = ()
    reset_breakers_at: datetime | None = None
    make_room: MakeRoom = MakeRoom.OFF
    namespaces: Namespaces = Namespaces.ALL

    tick_s: float = _tuned(15, "pause between two cycles", low=1, high=300)
    startup_grace_s: float = _tuned(
        600, "no new move this long after becoming the leader", low=0, high=86400
    )

    # When a card is hot.
    hot_ratio: float = _tuned(0.8, "busy share above which a sample is hot", low=0.2, high=1)
    clear_ratio: float = _tuned(0.65, "mean below which a card is calm", low=0.1, high=0.99)
    ceiling_ratio: float = _tuned(
        0.6, "most that a target may be busy after a move", low=0.05, high=0.98
    )
    fast_window_s: float = _tuned(600, "the short window", low=5, high=7200)
    fast_hot_ratio: float = _tuned(
        0.8, "share of the short window's samples that must be hot", low=0.1, high=1
    )
    slow_window_s: float = _tuned(1800, "the long window", low=10, high=21600)
    slow_hot_ratio: float = _tuned(
        0.6, "share of the long window's samples that must be hot", low=0.1, high=1
    )
    forecast_window_s: float = _tuned(3600, "what a target's forecast looks at", low=10, high=86400)
    memory_window_s: float = _tuned(
        21600,
        "how far back a target must not have been busy for a quarter of the time",
        low=10,
        high=86400,
    )
    min_active_ratio: float = _tuned(
        0.5,
        "share of the short window with work on the multiprocessors, where that is measured, below "
        "which a busy card is not hot",
        low=0,
        high=1,
    )
    hold_cycles: int = _tuned(
        1, "more cycles that both windows must agree before a card is hot", low=0, high=20
    )
    settle_s: float = _tuned(
        600, "how long a relieved card must be calm before it counts as cool", low=1, high=7200
    )

    # What is known of cards.
    step_s: float = _tuned(30, "resolution of the windows", low=1, high=300)
    coverage_ratio: float = _tuned(
        0.8, "share of the short window's samples that must exist", low=0.1, high=1
    )
    fresh_cards_ratio: float = _tuned(
        0.8, "share of the cards that must be measured, else a cycle is blind", low=0.1, high=1
    )
    free_margin_mib: int = _tuned(
        256, "measured free MiB that a target must have beyond the request", low=0, high=65536
    )

    # What may move.
    min_pod_busy_ratio: float = _tuned(
        0.1, "share of a card below which moving a pod relieves nothing", low=0.01, high=0.9
    )
    attribution_ratio: float = _tuned(
        0.6, "share of a card's use that its pods must account for", low=0, high=1
    )
    min_pod_age_s: float = _tuned(900, "how long a pod must have been running", low=0, high=86400)

    # How many moves.
    max_in_flight: int = _tuned(1, "moves at once", low=1, high=20)
    max_in_flight_per_node: int = _tuned(1, "moves at once off, or onto, one node", low=1, high=20)
    max_per_hour: int = _tuned(12, "moves in any hour", low=1, high=1000)
    max_per_day: int = _tuned(40, "moves in any day", low=1, high=10000)
    max_per_namespace_per_hour: int = _tuned(
        2, "moves of one namespace in any hour", low=1, high=1000
    )
    max_per_owner_per_hour: int = _tuned(1, "moves of one owner in any hour", low=1, high=1000)
    max_per_owner_per_day: int = _tuned(3, "moves of one owner in any day", low=1, high=1000)
    max_per_pod_per_hour: int = _tuned(
        1, "moves of one pod and its replacements in any hour", low=1, high=100
    )
    owner_cooldown_s: float = _tuned(
        3600, "between two moves of one owner; doubled after each useless one", low=1, high=86400
    )
    card_cooldown_s: float = _tuned(
        600, "between two moves off, or two moves onto, one card", low=1, high=86400
    )
    give_up_cooldown_s: float = _tuned(
        300,
        "how long an owner is left alone after a move of it was given up before it began",
        low=0,
        high=86400,
    )
    return_cooldown_s: float = _tuned(
        3600, "how long an owner is not moved back to a card it left", low=0, high=86400
    )

    # What opens a circuit breaker.
    breaker_window_s: float = _tuned(
        1800, "how long an aborted move, or an API error, counts", low=60, high=86400
    )
    breaker_aborts: int = _tuned(
        2, "moves aborted after a pod was disturbed, in that time", low=1, high=100
    )
    breaker_api_errors: int = _tuned(
        10, "cycles cut short by the API server, in that time", low=1, high=10000
    )
    breaker_lost_s: float = _tuned(86400, "how long a lost pod counts", low=600, high=604800)
    breaker_useless_ratio: float = _tuned(
        0.5, "share of the last six moves that may relieve nothing", low=0, high=1
    )
    breaker_useless_s: float = _tuned(
        86400, "how long a move that relieved nothing counts", low=600, high=604800
    )
    breaker_blind_s: float = _tuned(
        600,
        "how long the rebalancer may be blind; then it must see as long again",
        low=30,
        high=86400,
    )

    # Room for pods that wait.
    make_room_after_s: float = _tuned(
        120, "how long a pod must have been unschedulable before room is made", low=0, high=86400
    )
    make_room_moves: int = _tuned(8, "moves that make room for one pod", low=1, high=8)
    make_room_hold_s: float = _tuned(
        1800, "how long freed cards are kept for the pod, from the plan on", low=60, high=7200
    )

    # How long each step may take.
    cordon_s: float = _tuned(
        300, "after which a cordon lapses unless it is renewed", low=5, high=3600
    )
    max_cordoned_ratio: float = _tuned(
        0.25, "share of all cards that may be cordoned at once (at least one)", low=0, high=1
    )
    plan_ttl_s: float = _tuned(
        120,
        "from plan to the first step that disturbs the pod, without the notice",
        low=5,
        high=3600,
    )
    notice_s: float = _tuned(
        0, "how long before it is disturbed a pod is told of its move", low=0, high=300
    )
    ready_s: float = _tuned(
        30, "how long a replacement must be ready before the old pod is evicted", low=0, high=600
    )
    evict_ttl_s: float = _tuned(600, "how long an eviction is tried", low=5, high=7200)
    replacement_ttl_s: float = _tuned(
        600, "how long the replacement may take to be ready", low=5, high=7200
    )

    def mistakes(self) -> tuple[str, ...]:
        """Return a message for every value out of range and for every contradiction."""
        found = [
            f"{value.name} is {getattr(self, value.name)}; want {value.low:g} to {value.high:g}"
            for value in tunables()
            if not value.low <= getattr(self, value.name) <= value.high
        ]
        return (*found, *(text for wrong, text in self._contradictions() if wrong))

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        yield (
            self.clear_ratio >= self.hot_ratio,
            f"clear_ratio is {self.clear_ratio}; want less than hot_ratio, {self.hot_ratio}",
        )
        yield (
            self.ceiling_ratio >= self.clear_ratio,
            f"ceiling_ratio is {self.ceiling_ratio}; want less than clear_ratio, "
            f"{self.clear_ratio}",
        )
        yield (
            self.min_pod_busy_ratio >= self.ceiling_ratio,
            f"min_pod_busy_ratio is {self.min_pod_busy_ratio}; want less than ceiling_ratio, "
            f"{self.ceiling_ratio}",
        )
        yield (
            self.slow_window_s < self.fast_window_s,
            f"slow_window_s is {self.slow_window_s:g}; want at least fast_window_s, "
            f"{self.fast_window_s:g}",
        )
        yield (
            self.forecast_window_s < self.fast_window_s,
            f"forecast_window_s is {self.forecast_window_s:g}; want at least fast_window_s, "
            f"{self.fast_window_s:g}",
        )
        yield (
            self.step_s * 5 > self.fast_window_s,
            f"step_s is {self.step_s:g}; want at most a fifth of fast_window_s, "
            f"{self.fast_window_s:g}",
        )
        yield (
            self.settle_s < self.fast_window_s,
            f"settle_s is {self.settle_s:g}; want at least fast_window_s, {self.fast_window_s:g}",
        )
        yield (
            self.memory_window_s < self.forecast_window_s,
            f"memory_window_s is {self.memory_window_s:g}; want at least forecast_window_s, "
            f"{self.forecast_window_s:g}",
        )
        yield (
            self.max_per_hour > self.max_per_day,
            f"max_per_hour is {self.max_per_hour}; want at most max_per_day, {self.max_per_day}",
        )
        yield (
            self.max_per_owner_per_hour > self.max_per_owner_per_day,
            f"max_per_owner_per_hour is {self.max_per_owner_per_hour}; want at most "
            f"max_per_owner_per_day, {self.max_per_owner_per_day}",
        )
        yield (
            self.cordon_s < 2 * self.tick_s,
            f"cordon_s is {self.cordon_s:g}; want at least twice tick_s, {self.tick_s:g}",
        )
        yield (
            self.plan_ttl_s < 2 * self.tick_s,
            f"plan_ttl_s is {self.plan_ttl_s:g}; want at least twice tick_s, {self.tick_s:g}",
        )


def tunables() -> tuple[Tunable, ...]:
    """Return every tunable value of :class:`RebalancerPolicy`, in order of declaration."""
    found = []
    for tunable_field in fields(RebalancerPolicy):
        if _KEY in tunable_field.metadata:
            meaning, low, high = tunable_field.metadata[_KEY]
            default: Any = tunable_field.default
            found.append(
                Tunable(
                    name=tunable_field.name,
                    meaning=meaning,
                    default=default,
                    low=low,
                    high=high,
                    integer=tunable_field.type is int,
                )
            )
    return tuple(found)
