from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import SHARE_GRANULE_MIB, Card, CardUuid, Cordon, Health, NodeCards
from fracgpu.cards.card_class import (
    CardClass,
    CardClassCounts,
    card_classes,
    model_allowed,
    model_key,
)
from fracgpu.cards.node_labels import cards_from_labels
from fracgpu.cards.node_marks import marks_of, shares
from fracgpu.cards.other_plugins import offered_by_others
from fracgpu.units import MAX_MIB, Mib, share_of

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
A30, H100 = "NVIDIA A30", "NVIDIA H100 80GB HBM3"


def a_card(
    uuid: str,
    total_mib: int = 24_000,
    *,
    model: str = A30,
    reserved_mib: int = 0,
    sick: bool = False,
) -> Card:
    return Card(
        uuid=CardUuid(uuid),
        index=0,
        model=model,
        total_mib=Mib(total_mib),
        reserved_mib=Mib(reserved_mib),
        health=Health.UNHEALTHY if sick else Health.HEALTHY,
    )


def a_node(name: str, *cards: Card, shared: bool = True) -> NodeCards:
    return NodeCards(node=name, cards=cards, shared=shared)


def all_free(nodes: Sequence[NodeCards]) -> dict[CardUuid, Mib]:
    return {card.uuid: card.capacity_mib for node in nodes for card in node.cards}


@pytest.mark.parametrize(
    ("total", "reserved", "capacity"),
    [(24_000, 0, 24_000), (24_576, 0, 24_560), (81_559, 639, 80_880), (79, 0, 0), (10, 20, 0)],
)
def test_capacity_is_what_is_not_reserved_down_to_a_multiple_of_eighty(
    total: int, reserved: int, capacity: int
) -> None:
    assert a_card("a", total, reserved_mib=reserved).capacity_mib == capacity


@pytest.mark.parametrize("parts", [1, 2, 4, 5, 8, 10, 16, 20])
@given(st.integers(SHARE_GRANULE_MIB, 2**24), st.integers(0, 4096))
def test_equal_shares_always_fit_side_by_side_on_one_card(
    parts: int, total: int, reserved: int
) -> None:
    card = a_card("a", total, reserved_mib=reserved)
    if card.capacity_mib == 0:
        return

    for taken in range(1, parts + 1):
        each = share_of(Fraction(taken, parts), capacity_mib=card.capacity_mib)
        together = parts // taken
        assert together * each <= card.capacity_mib


@given(st.lists(st.sampled_from([1, 2, 4, 5, 8, 10, 16, 20]), min_size=1, max_size=20))
def test_unequal_shares_that_add_up_to_one_card_fit_as_well(denominators: list[int]) -> None:
    shares = [Fraction(1, denominator) for denominator in denominators]
    if sum(shares) > 1:
        return
    capacity = a_card("a", 81_559).capacity_mib

    assert sum(share_of(share, capacity_mib=capacity) for share in shares) <= capacity


def test_a_cordon_counts_until_its_time_and_not_at_it() -> None:
    cordon = Cordon(card=CardUuid("a"), until=NOON, reason="hot")
    node = NodeCards(node="n", cordons=(cordon,))

    assert node.cordoned(now=NOON - timedelta(seconds=1)) == {"a"}
    assert node.cordoned(now=NOON) == frozenset()


def test_a_model_is_written_as_a_label_value_can_be() -> None:
    assert model_key("NVIDIA  H100 80GB\tHBM3 ") == "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("globs", "allowed"),
    [
        ((), True),
        (("*",), True),
        (("NVIDIA-H100-80GB-HBM3",), True),
        (("NVIDIA H100 80GB HBM3",), True),
        (("*h100*",), True),
        (("A30", "*H100*"), True),
        (("H100",), False),
        (("*A100*",), False),
        (("NVIDIA-H?00*",), True),
        (("!*H100*",), False),
        (("!*A100*",), True),
        (("*NVIDIA*", "!*h100*"), False),
        (("!*H100*", "*"), False),
        (("*A30*", "!*A100*"), False),
    ],
)
def test_a_model_is_allowed_by_any_glob_whatever_its_case(
    globs: tuple[str, ...], *, allowed: bool
) -> None:
    assert model_allowed(H100, globs=globs) is allowed


