"""Windows: what is remembered, and that readings are what Prometheus would have answered."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import ReadingQuality
from fracgpu.disruption.policy import RebalancerPolicy
from process.clock import SystemClock
from rebalancer.usage.measured import MeasuredUsage
from rebalancer.usage.past import AsOf
from rebalancer.usage.prometheus import Prometheus
from simulator.envtest.prometheus import RealPrometheus
from simulator.usage_replay.windows import SampleWindow, readings, samples_of
from tests.support.backfill import Past, write_blocks

CARD = CardUuid("GPU-1")
STEP_S = 30.0
# Scraped at the steps of its windows, so that both see the very same samples.
POLICY = RebalancerPolicy(step_s=STEP_S)


def test_a_window_remembers_so_many_samples_and_a_gap_is_missing() -> None:
    window: SampleWindow[str] = SampleWindow(3)
    for value in (1.0, 2.0, 3.0, 4.0):
        window.push({"a": value} if value != 3 else {})

    keys, rows = window.last(3)

    assert keys == ["a"]
    np.testing.assert_array_equal(rows, [[4.0, math.nan, 2.0]])
    np.testing.assert_array_equal(window.last(1)[1], [[4.0]])
    np.testing.assert_array_equal(window.last(9)[1], rows)


@given(st.lists(st.sets(st.integers(0, 200)), max_size=20))
def test_a_series_that_was_dropped_leaves_nothing_to_the_next_one(
    kept: list[set[int]],
) -> None:
    window: SampleWindow[int] = SampleWindow(4)
    expected: dict[int, list[float]] = {}
    for number, keys in enumerate(kept):
        window.push({key: float(number) for key in keys})
        for key in keys | expected.keys():
            old = expected.get(key, [math.nan] * 4)
            expected[key] = [float(number) if key in keys else math.nan, *old[:3]]
        window.keep(keys)
        expected = {key: expected[key] for key in keys}
        found_keys, rows = window.last(4)
        assert set(found_keys) == keys
        for key, row in zip(found_keys, rows, strict=True):
            np.testing.assert_array_equal(row, expected[key])


def test_a_card_with_a_gap_is_not_trusted() -> None:
    cards: SampleWindow[CardUuid] = SampleWindow(120)
    pods: SampleWindow[tuple[CardUuid, str]] = SampleWindow(120)

    def quality() -> ReadingQuality:
        return readings(cards, pods, {}, policy=POLICY, step_s=STEP_S)[CARD].quality

    cards.push({CARD: 0.5})
    assert quality() is ReadingQuality.PARTIAL
    for _ in range(19):
        cards.push({CARD: 0.5})
    assert quality() is ReadingQuality.OK
    cards.push({})
    assert quality() is ReadingQuality.STALE


async def test_a_reading_is_what_a_real_prometheus_answers_the_rebalancer(tmp_path: Path) -> None:
    count = samples_of(POLICY.forecast_window_s, STEP_S)
    # On the grid on which Prometheus aligns the steps of subqueries.
    end_s = SystemClock().now().timestamp() // STEP_S * STEP_S
    busy = [50 + 50 * math.sin(number / 7) for number in range(count)]
    use = [30 + 20 * math.sin(number / 5) for number in range(count)]
    ages = [STEP_S * (count - 1 - number) for number in range(count)]
    device, pod = {"UUID": CARD, "pod": ""}, {"UUID": CARD, "pod_uid": "p", "container": "main"}
    series = [
        Past(
            name="fracgpu_card_util",
            labels=device,
            points=dict(zip(ages, busy, strict=True)),
        ),
        Past(
            name="fracgpu_card_memory_free_mib", labels=device, points=dict.fromkeys(ages, 5000.0)
        ),
        Past(name="fracgpu_pod_sm_util", labels=pod, points=dict(zip(ages, use, strict=True))),
    ]
    write_blocks(tmp_path / "data", series, end_s=end_s)
    cards: SampleWindow[CardUuid] = SampleWindow(count)
    pods: SampleWindow[tuple[CardUuid, str]] = SampleWindow(count)
    for number in range(count):
        cards.push({CARD: busy[number] / 100})
        pods.push({(CARD, "p"): use[number] / 100})

    async with (
        RealPrometheus.start(tmp_path, {}) as server,
        Prometheus(server.url, limit_s=60, limit_bytes=1 << 20) as client,
    ):
        measured = await MeasuredUsage(AsOf(client, at_s=end_s)).observe([CARD], POLICY)

    theirs = measured.usage[CARD].reading
    ours = readings(cards, pods, {CARD: 5000}, policy=POLICY, step_s=STEP_S)[CARD].reading
    assert theirs is not None, measured
    assert ours is not None
    # Prometheus 2 has a sample at the very begin of a window as well: one more of 20.
    for name in (
        "level_ratio",
        "slow_level_ratio",
        "fast_hot_ratio",
        "slow_hot_ratio",
        "history_ratio",
    ):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=0.05), name
    assert ours.free_mib == theirs.free_mib
    assert ours.pods["p"] == pytest.approx(theirs.pods["p"], abs=0.02)
