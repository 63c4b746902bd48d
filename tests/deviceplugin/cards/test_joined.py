"""The cards of a node with two vendors' cards, and which vendors a node has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.cards.interface import (
    CardLimits,
    CardLimitsError,
    CardList,
    CardSample,
    CardsUnavailableError,
    GroupLimits,
    SkippedCard,
)
from deviceplugin.cards.joined import JoinedCards, VendorReader, has_pci_card, joined
from fracgpu.cards.card import CardUuid, Health
from fracgpu.units import Mib
from tests.deviceplugin.builders import FakeCards, a_card, a_card_list
from tests.fakes.amdgpu_tree import AmdgpuTree

A, B, X = CardUuid("GPU-a"), CardUuid("GPU-b"), CardUuid("AMD-x")


class LimitedCards(FakeCards):
    """Cards whose driver has limits for each of them."""

    @property
    def limits(self) -> CardLimits:
        return _AllLimits()


class _AllLimits(CardLimits):
    def set(self, card: CardUuid, group: str, limits: GroupLimits) -> None:
        raise NotImplementedError

    def read(self, card: CardUuid, group: str) -> GroupLimits:
        return GroupLimits(guaranteed_mib=Mib(7), limit_mib=None)


class BothCards:
    """Two readers, and which of them have cards on this node."""

    def __init__(self) -> None:
        self.nvidia = LimitedCards(a_card("GPU-a"), a_card("GPU-b", index=1))
        self.amd = FakeCards(a_card("AMD-x", index=0))
        self.there = {"nvidia", "amd"}
        by_nvidia = VendorReader(cards=self.nvidia, present=self._is_there("nvidia"), name="N")
        by_amd = VendorReader(cards=self.amd, present=self._is_there("amd"), name="A")
        self.cards = JoinedCards((by_nvidia, by_amd), fallback=by_nvidia)

    def _is_there(self, name: str) -> Callable[[], bool]:
        return lambda: name in self.there


def uuids(listed: CardList) -> list[str]:
    return [hardware.card.uuid for hardware in listed.cards]


async def test_a_node_has_the_cards_of_each_vendor_that_is_there() -> None:
    both = BothCards()

    found = await both.cards.list_cards()
    both.there = {"amd"}
    only_amd = await both.cards.list_cards()
    both.there = set()
    none = await both.cards.list_cards()

    assert uuids(found) == [A, B, X]
    assert [hardware.card.index for hardware in found.cards] == [0, 1, 2]
    assert uuids(only_amd) == [X]
    # NVIDIA's reader says what is missing.
    assert uuids(none) == [A, B]


def unhealthy(listed: CardList) -> dict[str, str]:
    return {
        hardware.card.uuid: hardware.card.health_reason
        for hardware in listed.cards
        if hardware.card.health is not Health.HEALTHY
    }


async def until_lost(both: BothCards) -> CardList:
    """List the cards until the failures of one reader no longer end the listing."""
    for _ in range(2):
        with pytest.raises(CardsUnavailableError, match="driver lost"):
            await both.cards.list_cards()
    return await both.cards.list_cards()


@pytest.mark.parametrize(("failing", "its"), [("nvidia", {A, B}), ("amd", {X})])
async def test_cards_that_cannot_be_listed_any_more_are_unhealthy_beside_the_others(
    failing: str, its: set[str]
) -> None:
    both = BothCards()
    await both.cards.list_cards()
    reader = getattr(both, failing)
    before, reader.answer = reader.answer, CardsUnavailableError("driver lost")

    part = await until_lost(both)
    reader.answer = before
    again = await both.cards.list_cards()

    assert uuids(part) == [A, B, X]
    assert unhealthy(part) == dict.fromkeys(its, "driver lost")
    assert not unhealthy(again)


@pytest.mark.parametrize(("failing", "name", "left"), [("nvidia", "N", [X]), ("amd", "A", [A, B])])
async def test_cards_that_were_never_listed_are_left_out_with_a_reason(
    failing: str, name: str, left: list[str]
) -> None:
    both = BothCards()
    getattr(both, failing).answer = CardsUnavailableError("driver lost")

    part = await until_lost(both)

    assert uuids(part) == left
    assert part.left_out == (SkippedCard(uuid=f"every card of {name}", reason="driver lost"),)


async def test_where_no_vendors_cards_can_be_listed_the_listing_fails() -> None:
    both = BothCards()
    both.nvidia.answer = both.amd.answer = CardsUnavailableError("driver lost")

    for _ in range(5):
        with pytest.raises(CardsUnavailableError, match="driver lost"):
            await both.cards.list_cards()


async def test_that_it_is_unknown_which_cards_there_are_is_no_empty_node() -> None:
    def unreadable() -> bool:
        raise OSError(5, "Input/output error")

    vendor = VendorReader(cards=FakeCards(a_card()), present=unreadable, name="N")

    with pytest.raises(CardsUnavailableError, match="Input/output error"):
        await JoinedCards((vendor,), fallback=vendor).list_cards()


async def test_readings_are_those_of_both_and_an_error_is_of_its_own_cards() -> None:
    both = BothCards()
    await both.cards.list_cards()
    both.nvidia.readings = {A: CardSample(), B: CardSample()}
    both.amd.readings = {X: CardSample()}
    all_read = await both.cards.read()
    both.nvidia.readings = CardsUnavailableError("driver lost")
    part = await both.cards.read()
    both.amd.readings = CardsUnavailableError("gone too")

    assert set(all_read.samples) == {A, B, X}
    assert (set(part.samples), dict(part.errors)) == (
        {X},
        {A: "driver lost", B: "driver lost"},
    )
    with pytest.raises(CardsUnavailableError, match="driver lost"):
        await both.cards.read()


async def test_only_the_reader_that_has_a_card_is_asked_for_its_limits() -> None:
    both = BothCards()
    await both.cards.list_cards()
    limits = both.cards.limits
    assert limits is not None

    assert limits.read(A, "/a").guaranteed_mib == 7
    with pytest.raises(CardLimitsError, match="does not limit cgroups on this card"):
        limits.read(X, "/a")


async def test_all_readers_are_closed() -> None:
    both = BothCards()

    await both.cards.close()

    assert (both.nvidia.closed, both.amd.closed) == (True, True)


def test_what_differs_between_vendors_is_said_of_none() -> None:
    one = a_card_list(a_card("GPU-a"), driver="580", family="hopper")
    other = a_card_list(a_card("AMD-x"), driver="6.12", family="gfx942")

    assert (joined([one, other]).driver, joined([one, other]).family) == ("", "")
    assert [each.driver for each in joined([one, other]).cards] == ["580", "6.12"]
    assert (joined([one]).driver, joined([one]).family) == ("580", "hopper")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("0x030000", True), ("0x030200", True), ("0x040300", False), ("no number", False)],
)
def test_a_display_controller_of_the_vendor_is_a_card(
    tmp_path: Path, kind: str, expected: Any
) -> None:
    tree = AmdgpuTree(tmp_path)
    tree.nvidia(kind=kind)

    assert has_pci_card(tree.sys, vendor=0x10DE) is expected
    assert not has_pci_card(tree.sys, vendor=0x8086)
    assert not has_pci_card(tmp_path / "nothing", vendor=0x10DE)
