"""What we write on a Node, and the patches that remove exactly that."""

from typing import Any

from fracgpu.cards.node_marks import marks_of, shares

NODE: dict[str, Any] = {
    "metadata": {
        "name": "n1",
        "labels": {
            "fracgpu.io/share": "true",
            "fracgpu.io/card-model": "A10",
            "fracgpu.io/card-class-24000": "2",
            "fracgpu.io/driver": "570",
            "zone": "a",
        },
        "annotations": {
            "fracgpu.io/cards": "[]",
            "fracgpu.io/cordons": "{}",
            "fracgpu.io/heat": "{}",
            "fracgpu.io/out-of-service": "GPU-1",
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

    assert "fracgpu.io/share" in marks.labels
    assert "fracgpu.io/out-of-service" in marks.annotations


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