@given(st.text(), st.lists(st.text(), max_size=3))
def test_no_text_is_too_odd_for_a_model_or_a_glob(model: str, globs: list[str]) -> None:
    assert model_allowed(model, globs=globs) in (True, False)


def test_cards_of_one_shareable_size_are_one_class_whatever_their_model() -> None:
    nodes = [
        a_node("a", a_card("a0"), a_card("a1", 24_079)),
        a_node("b", a_card("b0", model="NVIDIA A10"), a_card("b1", 81_920, model=H100)),
    ]

    assert card_classes(nodes, free_mib=all_free(nodes)) == (
        CardClass(
            capacity_mib=Mib(24_000),
            models=frozenset({"NVIDIA-A30", "NVIDIA-A10"}),
            most_per_node=2,
            as_large_per_node=2,
            cards=3,
            free_share=1.0,
        ),
        CardClass(
            capacity_mib=Mib(81_920),
            models=frozenset({"NVIDIA-H100-80GB-HBM3"}),
            most_per_node=1,
            as_large_per_node=1,
            cards=1,
            free_share=1.0,
        ),
    )


def test_larger_cards_beside_it_count_as_large_enough() -> None:
    nodes = [
        a_node("a", a_card("a0"), a_card("a1"), a_card("a2", 81_920), a_card("a3", 81_920)),
        a_node("b", a_card("b0"), a_card("b1"), a_card("b2")),
    ]

    by_size = {
        card_class.capacity_mib: card_class
        for card_class in card_classes(nodes, free_mib=all_free(nodes))
    }

    assert (by_size[Mib(24_000)].most_per_node, by_size[Mib(24_000)].as_large_per_node) == (3, 4)
    assert (by_size[Mib(81_920)].most_per_node, by_size[Mib(81_920)].as_large_per_node) == (2, 2)


def test_the_class_with_the_most_free_share_comes_first() -> None:
    nodes = [a_node("a", a_card("small"), a_card("large", 81_920))]
    small, large = CardUuid("small"), CardUuid("large")

    def order(**free: int) -> list[int]:
        free_mib = {CardUuid(uuid): Mib(mib) for uuid, mib in free.items()}
        return [card_class.capacity_mib for card_class in card_classes(nodes, free_mib=free_mib)]

    assert {small, large} == set(all_free(nodes))
    assert order(small=23_000, large=40_000) == [24_000, 81_920]
    assert order(small=2_000, large=40_000) == [81_920, 24_000]
    assert order(small=24_000, large=81_920) == [24_000, 81_920]


def test_a_card_that_nobody_reports_free_is_full_and_one_over_full_takes_from_no_other() -> None:
    nodes = [a_node("a", a_card("a0"), a_card("a1"))]

    unknown, over = (
        card_classes(nodes, free_mib={CardUuid("a0"): Mib(24_000), CardUuid("a1"): Mib(other)})[0]
        for other in (0, -9_000)
    )
    missing = card_classes(nodes, free_mib={CardUuid("a0"): Mib(24_000)})[0]

    assert unknown.free_share == over.free_share == missing.free_share == 0.5


@pytest.mark.parametrize(
    "node",
    [
        a_node("a", a_card("a0"), shared=False),
        a_node("a", a_card("a0", sick=True)),
        a_node("a", a_card("a0", 79)),
        a_node("a"),
    ],
    ids=["not shared", "unhealthy", "too small", "empty"],
)
def test_a_card_that_cannot_be_shared_makes_no_class(node: NodeCards) -> None:
    assert card_classes([node], free_mib=all_free([node])) == ()


