"""The JSON of our Node annotations, written and parsed."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards import annotations
from fracgpu.cards.card import DEFAULT_SLOTS, Card, CardUuid, Cordon, CordonEffect, Health
from fracgpu.errors import WireError
from fracgpu.state.allocation import Assignment, Slice, read_assignment, write_assignment
from fracgpu.units import MAX_MIB, Mib
from tests.support.core import a_card, on

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)

uuids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).map(CardUuid)
mibs = st.integers(1, MAX_MIB).map(Mib)


def slices(card: CardUuid) -> st.SearchStrategy[Slice]:
    return st.builds(Slice, card=st.just(card), mib=mibs, cores=st.integers(0, 100))


several_slices = st.lists(uuids, min_size=1, max_size=4, unique=True).flatmap(
    lambda them: st.tuples(*(slices(card) for card in them))
)
assignments = st.dictionaries(st.text(min_size=1, max_size=8), several_slices, min_size=1)
cards = st.lists(
    st.builds(
        Card,
        uuid=uuids,
        index=st.integers(0, 99),
        model=st.text(max_size=20),
        total_mib=st.integers(0, MAX_MIB).map(Mib),
        reserved_mib=st.integers(0, 1000).map(Mib),
        health=st.sampled_from(Health),
        health_reason=st.text(max_size=20),
        numa_node=st.none() | st.integers(0, 7),
        links=st.dictionaries(uuids, st.integers(0, 9), max_size=3),
        slots=st.integers(0, 1024),
    ),
    max_size=5,
    unique_by=lambda card: card.uuid,
)
cordons = st.lists(
    st.builds(
        Cordon,
        card=uuids,
        until=st.datetimes(
            datetime(2000, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
            datetime(2100, 1, 1),  # noqa: DTZ001
            timezones=st.just(UTC),
        ),
        reason=st.text(max_size=20),
        effect=st.sampled_from(CordonEffect),
    ),
    max_size=5,
    unique_by=lambda cordon: cordon.card,
)


@given(assignments)
def test_an_assignment_comes_back_as_it_was_written(assignment: Assignment) -> None:
    assert read_assignment(write_assignment(assignment)) == assignment


@given(cards)
def test_cards_come_back_as_they_were_written_by_index(inventory: list[Card]) -> None:
    in_order = tuple(sorted(inventory, key=lambda card: (card.index, card.uuid)))

    assert annotations.read_cards(annotations.write_cards(inventory)) == in_order


@given(cordons)
def test_cordons_come_back_as_they_were_written_by_card(written: list[Cordon]) -> None:
    in_order = tuple(sorted(written, key=lambda cordon: cordon.card))

    assert annotations.read_cordons(annotations.write_cordons(written)) == in_order


def test_an_assignment_is_compact_sorted_and_leaves_out_what_is_nought() -> None:
    assignment = {
        "train": (Slice(card=CardUuid("GPU-1"), mib=Mib(4096), cores=30),),
        "eval": (Slice(card=CardUuid("GPU-2"), mib=Mib(10)),),
    }

    assert write_assignment(assignment) == (
        '{"eval":[{"card":"GPU-2","mib":10}],"train":[{"card":"GPU-1","cores":30,"mib":4096}]}'
    )


def test_cards_are_written_under_the_agreed_names() -> None:
    card = Card(
        uuid=CardUuid("GPU-1"),
        index=3,
        model="NVIDIA A30",
        total_mib=Mib(24_576),
        reserved_mib=Mib(512),
        health=Health.UNHEALTHY,
        health_reason="Xid 79",
        numa_node=1,
        links={CardUuid("GPU-2"): 2},
        slots=16,
    )

    assert json.loads(annotations.write_cards([card])) == {
        "cards": [
            {
                "uuid": "GPU-1",
                "index": 3,
                "model": "NVIDIA A30",
                "mib": 24_576,
                "reservedMib": 512,
                "health": "unhealthy",
                "reason": "Xid 79",
                "numa": 1,
                "links": {"GPU-2": 2},
                "slots": 16,
            }
        ]
    }


def test_a_card_of_an_agent_that_tells_no_limit_takes_as_many_containers_as_by_default() -> None:
    (card,) = annotations.read_cards(
        '{"cards":[{"uuid":"GPU-1","index":0,"model":"A30","mib":80}]}'
    )

    assert card.slots == DEFAULT_SLOTS == 32


def test_a_cordons_time_is_written_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    cordon = Cordon(card=CardUuid("GPU-1"), until=NOON.astimezone(east), reason="hot")

    written = annotations.write_cordons([cordon])

    assert json.loads(written)["GPU-1"] == {"until": "2026-01-05T12:00:00Z", "reason": "hot"}


@pytest.mark.parametrize("effect", ["", ',"effect":"NoExecute"', ',"effect":""'])
def test_a_cordon_without_an_effect_that_we_know_closes_its_card(effect: str) -> None:
    text = f'{{"GPU-1":{{"until":"2026-01-05T12:00:00Z","reason":"hot"{effect}}}}}'

    (cordon,) = annotations.read_cordons(text)

    assert cordon.effect is CordonEffect.NO_SCHEDULE


def test_a_cordon_that_closes_its_card_is_written_as_versions_without_effects_wrote_it() -> None:
    closed = Cordon(card=CardUuid("GPU-1"), until=NOON, reason="hot")
    avoided = replace(closed, effect=CordonEffect.PREFER_NO_SCHEDULE)

    assert annotations.write_cordons([closed]) == (
        '{"GPU-1":{"reason":"hot","until":"2026-01-05T12:00:00Z"}}'
    )
    assert annotations.write_cordons([avoided]) == (
        '{"GPU-1":{"effect":"PreferNoSchedule","reason":"hot","until":"2026-01-05T12:00:00Z"}}'
    )


def test_nothing_written_means_no_cards_and_no_cordons() -> None:
    assert annotations.read_cards("") == ()


def test_an_inventory_that_did_not_change_is_the_same_object() -> None:
    card = Card(uuid=CardUuid("GPU-a"), index=0, model="NVIDIA A30", total_mib=Mib(24_000))
    text = annotations.write_cards([card])
    other = annotations.write_cards([replace(card, total_mib=Mib(24_080))])

    first = annotations.read_cards(text)

    assert annotations.read_cards(other) != first
    assert annotations.read_cards(text) is first
    assert annotations.read_cordons("") == ()


def an_inventory(**changed: Any) -> str:
    card = {"uuid": "GPU-1", "index": 0, "model": "A30", "mib": 24_000, **changed}
    return json.dumps({"cards": [card]})


MANY = json.dumps({"cards": json.loads(an_inventory())["cards"] * 65})
TWICE = json.dumps({"cards": json.loads(an_inventory())["cards"] * 2})


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (read_assignment, "", "truncated"),
        (read_assignment, "{}", "no container"),
        (read_assignment, "[]", "Expected `object`"),
        (read_assignment, '{"a":[]}', "no slice"),
        (read_assignment, '{"a":[{"card":"x"}]}', "missing required field `mib`"),
        (read_assignment, '{"a":[{"card":"x","mib":0}]}', "0 MiB"),
        (read_assignment, '{"a":[{"card":"x","mib":-5}]}', "-5 MiB"),
        (read_assignment, '{"a":[{"card":"x","mib":1.5}]}', "Expected `int`"),
        (read_assignment, '{"a":[{"card":"x","mib":"5"}]}', "Expected `int`"),
        (read_assignment, '{"a":[{"card":"x","mib":99999999}]}', "99999999 MiB"),
        (read_assignment, '{"a":[{"card":"x","mib":1,"cores":101}]}', "101% of a card"),
        (read_assignment, '{"a":[{"card":"x","mib":1,"cores":-1}]}', "-1% of a card"),
        (read_assignment, '{"a":[{"card":"x","mib":1},{"card":"x","mib":1}]}', "one card twice"),
        (read_assignment, '{"a":' * 50_000, "characters; want"),
        (read_assignment, '{"a":' * 5_000, "Expected `array`"),
        (annotations.read_cards, "null", "Expected `object`"),
        (annotations.read_cards, '{"cards":[{}]}', "missing required field"),
        (annotations.read_cards, an_inventory(health="poorly"), "want healthy or unhealthy"),
        (annotations.read_cards, an_inventory(mib=-1), "-1 MiB"),
        (annotations.read_cards, an_inventory(mib=MAX_MIB + 1), "MiB"),
        (annotations.read_cards, an_inventory(reservedMib=-1), "reservedMib"),
        (annotations.read_cards, an_inventory(index=-1), "index"),
        (annotations.read_cards, an_inventory(uuid=7), "Expected `str`"),
        (annotations.read_cards, an_inventory(slots=-1), "slots"),
        (annotations.read_cards, an_inventory(slots=2**31), "slots"),
        (annotations.read_cards, an_inventory(limitsMib=2**63), "limitsMib"),
        (annotations.read_cards, an_inventory(links={"GPU-2": 2**63}), "links"),
        (annotations.read_cards, TWICE, "twice"),
        (annotations.read_cards, MANY, "length <= 64"),
        (annotations.read_cards, '{"cards":[],"more":' + "[" * 100_000, "recursion"),
        (annotations.read_cordons, '{"GPU-1":{"until":"soon"}}', "RFC3339"),
        (annotations.read_cordons, '{"GPU-1":{"until":"2026-01-05T12:00:00"}}', "no time zone"),
        (
            annotations.read_cordons,
            '{"GPU-1":{"until":"0001-01-01T00:00:00+23:00"}}',
            "out of range",
        ),
        (annotations.read_cordons, '{"GPU-1":{}}', "missing required field `until`"),
        (annotations.read_cordons, '{"GPU-1":3}', "Expected `object`"),
        (annotations.read_load_time, "2026-01-05T12:00:00", "load-time"),
        (annotations.read_load_time, "noon", "load-time"),
        (annotations.read_load_time, "9", "load-time"),
        (annotations.read_load_time, "0001-01-01T00:00:00+23:59", "load-time"),
        (annotations.read_load_time, "0001-01-01T00:00:00Z", "no time of an agent"),
        (annotations.read_load_time, "9999-12-31T23:59:59Z", "no time of an agent"),
    ],
)
def test_what_none_of_us_wrote_is_refused(
    read: Callable[[str], object], text: str, reason: str
) -> None:
    with pytest.raises(WireError, match=reason):
        read(text)


def test_a_field_that_we_do_not_know_is_skipped_in_every_annotation() -> None:
    assert read_assignment('{"a":[{"card":"x","mib":1,"more":1}]}') == on("x", 1, container="a")
    (cordon,) = annotations.read_cordons('{"x":{"until":"2026-01-05T12:00:00Z","by":"me"}}')
    assert cordon == Cordon(card=CardUuid("x"), until=NOON, reason="")
    assert annotations.read_cards(an_inventory(watts=300)) == (a_card("GPU-1", model="A30"),)


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_a_time_comes_back_in_whole_seconds(at: datetime) -> None:
    assert annotations.read_load_time(annotations.write_time(at)) == at.replace(microsecond=0)


READERS: tuple[Callable[[str], object], ...] = (
    read_assignment,
    annotations.read_cards,
    annotations.read_cordons,
    annotations.read_heat,
    annotations.read_foreign,
    annotations.read_load_time,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
our_keys = st.sampled_from(
    ["cards", "uuid", "index", "model", "mib", "health", "until", "card", "cores", "links"]
)
our_json = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.just("2026-01-05T12:00:00Z"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(our_keys, inner, max_size=5),
)


@pytest.mark.parametrize("read", READERS)
@given(text=st.text() | json_values.map(json.dumps) | our_json.map(json.dumps))
def test_any_text_is_read_or_refused_and_never_anything_else(
    read: Callable[[str], object], text: str
) -> None:
    with contextlib.suppress(WireError):
        read(text)
