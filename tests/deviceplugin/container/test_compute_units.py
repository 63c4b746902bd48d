"""Which compute units containers get that share a card."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cards.interface import CardHardware
from deviceplugin.container.compute_units import (
    choose_units,
    mask,
    read_units,
    units_of,
    write_units,
)
from fracgpu.cards.card import CardUuid
from tests.deviceplugin.builders import a_card

X = CardUuid("AMD-x")


@given(total=st.integers(2, 400), cores=st.lists(st.integers(1, 99), min_size=1, max_size=12))
def test_every_container_gets_its_part_in_pairs_and_the_least_used_units(
    total: int, cores: list[int]
) -> None:
    given_out: list[frozenset[int]] = []
    for each in cores:
        units = choose_units(total=total, cores=each, taken=given_out)
        used = Counter(unit for other in given_out for unit in other)
        others = set(range(total - total % 2)) - units
        assert 100 * len(units) >= each * total or len(units) >= total - total % 2
        assert len(units) <= max(2, each * total / 100 + 2)
        assert all(unit < total and unit ^ 1 in units for unit in units)
        assert all(used[mine] <= used[other] for mine in units for other in others)
        given_out.append(units)


@given(
    st.dictionaries(
        st.from_regex(r"AMD-[0-9a-f]{1,16}", fullmatch=True).map(CardUuid),
        st.frozensets(st.integers(0, 500), min_size=1),
        max_size=4,
    )
)
def test_what_was_written_is_read_back(units: dict[CardUuid, frozenset[int]]) -> None:
    assert read_units(write_units(units)) == units


@given(st.text(max_size=60))
def test_any_text_of_a_container_can_be_read(text: str) -> None:
    read_units(text)
    assert read_units("AMD-x=0-9999999") == read_units("AMD-x=9-1") == read_units("0-7") == {}


def hardware(uuid: CardUuid = X, *, index: int = 0, units: int = 64) -> CardHardware:
    return CardHardware(card=a_card(uuid, index=index), compute_units=units)


def test_a_card_that_cannot_be_masked_and_one_of_which_no_part_is_asked_have_no_mask() -> None:
    other = CardUuid("AMD-y")
    cards = (hardware(), hardware(other, index=1))

    assert units_of((hardware(units=0),), {X: 50}, taken=(), holder="a") == {}
    found = units_of(cards, {X: 0, other: 50}, taken=(), holder="a")
    assert found == {other: frozenset(range(32))}
    assert mask(cards, found) == "1:0-31"


def test_where_the_others_are_not_known_containers_begin_apart_by_chance() -> None:
    begins = {
        min(units_of((hardware(),), {X: 3}, taken=None, holder=f"uid/{number}")[X])
        for number in range(50)
    }

    assert len(begins) > 10


def test_units_apart_from_each_other_are_written_as_ranges() -> None:
    taken = ({X: frozenset({*range(4), *range(8, 12)})},)

    found = units_of((hardware(units=16),), {X: 50}, taken=taken, holder="a")

    assert mask((hardware(units=16),), found) == "0:4-7,12-15"
