"""The cards in 80 and 160 columns, and for scripts."""

# ruff: noqa: E501 - a terminal of 160 columns is wider than our lines

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.fleet import CardRow, Fleet, NodeRow, fleet_of
from cli.printers.cells import columns_of
from cli.printers.fleet_lines import fleet_lines, fleet_screen
from cli.printers.text import Tone
from fracgpu.explain.answers import Holder
from fracgpu.units import Mib
from tests.support.core import a_card
from tests.support.explaining import Cluster

GPU_1 = NodeRow(
    name="gpu-node-1.eu.example",
    cards=(
        CardRow(
            uuid="GPU-4f1d", index=0, model="NVIDIA A100-SXM4-80GB", capacity_mib=81_000,
            held_mib=60_500, free_mib=20_500, foreign_mib=0, held_cores=130, held_slots=3, slots=32,
            heat=0.93, health="healthy",
            slices=(
                Holder(pod="ml/train-7c9f8d5b4-abcde", mib=Mib(40_500), cores=50, terminating=False),
                Holder(pod="ml/eval-0", mib=Mib(10_000), cores=0, terminating=True),
                Holder(pod="chat/frontend-6d5f7c-x2x2x", mib=Mib(10_000), cores=80, terminating=False),
            ),
        ),
        CardRow(
            uuid="GPU-88aa", index=1, model="NVIDIA A100-SXM4-80GB", capacity_mib=81_000,
            held_mib=0, free_mib=80_500, foreign_mib=500, held_cores=0, held_slots=0, slots=32,
            heat=None, health="unhealthy", trouble="unhealthy: XID 79 on this card, fallen off",
        ),
    ),
)  # fmt: skip
FLEET = Fleet(nodes=(GPU_1, NodeRow(name="gpu-2", trouble="has not reported its cards")))


def screen(width: int, *, wide: bool = False, fleet: Fleet = FLEET) -> list[str]:
    return [line.text for line in fleet_screen(fleet, width=width, wide=wide)]


GOLDEN_80 = """\
NODE                   CARD  MODEL           HELD/MIB     CORES  BUSY  STATE
gpu-node-1.eu.example  0     A100-SXM4-80GB  60500/81000  130%   93%   ok
      ml/train-7c9f8d5b4-abcde 40500, ml/eval-0 10000 +1
gpu-node-1.eu.example  1     A100-SXM4-80GB  0/81000      0%     -     unhealthy
      unhealthy: XID 79 on this card, fallen off
      500 MiB used by other processes
gpu-2                  -     -               -            -      -     no cards
      has not reported its cards
2 cards, 60500 of 162000 MiB held (37%)
"""


GOLDEN_160 = """\
NODE                   CARD  MODEL           HELD/MIB     CORES  BUSY  STATE      PODS
gpu-node-1.eu.example  0     A100-SXM4-80GB  60500/81000  130%   93%   ok         ml/train-7c9f8d5b4-abcde 40500, ml/eval-0 10000 +1
gpu-node-1.eu.example  1     A100-SXM4-80GB  0/81000      0%     -     unhealthy
      unhealthy: XID 79 on this card, fallen off
      500 MiB used by other processes
gpu-2                  -     -               -            -      -     no cards
      has not reported its cards
2 cards, 60500 of 162000 MiB held (37%)
"""

GOLDEN_80_WIDE = """\
NODE                   CARD  MODEL           HELD/MIB     CORES  BUSY  STATE
gpu-node-1.eu.example  0     A100-SXM4-80GB  60500/81000  130%   93%   ok
      GPU-4f1d, 20500 MiB free, 3/32 slots
      ml/train-7c9f8d5b4-abcde 40500 MiB, 50% of the compute
      ml/eval-0 10000 MiB, terminating
      chat/frontend-6d5f7c-x2x2x 10000 MiB, 80% of the compute
gpu-node-1.eu.example  1     A100-SXM4-80GB  0/81000      0%     -     unhealthy
      unhealthy: XID 79 on this card, fallen off
      500 MiB used by other processes
      GPU-88aa, 80500 MiB free, 0/32 slots
gpu-2                  -     -               -            -      -     no cards
      has not reported its cards
2 cards, 60500 of 162000 MiB held (37%)
"""


@pytest.mark.parametrize(("width", "wanted"), [(80, GOLDEN_80), (160, GOLDEN_160)])
def test_the_cards_read_well_in_80_and_160_columns(width: int, wanted: str) -> None:
    assert screen(width) == wanted.splitlines()


def test_every_pod_has_a_line_where_that_was_asked_for() -> None:
    assert screen(80, wide=True) == GOLDEN_80_WIDE.splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@given(text=st.text(max_size=120))
def test_no_name_breaks_the_terminal(width: int, text: str) -> None:
    odd = Holder(pod=f"ml/{text}", mib=Mib(1), cores=0, terminating=False)
    card = replace(GPU_1.cards[0], model=text, trouble=text, slices=(odd, odd))
    fleet = Fleet(nodes=(NodeRow(name=text or "n", cards=(card,)),))

    for wide in (False, True):
        for line in screen(width, wide=wide, fleet=fleet):
            assert columns_of(line) <= width
            assert line.isprintable() or "\x1b" not in line
            assert not any(char < " " or "\x7f" <= char < "\xa0" for char in line)


@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        ("", "ok"),
        ("unhealthy", "unhealthy"),
        ("cordoned until 12:01:00 UTC: hot", "cordoned"),
        ("avoided until 12:01:00 UTC: warm", "avoided"),
        ("all its slots are taken: 32 of 32", "closed"),
    ],
)
def test_the_state_is_one_word_and_its_text_is_below(trouble: str, word: str) -> None:
    card = replace(GPU_1.cards[1], trouble=trouble, foreign_mib=0)

    _, row, *below, _ = screen(80, fleet=Fleet(nodes=(NodeRow(name="n", cards=(card,)),)))

    assert row.split()[-1] == word
    assert below == ([f"      {trouble}"] if trouble else [])


def test_wide_characters_keep_the_columns_in_line() -> None:
    card = replace(GPU_1.cards[1], model="显卡显卡显卡", trouble="")
    plain = replace(GPU_1.cards[1], trouble="")
    fleet = Fleet(nodes=(NodeRow(name="n", cards=(card, plain)),))

    first, second = (line for line in screen(80, fleet=fleet) if "0/81000" in line)

    assert columns_of(first.partition("0/81000")[0]) == columns_of(second.partition("0/81000")[0])


def test_the_table_of_cards_has_one_row_for_each_and_stays_in_columns() -> None:
    cluster = Cluster().node("gpu-1", a_card("GPU-a"), a_card("GPU-b", index=1))
    cluster.node("bare").holder("chat", "gpu-1", "GPU-b", 9_000, cores=25)
    state = cluster.state()

    head, first, second, bare = fleet_lines(fleet_of(state.snapshot, state.pods))

    assert first.text.split() == [
        "gpu-1", "0", "NVIDIA", "A30", "0/24000", "0%", "-", "ok", "-"
    ]  # fmt: skip
    assert second.text.split()[-1] == "default/chat=9000"
    assert "has not reported its cards" in bare.text
    assert {line.text.index("ok") for line in (first, second)} == {head.text.index("STATE")}


def test_a_card_in_trouble_stands_out() -> None:
    state = Cluster().node("gpu-1", a_card("GPU-a"), cordons={"GPU-a": 60}).state()

    _, line = fleet_lines(fleet_of(state.snapshot, state.pods))

    assert "cordoned until 12:01:00 UTC: hot" in line.text
    assert line.tone is Tone.BAD
