from datetime import UTC, datetime, timedelta
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fracgpu.request.grant import Grant
from fracgpu.request.grant_note import (
    AddedRequirement,
    GrantedAmounts,
    Seal,
    describe_grant,
    read_grant_note,
    words_of,
)
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.units import Mib
from tests.webhook.builders import A30S, H100S

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SEAL = Seal(key=b"secret", scope="ml", now=NOON)


def a_grant(mib: int = 40960) -> Grant:
    need = ContainerNeed(name="train", mib=Mib(mib), cores=30, share=Fraction(1, 2))
    return Grant(need=PodNeed(containers=(need,)), card_class=H100S)


ORIGIN = "train from hami: nvidia.com/gpumem-percentage=50"
GRANTED = describe_grant(a_grant(), dialect="hami", origin=ORIGIN)


def test_a_grant_carries_data_beside_the_prose() -> None:
    requires = (AddedRequirement(key="fracgpu.io/share", operator="In", values=("true",)),)
    removed: dict[str, tuple[str, ...]] = {"train": ("nvidia.com/gpumem",)}
    changed = describe_grant(
        a_grant(),
        dialect="hami",
        origin=ORIGIN,
        requires=requires,
        schedulers=("hami-scheduler", "fracgpu-scheduler"),
        removed=removed,
    )

    words, data = SEAL.write(changed).split("\n")

    assert words == (
        "train: 40960 MiB on 1 card (0.5 of a card that shares 81920 MiB), 30% of the compute; "
        "in other words: train from hami: nvidia.com/gpumem-percentage=50"
    )
    plain = msgspec.json.decode(data)
    assert len(plain.pop("seal")) == 32
    assert plain == {
        "at": "2026-01-05T12:00:00Z",
        "classMib": 81920,
        "containers": {"train": {"cards": 1, "cores": 30, "mib": 40960}},
        "dialect": "hami",
        "removed": {"train": ["nvidia.com/gpumem"]},
        "requires": [{"key": "fracgpu.io/share", "operator": "In", "values": ["true"]}],
        "schedulers": ["hami-scheduler", "fracgpu-scheduler"],
    }


def test_what_was_written_is_read_again_and_known_by_its_seal() -> None:
    text = SEAL.write(GRANTED)
    found = read_grant_note(text)

    assert found is not None
    assert found.repeats(GRANTED)
    assert SEAL.holds(found)
    assert words_of(text) == found.words == GRANTED.words


@pytest.mark.parametrize(
    "other",
    [
        structs.replace(SEAL, key=b"guess"),
        structs.replace(SEAL, scope="other"),
        structs.replace(SEAL, now=NOON + timedelta(seconds=61)),
        structs.replace(SEAL, now=NOON - timedelta(seconds=6)),
    ],
    ids=["another key", "another namespace", "too late", "before its time"],
)
def test_a_seal_holds_for_its_key_its_namespace_and_one_request(other: Seal) -> None:
    found = read_grant_note(SEAL.write(GRANTED))

    assert found is not None
    assert not other.holds(found)


def test_no_part_of_a_sealed_grant_can_be_changed() -> None:
    found = read_grant_note(SEAL.write(GRANTED))
    assert found is not None
    data = found.data
    amounts = {"train": GrantedAmounts(cards=1, mib=81920)}

    for spoilt in (
        structs.replace(found, words="more"),
        structs.replace(found, data=msgspec.structs.replace(data, class_mib=24000)),
        structs.replace(found, data=msgspec.structs.replace(data, containers=amounts)),
        structs.replace(found, data=msgspec.structs.replace(data, seal="")),
        structs.replace(found, data=msgspec.structs.replace(data, at="2026-01-05T12:00:01Z")),
        structs.replace(found, data=msgspec.structs.replace(data, at="soon")),
        structs.replace(found, data=msgspec.structs.replace(data, at="2026-01-05T12:00:00")),
    ):
        assert not SEAL.holds(spoilt)


def test_grants_are_compared_by_what_they_grant() -> None:
    assert not describe_grant(a_grant(1)).repeats(GRANTED)
    assert not describe_grant(structs.replace(a_grant(), card_class=A30S)).repeats(GRANTED)
    assert describe_grant(a_grant()).repeats(GRANTED), "in other words, but the same"


@given(st.text() | st.text().map(lambda text: f"words\n{text}"))
def test_no_text_brings_the_reader_down(text: str) -> None:
    found = read_grant_note(text)

    assert found is None or not SEAL.holds(found)


@pytest.mark.parametrize("text", ["everything", "train: 1 MiB on 1 card", "a\n{}", "a\n[]", "\n"])
def test_words_alone_are_no_grant(text: str) -> None:
    assert read_grant_note(text) is None
