"""What the node says of its cards, and the smallest patch that makes it say so."""

import json

import pytest

from deviceplugin.capacity import (
    NodeState,
    label_value,
    metadata_patch,
    read_node_state,
    status_patch,
    wanted_state,
)
from fracgpu import names
from fracgpu.wire import read_cards
from tests.deviceplugin.builders import a_card, a_stock


def test_capacity_counts_the_memory_of_healthy_cards_and_all_cards() -> None:
    stock = a_stock(a_card("GPU-a", mib=8000), a_card("GPU-b", index=1, mib=4000, sick="hot"))

    assert wanted_state(stock).capacity == {
        "fracgpu.io/gpu-mem": "8000",
        "fracgpu.io/gpu-count": "2",
    }


def test_memory_is_what_may_be_shared_of_each_card() -> None:
    stock = a_stock(a_card("GPU-a", mib=8079), a_card("GPU-b", index=1, mib=8079))

    assert wanted_state(stock).capacity[names.GPU_MEM] == "16000"


def test_labels_describe_the_most_common_model_and_every_class() -> None:
    stock = a_stock(
        a_card("GPU-a", mib=8000),
        a_card("GPU-b", index=1, mib=16000, model="NVIDIA A100"),
        a_card("GPU-c", index=2, mib=8000),
        driver="580.65.06",
        family="ampere",
    )

    assert wanted_state(stock).labels == {
        "fracgpu.io/card-model": "NVIDIA-A30",
        "fracgpu.io/card-memory": "16000",
        "fracgpu.io/card-count": "3",
        "fracgpu.io/card-class-8000": "2",
        "fracgpu.io/card-class-16000": "1",
        "fracgpu.io/card-family": "ampere",
        "fracgpu.io/driver": "580.65.06",
    }


def test_labels_do_not_change_when_a_card_falls_ill() -> None:
    well, ill = a_stock(a_card("GPU-a")), a_stock(a_card("GPU-a", sick="hot"))

    assert wanted_state(well).labels == wanted_state(ill).labels
    assert wanted_state(well).capacity != wanted_state(ill).capacity


def test_a_node_without_cards_has_no_labels_and_no_memory() -> None:
    state = wanted_state(a_stock())

    assert state.labels == {}
    assert state.capacity == {names.GPU_MEM: "0", names.GPU_COUNT: "0"}


def test_the_inventory_annotation_is_what_the_scheduler_reads() -> None:
    card = a_card("GPU-a", sick="hot")

    written = wanted_state(a_stock(card)).annotations[names.NODE_CARDS]

    assert read_cards(written) == (card,)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA-A100 (80GB)", "NVIDIA-A100-80GB"),
        ("580.65.06", "580.65.06"),
        ("-x-", "x"),
        ("a" * 70, "a" * 63),
        ("a" * 62 + "-b", "a" * 62),
        ("®", ""),
    ],
)
def test_a_label_value_is_what_kubernetes_allows(text: str, value: str) -> None:
    assert label_value(text) == value


def test_a_node_that_says_it_all_needs_no_patch() -> None:
    state = wanted_state(a_stock(a_card("GPU-a")))

    assert metadata_patch(have=state, want=state) == {}
    assert status_patch(have=state, want=state) == {}


def test_a_patch_holds_only_what_differs_and_removes_old_classes() -> None:
    want = NodeState(labels={"fracgpu.io/card-class-80": "1", "fracgpu.io/card-count": "1"})
    have = NodeState(
        labels={
            "fracgpu.io/card-class-160": "2",
            "fracgpu.io/card-count": "1",
            "fracgpu.io/share": "true",
            "zone": "b",
        }
    )

    assert metadata_patch(have=have, want=want) == {
        "metadata": {"labels": {"fracgpu.io/card-class-160": None, "fracgpu.io/card-class-80": "1"}}
    }


def test_other_annotations_are_left_alone() -> None:
    want = NodeState(annotations={names.NODE_CARDS: "new"})
    have = NodeState(annotations={names.NODE_CARDS: "old", names.NODE_CORDONS: "{}"})

    patch = metadata_patch(have=have, want=want)

    assert patch == {"metadata": {"annotations": {names.NODE_CARDS: "new"}}}


def test_capacity_is_compared_as_a_number() -> None:
    want = NodeState(capacity={names.GPU_MEM: "80000", names.GPU_COUNT: "1"})

    same = NodeState(capacity={names.GPU_MEM: "80k", names.GPU_COUNT: "1", "cpu": "4"})
    taken_away = NodeState(capacity={names.GPU_COUNT: "1"})

    assert status_patch(have=same, want=want) == {}
    assert status_patch(have=taken_away, want=want) == {
        "status": {"capacity": {names.GPU_MEM: "80000"}}
    }


def test_a_node_is_read_as_far_as_it_is_ours() -> None:
    body = {
        "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": None},
        "status": {"capacity": {"cpu": "4"}, "conditions": []},
    }

    assert read_node_state(json.dumps(body).encode()) == NodeState(
        labels={"a": "b"}, capacity={"cpu": "4"}
    )


def test_something_else_is_no_node() -> None:
    with pytest.raises(ValueError, match="Expected"):
        read_node_state(b'{"metadata": 1}')