cards = st.builds(
    a_card,
    st.uuids().map(str),
    st.sampled_from([0, 79, 8_192, 24_000, 24_001, 81_920]),
    sick=st.booleans(),
)
clusters = st.lists(st.lists(cards, max_size=4), max_size=4)


@given(clusters)
def test_classes_count_every_usable_card_once_whatever_the_order_of_nodes(
    cluster: list[list[Card]],
) -> None:
    nodes = [a_node(str(index), *here) for index, here in enumerate(cluster)]
    usable = [c for here in cluster for c in here if c.health is Health.HEALTHY and c.capacity_mib]

    classes = card_classes(nodes, free_mib=all_free(nodes))

    assert sum(card_class.cards for card_class in classes) == len(usable)
    assert all(
        1 <= card_class.most_per_node <= card_class.as_large_per_node for card_class in classes
    )
    assert all(card_class.most_per_node <= card_class.cards for card_class in classes)
    assert all(0 <= card_class.free_share <= 1 for card_class in classes)
    assert classes == card_classes(nodes[::-1], free_mib=all_free(nodes))


nodes_of_any_kind = st.builds(
    a_node,
    st.sampled_from(["a", "b", "c"]),
    cards,
    cards,
    shared=st.booleans(),
)


@given(st.lists(st.tuples(nodes_of_any_kind, st.sampled_from(["put", "suppose", "remove"]))))
def test_nodes_counted_as_they_change_give_the_classes_of_the_nodes_that_are_left(
    changes: list[tuple[NodeCards, str]],
) -> None:
    counts, left = CardClassCounts(), dict[str, tuple[NodeCards, str]]()
    for node, change in changes:
        if change == "put":
            counts.put(node, free_mib=all_free([node]))
        elif change == "suppose":
            counts.suppose(node)
        else:
            counts.remove(node.node)
        left.pop(node.node, None)
        if change != "remove":
            left[node.node] = node, change
    reported = [node for node, change in left.values() if change == "put"]
    supposed = [node for node, change in left.values() if change == "suppose"]

    expected = card_classes(reported, free_mib=all_free(reported), supposed=supposed)

    assert counts.classes() == expected


def test_what_only_labels_suggest_comes_after_what_an_agent_reported() -> None:
    reported = a_node("a", a_card("a0"))
    same = a_node("b", a_card("b0"), a_card("b1"))
    other = a_node("c", a_card("c0", 80_000))

    classes = card_classes([reported], free_mib={}, supposed=[same, other])

    assert [
        (card_class.capacity_mib, card_class.cards, card_class.most_per_node, card_class.measured)
        for card_class in classes
    ] == [
        (24_000, 3, 2, True),
        (80_000, 1, 1, False),
    ]


@pytest.mark.parametrize(
    ("age", "known"),
    [
        (timedelta(minutes=-5, seconds=-1), False),
        (timedelta(minutes=-5), True),
        (timedelta(), True),
        (timedelta(minutes=14, seconds=59), True),
        (timedelta(minutes=15), False),
    ],
)
def test_heat_is_known_for_fifteen_minutes_by_clocks_that_differ_by_five(
    age: timedelta, *, known: bool
) -> None:
    now = datetime(2026, 1, 5, 12, tzinfo=UTC)
    heat = {CardUuid("GPU-a"): 0.5}
    node = NodeCards(node="n", heat=heat, load_time=now - age)

    assert node.known_heat(now=now) == (heat if known else {})
    begins, ends = node.heat_changes_at
    assert (begins <= now < ends) is known
    assert NodeCards(node="n", heat=heat).known_heat(now=now) == {}
    assert NodeCards(node="n", load_time=now).heat_changes_at == ()


