"""Idle cards have a price if pods need them that fit in few other places."""

from dataclasses import replace

import numpy as np
import pytest

from fracgpu.placement.node_matrix import Demand
from fracgpu.placement.policies.least_waste.scarcity import Scarcity
from fracgpu.placement.policies.least_waste.turnover import FILLING, TURNING_OVER, Weights
from fracgpu.placement.policies.least_waste.workload_mix import WorkloadMix
from tests.fracgpu.placement.policies.least_waste.demands import EIGHT, HALF, MODELS, PICKY, WHOLE


def worth(
    demands: list[Demand],
    nodes: list[tuple[int, int, int]],
    asked: tuple[int, int, int],
    weights: Weights = FILLING,
) -> float:
    """Return what *asked*, another node, is worth among *nodes* (model, free CPU, idle cards)."""
    scarcity = Scarcity(WorkloadMix.fold(demands).classes(), MODELS, weights)
    model, cpu, idle = (np.array(column) for column in zip(*nodes, strict=True))
    scarcity.refresh(model=model, cpu_milli=cpu, idle_cards=idle)
    model, cpu, idle = (np.array([value]) for value in asked)
    return float(scarcity.worth_milli(model=model, cpu_milli=cpu, idle_cards=idle)[0])


def test_nothing_is_scarce_to_pods_that_can_use_every_idle_card() -> None:
    assert worth([WHOLE], [(0, 96_000, 8), (1, 96_000, 2)], (0, 96_000, 8)) == 0


def test_whole_nodes_are_worth_more_the_fewer_of_them_are_left() -> None:
    broken = (0, 96_000, 7)
    many = worth([EIGHT, WHOLE], [(0, 96_000, 8)] * 3 + [broken], (0, 96_000, 8))
    few = worth([EIGHT, WHOLE], [(0, 96_000, 8)] + [broken] * 3, (0, 96_000, 8))

    assert 0 < many < few


def test_a_broken_node_is_worth_nothing_to_pods_that_need_it_whole() -> None:
    nodes = [(0, 96_000, 8), (0, 96_000, 7)]

    assert worth([EIGHT], nodes, (0, 96_000, 8)) > 0
    assert worth([EIGHT], nodes, (0, 96_000, 7)) == 0


def test_a_model_that_is_asked_by_name_is_worth_more_than_another() -> None:
    nodes = [(0, 96_000, 2), (1, 96_000, 2)]

    assert worth([PICKY], nodes, (0, 96_000, 2)) > 0
    assert worth([PICKY], nodes, (1, 96_000, 2)) == 0


def test_idle_cards_without_the_cpu_are_worth_nothing() -> None:
    nodes = [(0, 96_000, 2), (0, 1000, 2)]

    assert worth([WHOLE], nodes, (0, 96_000, 2)) > 0
    assert worth([WHOLE], nodes, (0, 7999, 2)) == 0
    assert worth([WHOLE], nodes, (0, 8000, 2)) > 0


def test_a_class_that_is_shut_out_pays_a_price_that_has_an_end() -> None:
    one, half = (worth([EIGHT], [(0, 96_000, idle_cards)], (0, 96_000, 8)) for idle_cards in (1, 4))

    assert one == half > 0
    assert np.isfinite(one)


def test_once_pods_leave_a_class_that_is_shut_out_pays_up_to_ten_times_that_for_each_weight() -> (
    None
):
    filling, turning = (
        worth([EIGHT], [(0, 96_000, 1)], (0, 96_000, 8), weights) / weights.scarcity
        for weights in (FILLING, TURNING_OVER)
    )

    assert turning == pytest.approx(10 * filling)


@pytest.mark.parametrize("demands", [[], [HALF]])
def test_without_pods_for_whole_cards_nothing_has_a_price(demands: list[Demand]) -> None:
    assert worth(demands, [(0, 96_000, 8)], (0, 96_000, 8)) == 0


def test_the_price_is_the_square_of_scarcity_for_each_idle_card() -> None:
    # Of 8 idle cards 2 are of the model that is asked for: s is 4, the premium 15.
    nodes = [(0, 96_000, 2), (1, 96_000, 6)]
    cards = PICKY.cards

    assert worth([PICKY], nodes, (0, 96_000, 2)) == pytest.approx(0.1 * 1000 * 2 * cards * 15)


def test_each_class_pays_from_its_own_cpu_on() -> None:
    small, large = (replace(WHOLE, cpu_milli=cpu_milli) for cpu_milli in (1000, 8000))
    # Of 8 idle cards 4 have the CPU for a large pod, whose premium is 3; half of the pods are.
    nodes = [(0, 96_000, 4), (0, 2000, 4)]

    assert worth([small, large], nodes, (0, 7999, 4)) == 0
    assert worth([small, large], nodes, (0, 8000, 4)) == pytest.approx(0.1 * 1000 * 4 * 0.5 * 3)
