"""The judge's policy decides with the rebalancer's code: one hot card beside an idle one."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.fixtures.judged_prometheus import JudgedPrometheus
from benchmarks.judged_rebalancer import POLICY, Decision, Policy

_TICK_S = 57
_HISTORY = 64
_LONG_AGO_S = -1e6
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class ShownCard:
    id: str
    samples: NDArray[np.float64]
    node: str = "n0"
    model: str = "A100"
    capacity_mib: int = 81920
    free_mib: int = 60000
    age_s: float = 0.0
    collect_age_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ShownPod:
    id: str
    card: str
    samples: NDArray[np.float64]
    owner: str = "one"
    mib: int = 8192
    ready: bool = True
    started_s: float = _LONG_AGO_S


@dataclass(kw_only=True)
class ShownMove:
    pod: str
    begun_s: float
    landed: str | None = None
    ready_s: float | None = None


@dataclass
class Shown:
    """What the judge shows at one tick: two pods on one card and nothing on the other."""

    tick: int
    busy: float = 0.45
    moved: frozenset[str] = frozenset()
    noise: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def past(self, level: float) -> NDArray[np.float64]:
        samples = np.clip(level + self.noise.normal(0, 0.01, _HISTORY), 0.0, 1.0)
        samples[: max(0, _HISTORY - self.tick - 1)] = np.nan
        return samples

    def pods(self) -> list[ShownPod]:
        return [
            ShownPod(
                id=name,
                owner=f"owner-{name}",
                card="c01" if name in self.moved else "c00",
                samples=self.past(self.busy + (0.05 if name == "a" else -0.05)),
            )
            for name in ("a", "b")
        ]

    def cards(self) -> list[ShownCard]:
        there = self.busy * len(self.moved)
        return [
            ShownCard(id="c00", samples=self.past(2 * self.busy - there)),
            ShownCard(id="c01", samples=self.past(there), node="n1"),
        ]


def test_of_a_hot_card_one_pod_is_moved_by_surge_to_the_idle_card_after_a_second_look() -> None:
    policy = Policy()
    made: list[tuple[int, Decision]] = []
    cordoned: dict[int, frozenset[str]] = {}

    for tick in range(80):
        shown = Shown(tick)
        history = [ShownMove(pod=it.pod, begun_s=at * _TICK_S) for at, it in made]
        decisions = policy.decide(tick * _TICK_S, shown.cards(), shown.pods(), history)
        made += [(tick, decision) for decision in decisions]
        cordoned[tick] = policy.repelled()

    ((at, decision),) = made
    assert decision == Decision(pod="b", target="c01", surge=True)
    needed_s = POLICY.coverage_ratio * POLICY.forecast_window_s
    assert at * _TICK_S >= needed_s >= POLICY.startup_grace_s
    # Either would cool the card; b overshoots less. It was planned one cycle earlier, and its card
    # was closed by then.
    assert cordoned[at - 1] == {"c00"}
    assert cordoned[0] == frozenset()


def test_a_move_is_told_as_a_past_move_with_the_verdict_on_it() -> None:
    policy = Policy()
    history: list[ShownMove] = []

    for tick in range(80):
        shown = Shown(tick, moved=frozenset(move.pod for move in history))
        for decision in policy.decide(tick * _TICK_S, shown.cards(), shown.pods(), history):
            ready_s = (tick + 1) * _TICK_S
            history.append(
                ShownMove(pod=decision.pod, begun_s=tick * _TICK_S, landed="c01", ready_s=ready_s)
            )

    assert len(history) == 1
    assert policy.held["ended_relieved"] == 1


def test_of_cards_that_are_not_measured_any_more_nothing_is_moved() -> None:
    policy = Policy()

    for tick in range(80):
        shown = Shown(tick)
        cards = [replace(card, age_s=_DAY_S) for card in shown.cards()]

        assert policy.decide(tick * _TICK_S, cards, shown.pods(), []) == []


async def test_a_query_that_nobody_taught_the_stand_in_is_an_error() -> None:
    shown = Shown(30)
    prometheus = JudgedPrometheus(POLICY, shown.cards(), shown.pods(), 1.7e9)

    with pytest.raises(KeyError, match="up"):
        await prometheus.query("up")
