"""CDI specs: written atomically, replacing ours, and never touching those of others."""

import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deviceplugin.cards.interface import DeviceNode
from deviceplugin.container.cdi import (
    ABSENT,
    MARK_PATH,
    SHARED,
    CdiError,
    CdiFolder,
    CdiSpec,
    closed_spec,
    device_name,
    newest,
    qualified_name,
    refusing_spec,
    remove_device_files,
    spec_for,
)
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from tests.deviceplugin.builders import a_card


def test_of_a_spec_that_was_replaced_no_container_is_made_although_the_runtime_remembers_it(
    tmp_path: Path,
) -> None:
    folder = CdiFolder(tmp_path)
    remembered, now = (folder.marked(CdiSpec(name="a", env={"CARD": card})) for card in "12")
    (old,), (new,) = (each.mounts for each in (remembered, now))

    assert [folder.write(remembered), folder.write(remembered)] == [True, False]
    assert Path(old.host_path).exists()
    assert folder.write(now)
    assert (Path(old.host_path).exists(), Path(new.host_path).exists()) == (False, True)

    Path(new.host_path).unlink()
    assert [folder.write(now), folder.write(now)] == [True, False]  # what is missing comes back
    folder.write(refusing_spec("a", "card 2 is unhealthy: XID 79"))
    assert not Path(new.host_path).exists()


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
        "NVIDIA_VISIBLE_DEVICES": "void",
        "FRACGPU_CARDS": "GPU-b,GPU-a",
        "FRACGPU_MEM_MIB": "500,500",
        "FRACGPU_CARD_MIB": "8000,16000",
    }
    assert [node.path for node in spec.device_nodes] == ["/dev/nvidia1", "/dev/nvidia0"]


def test_a_written_spec_is_what_the_specification_wants(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path / "cdi")
    nodes = (DeviceNode(path="/dev/nvidia0", host_path="/dev/fake0"), DeviceNode(path="/dev/x"))

    folder.write(CdiSpec(name="abc", env={"B": "2", "A": "1"}, device_nodes=nodes))

    (file,) = (tmp_path / "cdi").glob("*.json")
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
                },
            }
        ],
    }


def test_the_same_spec_is_not_written_again(tmp_path: Path) -> None:
    """A runtime reads all specs again when the folder changes."""
    folder = CdiFolder(tmp_path)
    folder.write(CdiSpec(name="abc", env={"A": "1"}))
    (file,) = tmp_path.iterdir()
    before = file.stat()

    folder.write(CdiSpec(name="abc", env={"A": "1"}))

    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_pods_that_start_at_once_write_the_spec_that_they_share_once(tmp_path: Path) -> None:
    folder, spec = CdiFolder(tmp_path / "cdi"), closed_spec(SHARED)

    with ThreadPoolExecutor(8) as threads:
        for again in range(5):
            together = threading.Barrier(8)

            def write(together: threading.Barrier = together) -> None:
                together.wait(timeout=10)
                folder.write(spec)

            written = [threads.submit(write) for _ in range(8)]
            assert [it.exception() for it in written] == [None] * 8, again
            (file,) = (tmp_path / "cdi").iterdir()
            assert json.loads(file.read_text()) == spec.document()
            folder.remove(SHARED)


def test_a_spec_that_gives_nothing_mounts_a_file_that_does_not_exist() -> None:
    (device,) = closed_spec(SHARED).document()["devices"]

    assert device["name"] == SHARED
    assert device["containerEdits"] == {
        "env": [],
        "mounts": [
            {
                "hostPath": ABSENT,
                "containerPath": MARK_PATH,
                "options": ["ro", "nosuid", "nodev", "rbind"],
            }
        ],
    }
    assert not Path(ABSENT).exists()


def test_folders_of_device_files_of_older_agents_start_no_container(tmp_path: Path) -> None:
    for part in ("dev", "env"):
        (tmp_path / "0123" / part).mkdir(parents=True)
        (tmp_path / "0123" / part / "file").touch()

    remove_device_files(tmp_path)
    remove_device_files(tmp_path / "none")

    assert [path.name for path in (tmp_path / "0123").iterdir()] == ["env"]  # mounted yet


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
    folder.remove("abc")

    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_spec_and_no_leftover(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    target = tmp_path / "fracgpu.io-slot_abc.json"
    target.mkdir()  # a folder cannot be replaced by a file

    with pytest.raises(CdiError):
        folder.write(CdiSpec(name="abc"))

    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert stat.S_ISDIR(target.stat().st_mode)


def test_the_newest_version_is_found_by_its_numbers() -> None:
    assert newest("0.5.0", "0.10.0", "0.8.0") == "0.10.0"
    assert newest("0.5.0", "", "x.y") == "0.5.0"