OURS = {
    "fracgpu.io/card-model": "NVIDIA-A30",
    "fracgpu.io/card-class-24000": "2",
    "fracgpu.io/card-class-81920": "1",
}
NVIDIA = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "2",
}
AMD = {
    "beta.amd.com/gpu.vram": "64G",
    "beta.amd.com/gpu.vram.64G": "4",
    "beta.amd.com/gpu.product-name.Instinct_MI210": "4",
}


def found(labels: dict[str, str], *, reserved_mib: int = 0) -> list[tuple[str, int]]:
    cards = cards_from_labels("n", labels, reserved_mib=Mib(reserved_mib))
    return [(card.model, card.capacity_mib) for card in cards]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({}, []),
        (OURS, [("NVIDIA-A30", 24_000)] * 2 + [("NVIDIA-A30", 81_920)]),
        (NVIDIA, [("NVIDIA-A100-SXM4-80GB", 81_920)] * 2),
        (AMD, [("AMD-Instinct_MI210", 65_520)] * 4),
        ({**AMD, **NVIDIA}, [("NVIDIA-A100-SXM4-80GB", 81_920)] * 2),
        ({**NVIDIA, **OURS}, [("NVIDIA-A30", 24_000)] * 2 + [("NVIDIA-A30", 81_920)]),
        (
            {"beta.amd.com/gpu.vram.16G": "1", "beta.amd.com/gpu.vram.32G": "2"},
            [("AMD-unknown", 16_320), ("AMD-unknown", 32_720), ("AMD-unknown", 32_720)],
        ),
        ({"amd.com/gpu.vram": "16G", "amd.com/gpu.product-name": "AMD_V"}, [("AMD_V", 16_320)]),
        ({"nvidia.com/gpu.memory": "80000"}, []),
        ({"nvidia.com/gpu.memory": "80000", "nvidia.com/gpu.count": "0"}, []),
        ({"nvidia.com/gpu.memory": "8e4", "nvidia.com/gpu.count": "1"}, []),
        ({"nvidia.com/gpu.memory": "99999999", "nvidia.com/gpu.count": "1"}, []),
        ({"beta.amd.com/gpu.vram": "lots"}, []),
        ({"beta.amd.com/gpu.vram": "99999T"}, []),
        ({"fracgpu.io/card-class-x": "1", "fracgpu.io/card-class-80": "many"}, []),
    ],
)
def test_cards_are_supposed_from_labels_ours_before_nvidias_before_amds(
    labels: dict[str, str], wanted: list[tuple[str, int]]
) -> None:
    assert found(labels) == wanted


def test_what_is_reserved_comes_off_totals_and_not_off_what_our_labels_share() -> None:
    assert found(NVIDIA, reserved_mib=600) == [("NVIDIA-A100-SXM4-80GB", 81_280)] * 2
    assert found(OURS, reserved_mib=600)[0] == ("NVIDIA-A30", 24_000)


def test_supposed_cards_are_told_apart_by_node_and_number() -> None:
    uuids = [card.uuid for card in cards_from_labels("n", NVIDIA)]

    assert uuids == ["label:n:0", "label:n:1"]


@given(
    st.dictionaries(
        st.sampled_from([*OURS, *NVIDIA, *AMD, "beta.amd.com/gpu.vram.", "amd.com/gpu.vram.1T"]),
        st.text() | st.integers().map(str),
    )
)
def test_whatever_labels_say_is_read_as_sane_cards_or_as_none(labels: dict[str, str]) -> None:
    for card in cards_from_labels("n", labels):
        assert 0 <= card.capacity_mib <= MAX_MIB


