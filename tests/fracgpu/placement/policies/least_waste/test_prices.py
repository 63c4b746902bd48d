"""Cards that only some pods can use have a price, also for pods that have not been observed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fracgpu.placement.policies.least_waste.mix import Demand, PodClass
from fracgpu.placement.policies.least_waste.prices import Prices
from fracgpu.placement.policies.least_waste.turnover import FILLING, TURNING_OVER, Weights
from tests.fracgpu.placement.policies.least_waste.demands import (
    EIGHT,
    HALF,
    MODELS,
    WHOLE_CARD,
    SomeNodes,
    folded,
    some_nodes,
)

IDLE_NODE, BROKEN, FULL = [1000] * 8, [*[1000] * 7, 500], [0] * 8
# Pods with so many cards are in the mix, so that no prior of cards counts.
OBSERVED = PodClass(demand=EIGHT, frequency_ratio=0.01)


def priced(
    classes: Sequence[PodClass],
    nodes: SomeNodes,
    *,
    models: Sequence[str] = MODELS,
    weights: Weights = FILLING,
) -> Prices:
    prices = Prices(classes, models, weights)
    prices.refresh(nodes)
    return prices


def worth(prices: Prices, idle: int, *, model: int = 0, cores: int = 96) -> float:
    steps = np.searchsorted(prices.cpu_steps, cores * 1000, "right")
    return float(prices.worth[model, steps, idle])


def test_nothing_is_scarce_to_pods_that_can_use_every_idle_card() -> None:
    assert worth(priced([OBSERVED], some_nodes(IDLE_NODE, IDLE_NODE)), 8) == 0


def test_whole_nodes_are_worth_more_the_fewer_of_them_are_left() -> None:
    classes = folded([EIGHT, WHOLE_CARD])
    many = priced(classes, some_nodes(*[IDLE_NODE] * 3, BROKEN))
    few = priced(classes, some_nodes(IDLE_NODE, *[BROKEN] * 3))

    assert 0 < worth(many, 8) < worth(few, 8)
    assert worth(few, 7) == 0
    assert worth(few, 8, cores=63) == 0


def test_the_worth_is_that_of_the_formula() -> None:
    # Of 15 idle cards pods of eight can use 8; each of both counts one more.
    found = priced(folded([EIGHT]), some_nodes(IDLE_NODE, BROKEN))
    assert worth(found, 8) == pytest.approx(8 * 0.1 * 1000 * ((16 / 9) ** 2 - 1))


@pytest.mark.parametrize(
    ("weights", "named", "limit"),
    [(FILLING, 0.0, 300), (FILLING, 0.06, 192), (FILLING, 0.15, 30), (TURNING_OVER, 0.15, 300)],
)
def test_the_worth_is_limited_and_more_so_as_pods_name_models(
    weights: Weights, named: float, limit: float
) -> None:
    naming = replace(EIGHT, models=frozenset({MODELS[0]}))
    classes = [
        PodClass(demand=EIGHT, frequency_ratio=1.0 - named),
        PodClass(demand=naming, frequency_ratio=named),
    ]
    found = priced(classes, some_nodes(*[BROKEN] * 100), weights=weights)
    assert worth(found, 8) == pytest.approx(8 * weights.scarcity * 1000 * limit)


def test_pods_of_many_cards_that_never_came_set_a_price_that_fades_as_the_cluster_fills() -> None:
    empty = priced(folded([HALF]), some_nodes(IDLE_NODE, *[BROKEN] * 9))
    fuller = priced(folded([HALF]), some_nodes(IDLE_NODE, *[BROKEN] * 9, *[FULL] * 10))
    observed = priced(folded([HALF] * 299 + [EIGHT]), some_nodes(IDLE_NODE, *[BROKEN] * 9))
    eight = 8 * 100 * (0.06 * 8 / 0.5) * ((72 / 9) ** 2 - 1)

    idle_part = (80 - 4.5) / 80
    assert worth(empty, 8) > worth(empty, 7) >= 0
    assert worth(fuller, 8) == pytest.approx(worth(empty, 8) / 8, rel=1e-9)
    assert worth(empty, 8) == pytest.approx(
        8 * 100 * (0.06 * 8 / 0.5) * idle_part**3 * ((72 / 9) ** 2 - 1), rel=1e-9
    )
    # Once they are observed, however seldom, the mix speaks for itself.
    assert worth(observed, 8) < eight / 8
    assert worth(observed, 8) == pytest.approx(
        8 * 100 * (8 / 157.5) * ((72 / 9) ** 2 - 1), rel=1e-9
    )


def a_class(ratio: float, *models: str, share: int = 500) -> PodClass:
    demand = Demand(cards=1, share_milli=share, models=frozenset(models) or None)
    return PodClass(demand=demand, frequency_ratio=ratio)


def by_model(classes: Sequence[PodClass], *idle: int) -> list[float]:
    """Return the prices of models with 82, 9, and 9 cards of which some are idle."""
    nodes = SomeNodes()
    for model, (cards, left) in enumerate(zip((82, 9, 9), idle, strict=True)):
        for at in range(cards):
            nodes.put(len(nodes.rows), 1000 if at < left else 0, model=model)
    found: list[float] = priced(
        classes, nodes, models=("common", "rare", "other")
    ).by_model.tolist()
    return found


def test_where_pods_name_no_model_each_is_kept_a_little_for_those_that_will() -> None:
    prices = by_model([a_class(1.0)], 82, 9, 9)
    prior = 0.025 / 0.5

    # Of a small model no more than this part: its cards would outlast the CPU beside them.
    assert prior > 0.55 * 0.09
    assert prices == pytest.approx([(prior / 0.82) ** (1.5 + 1.9), *[0.55 ** (1.5 + 1.9)] * 2])


def test_a_fleet_of_one_model_has_no_price() -> None:
    nodes = some_nodes([1000] * 8)

    assert priced([a_class(1.0)], nodes).by_model.tolist() == [0, 0]


def test_a_model_that_some_name_has_a_price_and_the_prior_goes_as_more_name_any() -> None:
    # 20 % of the demand can only go on 9 % of the cards; 40 % of what is idle is on those.
    prices = by_model([a_class(0.8), a_class(0.2, "rare")], 9, 8, 3)

    assert prices == pytest.approx([0, (0.2 / 0.4) ** 1.5, 0])


def test_the_price_rises_as_the_model_is_used_up_and_never_beyond_the_card_itself() -> None:
    classes = [a_class(0.8), a_class(0.2, "rare")]
    each = [by_model(classes, 40, left, 9)[1] for left in (9, 5, 2, 0)]

    assert each == sorted(each)
    assert each[-1] == 1


def test_of_a_model_that_cannot_run_out_little_is_made_even_when_few_are_idle() -> None:
    # 15 % of the demand can only go on 82 % of the cards, or on a third of what is idle.
    prices = by_model([a_class(0.85), a_class(0.15, "common")], 9, 9, 9)

    assert prices == pytest.approx([(0.15 * 3) ** 1.5 * (0.15 / 0.82) ** 1.9, 0, 0])


def test_what_only_names_a_subset_counts_towards_the_larger_set() -> None:
    classes = [a_class(0.7), a_class(0.1, "rare"), a_class(0.2, "rare", "other")]
    prices = by_model(classes, 80, 9, 9)

    assert prices[1] == prices[2] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("cores", "part"), [([9, 9], 0.0), ([9, 10], 0.0), ([9, 10, 10, 10], 0.5), ([10, 96], 1.0)]
)
def test_what_is_idle_counts_more_where_cpu_is_ample_and_less_as_pods_name_models(
    cores: list[int], part: float
) -> None:
    nodes = some_nodes([0], cores=500)  # what is free beside no idle card is of no use
    for row, free in enumerate(cores, start=1):
        nodes.put(row, 1000, cpu_milli=1000 * free)
    demand = Demand(cpu_milli=8000, cards=1, share_milli=1000)
    anywhere = PodClass(demand=demand, frequency_ratio=1.0)
    naming = PodClass(demand=replace(demand, models=frozenset({MODELS[0]})), frequency_ratio=0.06)
    most = replace(anywhere, frequency_ratio=0.94)

    assert priced([anywhere], nodes).idle == pytest.approx(FILLING.idle + part * FILLING.ample)
    named = priced([most, naming], nodes).idle
    assert named == pytest.approx(FILLING.idle + part * FILLING.ample * 0.6)
