from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.cards.card_class import Vendor
from fracgpu.device_claims.selectors import (
    MOST_BYTES,
    but,
    excluded_cards,
    listed_cards,
    shortlist,
    suitable,
)
from fracgpu.errors import RequestError
from fracgpu.request.need import Isolation, PodNeed
from tests.support.core import a_need

_OURS = 'device.driver == "gpu.fracgpu.io"'
_ATTRIBUTES = 'device.attributes["gpu.fracgpu.io"]'
_MEMORY = 'device.capacity["gpu.fracgpu.io"].memory'


def parts(need: PodNeed) -> list[str]:
    return suitable(need, need.containers[0]).split(" && ")


@given(st.lists(st.text(max_size=40).map(CardUuid), min_size=1, max_size=12))
def test_a_shortlist_is_read_back(cards: list[CardUuid]) -> None:
    assert listed_cards(shortlist(cards)) == tuple(cards)


def test_a_shortlist_asks_for_the_driver_and_for_the_attribute_first() -> None:
    assert shortlist([CardUuid("GPU-a"), CardUuid("GPU-b")]) == (
        f'{_OURS} && "uuid" in {_ATTRIBUTES} && {_ATTRIBUTES}.uuid in ["GPU-a","GPU-b"]'
    )


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        f'{_ATTRIBUTES}.uuid in ["GPU-a"]',
        shortlist([CardUuid("GPU-a")]) + " || true",
        f'{_OURS} && "uuid" in {_ATTRIBUTES} && {_ATTRIBUTES}.uuid in [1]',
    ],
)
def test_another_expression_is_no_shortlist(expression: str) -> None:
    assert listed_cards(expression) == ()


def test_an_open_claim_asks_for_the_vendor_that_the_pod_may_have() -> None:
    need = PodNeed(containers=(a_need(1000),))
    asked = f'"vendor" in {_ATTRIBUTES}'

    assert parts(need) == [_OURS, asked, f'{_ATTRIBUTES}.vendor == "nvidia"']
    amd = PodNeed(containers=(a_need(1000),), vendor=Vendor.AMD)
    assert parts(amd) == [_OURS, asked, f'{_ATTRIBUTES}.vendor == "amd"']


def test_an_open_claim_asks_for_models_as_the_pod_names_them() -> None:
    need = PodNeed(containers=(a_need(1000),), models=("NVIDIA A?0*", "!*pcie"))

    assert parts(need)[-3:] == [
        f'"model" in {_ATTRIBUTES}',
        f'{_ATTRIBUTES}.model.lowerAscii().matches("^(nvidia\\\\-a.0.*)$")',
        f'!{_ATTRIBUTES}.model.lowerAscii().matches("^(.*pcie)$")',
    ]


def test_an_open_claim_of_a_share_asks_for_cards_of_the_class() -> None:
    need = PodNeed(containers=(a_need(501, share=Fraction(1, 2)),))

    assert parts(need)[-2:] == [
        f'{_MEMORY}.compareTo(quantity("1002Mi")) <= 0',
        f'{_MEMORY}.compareTo(quantity("1000Mi")) > 0',
    ]


def test_an_open_claim_asks_for_the_limits_that_the_pod_requires() -> None:
    need = PodNeed(containers=(a_need(1000),), isolation=(Isolation.KERNEL,))

    assert parts(need)[-2:] == [
        f'"isolation" in {_ATTRIBUTES}',
        f'{_ATTRIBUTES}.isolation.contains("kernel")',
    ]


def test_an_open_claim_asks_for_the_class_of_the_catalogue_that_was_granted() -> None:
    need = PodNeed(containers=(a_need(1000),))

    assert suitable(need, need.containers[0], card_class="a100").split(" && ")[-2:] == [
        f'"cardClass" in {_ATTRIBUTES}',
        f'{_ATTRIBUTES}.cardClass == "a100"',
    ]


def test_cards_are_left_out_only_of_our_driver_and_where_there_is_the_attribute() -> None:
    assert but([CardUuid("GPU-b"), CardUuid("GPU-a")]) == (
        f'{_OURS} && "uuid" in {_ATTRIBUTES} && !({_ATTRIBUTES}.uuid in ["GPU-a","GPU-b"])',
    )


@given(st.sets(st.text(max_size=64).map(CardUuid), max_size=400))
def test_cards_that_are_left_out_are_read_back_from_expressions_that_the_api_takes(
    cards: set[CardUuid],
) -> None:
    expressions = but(cards)

    assert all(len(one.encode()) <= MOST_BYTES for one in expressions)
    found = [card for one in expressions for card in excluded_cards(one)]
    assert found == sorted(cards)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        shortlist([CardUuid("a")]),
        but([CardUuid("a")])[0][:-1],
        f"true || {but([CardUuid('a')])[0]}",
    ],
)
def test_another_expression_leaves_no_card_out(expression: str) -> None:
    assert excluded_cards(expression) == ()


def test_models_beyond_what_an_expression_holds_are_refused() -> None:
    need = PodNeed(containers=(a_need(1000),), models=("m" * 90 + "?",) * (MOST_BYTES // 90))

    with pytest.raises(RequestError, match=r"fracgpu\.io/model"):
        suitable(need, need.containers[0])
