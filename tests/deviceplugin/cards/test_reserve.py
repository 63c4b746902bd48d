"""The driver's part of a card: reported, part of another number, or learnt."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cards.nvml.figures import memory_from_nvml
from deviceplugin.cards.reserve import LearntReserve, Memory

MIB = 1024 * 1024
TOTAL = 16_000 * MIB


def version_1(used_mib: int) -> Memory:
    return Memory(total=TOTAL, used=used_mib * MIB, free=TOTAL - used_mib * MIB)


@pytest.mark.parametrize("used", [100, 100 + 500])
def test_used_is_without_the_drivers_part_whichever_way_version_2_gives_it(used: int) -> None:
    memory = SimpleNamespace(total=16_000, reserved=500, free=15_400, used=used)

    assert memory_from_nvml(memory) == Memory(total=16_000, used=100, free=15_400, reserved=500)


@pytest.mark.parametrize(
    ("readings", "reserved_mib"),
    [
        pytest.param([(400, [])], 400, id="empty"),
        pytest.param([(700, []), (400, []), (900, [])], 400, id="least-of-empty"),
        pytest.param([(2400, [2000])], 400, id="beside-a-process"),
        pytest.param([(2100, [2000]), (400, [])], 400, id="empty-knows-better"),
        pytest.param([(400, []), (2100, [2000])], 400, id="and-stays"),
        pytest.param([(9000, None), (500, None), (3000, None)], 500, id="no-lists"),
        pytest.param([(2400, [None])], None, id="a-process-not-reported"),
        pytest.param([(5000, [])], None, id="too-much-for-a-driver"),
        pytest.param([(400, [900])], None, id="less-than-the-processes-hold"),
    ],
)
def test_the_drivers_part_is_the_least_that_no_process_holds(
    readings: list[tuple[int, list[int | None] | None]], reserved_mib: int | None
) -> None:
    reserve = LearntReserve()
    for used_mib, held in readings:
        in_bytes = None if held is None else [None if mib is None else mib * MIB for mib in held]
        reserve.learn(version_1(used_mib), in_bytes)

    memory = reserve.apart(version_1(1000))

    assert memory.reserved == (None if reserved_mib is None else reserved_mib * MIB)
    assert memory.used == (1000 - (reserved_mib or 0)) * MIB


def test_what_the_driver_once_told_stands_where_it_does_not_tell_it() -> None:
    reserve = LearntReserve()
    reserve.set_reported(500 * MIB)
    reserve.learn(version_1(300), [])

    assert reserve.apart(version_1(800)).reserved == 500 * MIB


@given(
    st.lists(
        st.tuples(
            st.integers(0, TOTAL),
            st.none() | st.lists(st.none() | st.integers(0, TOTAL), max_size=3),
        ),
        max_size=20,
    ),
    st.integers(0, TOTAL),
)
def test_whatever_is_learnt_nothing_in_use_becomes_free(
    readings: list[tuple[int, list[int | None] | None]], used: int
) -> None:
    reserve = LearntReserve()
    for now_used, held in readings:
        reserve.learn(Memory(total=TOTAL, used=now_used, free=TOTAL - now_used), held)
    memory = reserve.apart(Memory(total=TOTAL, used=used, free=TOTAL - used))

    assert memory.used + (memory.reserved or 0) >= used
    assert (memory.reserved or 0) <= TOTAL // 16
