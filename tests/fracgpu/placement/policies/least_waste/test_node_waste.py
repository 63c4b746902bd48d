"""The two kinds of waste are weighed, and one without weight plays no part."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.policies.least_waste.fragments import Fragments
from fracgpu.placement.policies.least_waste.node_waste import NodeWaste
from fracgpu.placement.policies.least_waste.turnover import FILLING, TURNING_OVER, Weights
from tests.fracgpu.placement.policies.least_waste.demands import MODELS, a_fill, mix

FILL = a_fill(mix(), MODELS)
FRAGMENTS = Fragments(mix(), MODELS)
CARDS = st.lists(st.integers(0, 1000), min_size=1, max_size=8)
WEIGHT = st.floats(0.0, 2.0)


def wasted(weights: Weights, *cards: int, cpu_milli: int) -> tuple[float, float, float]:
    """Return the weighed waste, the one of a full node, and the one of the next pod."""
    node = (
        np.array([cards], np.int16),
        np.array([cpu_milli], np.int32),
        np.zeros(1, np.int64),
    )
    parts = (
        NodeWaste(FILL, FRAGMENTS, weights).expected_waste_milli(*node),
        FILL.expected_waste_milli(*node),
        FRAGMENTS.unusable_milli(*node),
    )
    weighed, full, now = (float(part[0]) for part in parts)
    return weighed, full, now


@settings(max_examples=50, deadline=None)
@given(CARDS, st.integers(0, 100_000))
def test_while_the_cluster_fills_up_only_the_full_node_counts(
    cards: list[int], cpu_milli: int
) -> None:
    weighed, full, _ = wasted(FILLING, *cards, cpu_milli=cpu_milli)

    assert weighed == full


@settings(max_examples=50, deadline=None)
@given(CARDS, st.integers(0, 100_000), WEIGHT, WEIGHT)
def test_both_count_by_their_weights(
    cards: list[int], cpu_milli: int, fill: float, fragment: float
) -> None:
    weights = replace(FILLING, fill=fill, fragment=fragment)
    weighed, full, now = wasted(weights, *cards, cpu_milli=cpu_milli)

    assert weighed == pytest.approx(fill * full + fragment * now, rel=1e-5, abs=1e-3)


def test_where_both_count_fewer_evaluations_are_done_in_a_time() -> None:
    filling, turning = (NodeWaste(FILL, FRAGMENTS, weights) for weights in (FILLING, TURNING_OVER))

    assert filling.evaluated_in(5) == FILL.fills_in(5)
    assert 1 <= turning.evaluated_in(5) < min(FILL.fills_in(5), FRAGMENTS.seen_in(5))
