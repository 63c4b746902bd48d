"""CDI specs: written atomically, replacing ours, and never touching those of others."""

import json
import stat
from pathlib import Path

import pytest

from deviceplugin.cards.interface import DeviceNode
from deviceplugin.container.cdi import (
    CdiError,
    CdiFolder,
    CdiSpec,
    device_name,
    newest,
    qualified_name,
    spec_for,
)
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from tests.deviceplugin.builders import a_card


def test_the_name_of_a_set_of_ids_does_not_depend_on_their_order() -> None:
    assert device_name(["slot-2", "slot-1"]) == device_name(("slot-1", "slot-2"))
    assert device_name(["slot-1"]) != device_name(["slot-2"])


def test_a_qualified_name_is_vendor_class_and_name() -> None:
    name = device_name(["slot-1"])

    assert qualified_name(name) == f"fracgpu.io/slot={name}"
    assert len(name) == 16


def test_a_container_learns_its_cards_and_its_share_of_each() -> None:
    cards = (a_card("GPU-b", index=1), a_card("GPU-a", mib=16000))
    slices = [Slice(card=CardUuid(uuid), mib=Mib(500)) for uuid in ("GPU-b", "GPU-a")]
    nodes = [DeviceNode(path="/dev/nvidia1"), DeviceNode(path="/dev/nvidia0")]

    spec = spec_for("n", slices, cards, nodes)

    assert spec.env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "FRACGPU_MEM_MIB": "500,500",
        "FRACGPU_CARD_MIB": "8000,16000",
    }
    assert [node.path for node in spec.device_nodes] == ["/dev/nvidia1", "/dev/nvidia0"]


def test_a_written_spec_is_what_the_specification_wants(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path / "cdi")
    nodes = (DeviceNode(path="/dev/nvidia0", host_path="/dev/fake0"), DeviceNode(path="/dev/x"))

    folder.write(CdiSpec(name="abc", env={"B": "2", "A": "1"}, device_nodes=nodes))

    (file,) = (tmp_path / "cdi").glob("*.json")
    (mark,) = set((tmp_path / "cdi").iterdir()) - {file}
    assert json.loads(file.read_text()) == {
        "cdiVersion": "0.5.0",
        "kind": "fracgpu.io/slot",
        "devices": [
            {
                "name": "abc",
                "containerEdits": {
                    "env": ["A=1", "B=2"],
                    "deviceNodes": [
                        {"path": "/dev/nvidia0", "hostPath": "/dev/fake0"},
                        {"path": "/dev/x"},
                    ],
                    "mounts": [
                        {
                            "hostPath": str(mark),
                            "containerPath": "/dev/fracgpu-spec",
                            "options": ["ro", "nosuid", "nodev", "rbind"],
                        }
                    ],
                },
            }
        ],
    }


def test_a_second_write_replaces_the_first(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(CdiSpec(name="abc", env={"A": "old"}))

    folder.write(CdiSpec(name="abc", env={"A": "new"}))

    (file,) = tmp_path.glob("*.json")
    assert "new" in file.read_text()


def mounted(folder: Path) -> str:
    """Return the file of the host that the only spec mounts."""
    (file,) = folder.glob("*.json")
    (mount,) = json.loads(file.read_text())["devices"][0]["containerEdits"]["mounts"]
    return str(mount["hostPath"])


def test_a_spec_that_a_runtime_still_remembers_mounts_a_file_that_is_gone(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(CdiSpec(name="abc", env={"A": "1"}))
    first = mounted(tmp_path)

    folder.write(CdiSpec(name="abc", env={"A": "2"}))
    second = mounted(tmp_path)
    assert (Path(first).exists(), Path(second).exists()) == (False, True)
    folder.write(CdiSpec(name="abc", env={"A": "1"}))

    assert mounted(tmp_path) == first  # what is remembered of the first time is right again
    assert (Path(first).exists(), Path(second).exists()) == (True, False)


def test_a_container_that_starts_again_with_the_same_spec_keeps_its_file(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(CdiSpec(name="abc", env={"A": "1"}))
    folder.write(CdiSpec(name="ab", env={"A": "1"}))
    before = sorted(tmp_path.iterdir())

    folder.write(CdiSpec(name="abc", env={"A": "1"}))

    assert sorted(tmp_path.iterdir()) == before


def test_only_our_own_specs_are_named_and_removed(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(CdiSpec(name="abc"))
    (tmp_path / "nvidia.json").write_text("{}")

    assert folder.names() == {"abc"}
    folder.remove("abc")
    folder.remove("abc")

    assert [path.name for path in tmp_path.iterdir()] == ["nvidia.json"]


@pytest.mark.parametrize("left", ["fracgpu.io-slot_abc.new", "fracgpu.io-slot_abc." + "0" * 16])
def test_what_an_agent_that_was_killed_has_left_is_found_and_removed(
    tmp_path: Path, left: str
) -> None:
    folder = CdiFolder(tmp_path)
    (tmp_path / left).touch()

    assert folder.names() == {"abc"}
    assert folder.environments() == {}
    folder.remove("abc")

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert CdiFolder(tmp_path / "none").names() == frozenset()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file where the folder should be")

    with pytest.raises(CdiError, match=r"cannot write .*fracgpu\.io-slot_abc\.json"):
        CdiFolder(tmp_path / "cdi").write(CdiSpec(name="abc"))


def test_a_failed_write_leaves_the_old_spec_and_no_leftover(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    target = tmp_path / "fracgpu.io-slot_abc.json"
    target.mkdir()  # a folder cannot be replaced by a file

    with pytest.raises(CdiError):
        folder.write(CdiSpec(name="abc"))

    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert stat.S_ISDIR(target.stat().st_mode)


def test_what_a_spec_gives_can_be_read_back_and_a_spoilt_one_gives_nothing(
    tmp_path: Path,
) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(CdiSpec(name="good", env={"A": "1=2"}))
    folder.write(CdiSpec(name="bad"))
    bad = next(path for path in tmp_path.iterdir() if "bad" in path.name)
    bad.write_text('{"devices": 7}')

    assert folder.environments() == {"good": {"A": "1=2"}, "bad": {}}


def test_the_newest_version_is_found_by_its_numbers() -> None:
    assert newest("0.5.0", "0.10.0", "0.8.0") == "0.10.0"
    assert newest("0.5.0", "", "x.y") == "0.5.0"
