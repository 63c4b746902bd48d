"""NVIDIA's CDI spec is used for the assigned card, or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.container.nvidia_cdi import NvidiaCdiError, NvidiaCdiSpecs
from tests.deviceplugin.builders import a_card, facts

A, B = facts(a_card("GPU-a")), facts(a_card("GPU-b", index=1))


def a_device(name: str, *numbers: int) -> dict[str, Any]:
    nodes = [{"path": f"/dev/nvidia{number}"} for number in numbers]
    return {"name": name, "containerEdits": {"deviceNodes": nodes}}


def write(folder: Path, *devices: dict[str, Any], name: str = "nvidia.yaml", **fields: Any) -> Path:
    """A spec as nvidia-ctk writes it, shortened."""
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": list(devices), **fields}
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(json.dumps(document) if name.endswith("json") else yaml.safe_dump(document))
    return file


def test_a_card_is_found_by_its_uuid(tmp_path: Path) -> None:
    write(tmp_path, a_device("0", 0), a_device("GPU-a", 0), a_device("all", 0, 1))

    spec = NvidiaCdiSpecs([tmp_path]).find([A])

    assert spec is not None
    assert spec.edits(A) == {"deviceNodes": [{"path": "/dev/nvidia0"}]}


def test_where_only_indexes_are_named_the_device_file_tells(tmp_path: Path) -> None:
    write(tmp_path, a_device("all", 0, 1), a_device("0", 1), a_device("1", 0), name="nvidia.json")

    spec = NvidiaCdiSpecs([tmp_path]).find([A, B])

    assert spec is not None
    assert spec.edits(A)["deviceNodes"] == [{"path": "/dev/nvidia0"}]


def test_a_spec_that_gives_another_device_file_is_stale_and_refused(tmp_path: Path) -> None:
    write(tmp_path, a_device("GPU-a", 1))
    spec = NvidiaCdiSpecs([tmp_path]).find([A])

    assert spec is not None
    with pytest.raises(NvidiaCdiError, match="has /dev/nvidia1 for GPU-a, which is /dev/nvidia0"):
        spec.edits(A)


def test_a_spec_that_lacks_one_of_the_nodes_cards_is_refused_for_it(tmp_path: Path) -> None:
    write(tmp_path, a_device("GPU-a", 0))
    spec = NvidiaCdiSpecs([tmp_path]).find([A, B])

    assert spec is not None
    with pytest.raises(NvidiaCdiError, match="does not have GPU-b; regenerate it"):
        spec.edits(B)


def test_a_spec_of_other_cards_or_kinds_is_none_of_our_business(tmp_path: Path) -> None:
    write(tmp_path / "x", a_device("GPU-x", 7))
    write(tmp_path / "y", a_device("GPU-a", 0), kind="other.com/gpu")

    assert NvidiaCdiSpecs([tmp_path / "x", tmp_path / "y", tmp_path / "none"]).find([A]) is None


def test_a_spec_that_changes_is_read_again(tmp_path: Path) -> None:
    specs = NvidiaCdiSpecs([tmp_path])
    write(tmp_path, a_device("GPU-x", 7))
    assert specs.find([A]) is None

    write(tmp_path, a_device("GPU-a", 0), a_device("GPU-x", 7))
    assert specs.find([A]) is not None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "a: [",
        "text",
        "kind: nvidia.com/gpu\ndevices: [1]",
        "kind: nvidia.com/gpu\ndevices: [{containerEdits: {}}]",
        "kind: nvidia.com/gpu\ndevices: [{name: GPU-a, containerEdits: {mounts: [1]}}]",
        "kind: nvidia.com/gpu\ndevices: [{name: GPU-a, containerEdits: {env: [1]}}]",
        "kind: nvidia.com/gpu\ncontainerEdits: 7",
    ],
)
def test_what_is_no_spec_is_named_and_never_half_used(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nvidia.yaml"
    file.write_text(text)

    try:
        assert NvidiaCdiSpecs([tmp_path]).find([A]) is None
    except NvidiaCdiError as error:
        assert str(file) in str(error)  # noqa: PT017 - either answer is right, a third is not


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").mkdir()

    with pytest.raises(NvidiaCdiError, match="cannot read"):
        NvidiaCdiSpecs([tmp_path]).find([A])