NODE: dict[str, Any] = {
    "metadata": {
        "name": "n1",
        "labels": {
            "fracgpu.io/share": "true",
            "fracgpu.io/card-model": "A10",
            "fracgpu.io/card-class-24000": "2",
            "fracgpu.io/driver": "570",
            "fracgpu.io/wiring": "claims",
            "zone": "a",
        },
        "annotations": {
            "fracgpu.io/cards": "[]",
            "fracgpu.io/cordons": "{}",
            "fracgpu.io/heat": "{}",
            "fracgpu.io/out-of-service": "GPU-1",
            "fracgpu.io/drain": "GPU-2",
            "other": "x",
        },
    },
    "status": {
        "capacity": {"cpu": "8", "fracgpu.io/gpu-mem": "80k", "fracgpu.io/gpu-slot": "64"},
        "allocatable": {"cpu": "8", "fracgpu.io/gpu-mem": "80k", "fracgpu.io/gpu-slot": "64"},
        "conditions": [{"type": "Ready"}, {"type": "FracGPUSharing"}],
    },
}


def test_only_what_we_wrote_is_found() -> None:
    marks = marks_of(NODE)

    assert marks.labels == (
        "fracgpu.io/card-class-24000",
        "fracgpu.io/card-model",
        "fracgpu.io/driver",
    )
    assert marks.annotations == ("fracgpu.io/cards", "fracgpu.io/cordons", "fracgpu.io/heat")
    assert marks.resources == ("fracgpu.io/gpu-mem",)
    assert marks.condition
    assert len(marks.words) == 8


def test_what_an_administrator_wrote_goes_only_when_the_whole_system_goes() -> None:
    marks = marks_of(NODE, include_admin_keys=True)

    assert {"fracgpu.io/share", "fracgpu.io/wiring"} <= set(marks.labels)
    assert {"fracgpu.io/out-of-service", "fracgpu.io/drain"} <= set(marks.annotations)


def test_kubelets_count_of_slots_is_removed_once_it_is_zero() -> None:
    left = {"status": {"capacity": {"fracgpu.io/gpu-slot": "0"}}}

    assert marks_of(left).resources == ("fracgpu.io/gpu-slot",)


def test_the_patches_remove_each_mark_and_nothing_else() -> None:
    marks = marks_of(NODE)

    assert marks.metadata_patch() == {
        "metadata": {
            "labels": dict.fromkeys(marks.labels),
            "annotations": dict.fromkeys(marks.annotations),
        }
    }
    gone = {"fracgpu.io/gpu-mem": None}
    assert marks.status_patch() == {"status": {"capacity": gone, "allocatable": gone}}
    assert marks.condition_patch() == {
        "status": {"conditions": [{"type": "FracGPUSharing", "$patch": "delete"}]}
    }


def test_a_node_of_somebody_else_carries_nothing_of_ours() -> None:
    marks = marks_of({"metadata": {"name": "n", "labels": {"zone": "a"}}, "status": {}})

    assert not marks
    assert marks.words == ()
    assert marks.metadata_patch() == marks.status_patch() == marks.condition_patch() == {}


def test_a_node_shares_only_where_the_label_says_true() -> None:
    assert shares({"fracgpu.io/share": "true"})
    assert not shares({"fracgpu.io/share": "false"})
    assert not shares({})


@pytest.mark.parametrize(
    ("allocatable", "offered"),
    [
        ({"cpu": "64", "fracgpu.io/gpu-mem": "80k"}, {}),
        (
            {"nvidia.com/gpu": "4", "aliyun.com/gpu-mem": "96"},
            {"nvidia.com/gpu": 4, "aliyun.com/gpu-mem": 96},
        ),
        ({"nvidia.com/mig-1g.10gb": "7"}, {"nvidia.com/mig-1g.10gb": 7}),
        ({"nvidia.com/gpu": "0"}, {}),
        ({"amd.com/gpu": "8"}, {"amd.com/gpu": 8}),
        ({"amd.com/cpx_nps4": "64", "amd.com/xilinx_u30": "2"}, {"amd.com/cpx_nps4": 64}),
    ],
)
def test_a_plugin_that_is_there_offers_more_than_nothing(
    allocatable: dict[str, str], offered: dict[str, int]
) -> None:
    assert offered_by_others(allocatable) == offered
