"""CDI specs: written atomically, replacing ours, and never touching those of others."""

import json
import os
import stat
import subprocess
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
from deviceplugin.container.cri import RuntimeUnknownError
from deviceplugin.container.device_links import LinkFolder
from deviceplugin.container.injection import AllocatedFolders, Injection, InjectionError
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


NULL = DeviceNode(path="/dev/nvidia0", host_path="/dev/null")
ZERO = DeviceNode(path="/dev/nvidia1", host_path="/dev/zero")


def number(file: Path) -> tuple[int, int]:
    found = file.lstat()
    assert stat.S_ISCHR(found.st_mode)
    return os.major(found.st_rdev), os.minor(found.st_rdev)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making device files needs root")


@needs_root
def test_a_folder_holds_the_device_files_of_the_last_start_and_no_others(tmp_path: Path) -> None:
    folder = LinkFolder(tmp_path)

    folder.write(CdiSpec(name="n", env={"A": "1"}, device_nodes=(NULL,)))
    assert number(folder.devices("n") / "nvidia0") == (1, 3)
    folder.write(CdiSpec(name="n", env={"B": "2"}, device_nodes=(ZERO,)))

    assert [path.name for path in folder.devices("n").iterdir()] == ["nvidia1"]
    assert number(folder.devices("n") / "nvidia1") == (1, 5)
    assert (folder.environment("n") / "env").read_text() == "B=2\n"
    assert folder.names() == {"n"}


@needs_root
def test_a_device_file_of_the_host_is_looked_for_where_the_host_has_it(tmp_path: Path) -> None:
    host = tmp_path / "host-dev"
    host.mkdir()
    os.mknod(host / "nvidia-uvm", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    folder = LinkFolder(tmp_path / "links", dev_root=host)

    folder.write(CdiSpec(name="n", device_nodes=(DeviceNode(path="/dev/nvidia-uvm"),)))

    assert number(folder.devices("n") / "nvidia-uvm") == (1, 5)


@needs_root
def test_a_folder_is_removed_whole_and_twice_does_no_harm(tmp_path: Path) -> None:
    folder = LinkFolder(tmp_path)
    folder.write(CdiSpec(name="n", device_nodes=(NULL,)))

    folder.remove("n")
    folder.remove("n")

    assert folder.names() == frozenset()
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_a_folder_of_which_a_file_cannot_be_removed_is_out_of_the_way_all_the_same(
    tmp_path: Path,
) -> None:
    folder = LinkFolder(tmp_path)
    folder.write(CdiSpec(name="n"))
    busy = folder.environment("n")
    if subprocess.run(["/bin/mount", "--bind", busy, busy], check=False).returncode:  # noqa: S603
        pytest.skip("mounting is not allowed here")
    try:
        folder.remove("n")
        left = folder.names()
    finally:
        (aside,) = tmp_path.iterdir()
        subprocess.run(["/bin/umount", aside / "env"], check=True)  # noqa: S603

    assert left == frozenset()


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (DeviceNode(path="/dev/nvidia0", host_path="/dev/none-such"), "No such file"),
        (DeviceNode(path="/dev/nvidia0", host_path="/etc/passwd"), "not a character device"),
    ],
)
def test_a_device_file_that_is_none_leaves_nothing_half_made(
    tmp_path: Path, node: DeviceNode, reason: str
) -> None:
    with pytest.raises(CdiError, match=reason):
        LinkFolder(tmp_path).write(CdiSpec(name="n", device_nodes=(node,)))

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_has_no_names(tmp_path: Path) -> None:
    assert LinkFolder(tmp_path / "none").names() == frozenset()


S1, S2, BOTH = frozenset({"s1"}), frozenset({"s2"}), frozenset({"s1", "s2"})


class FakeRuntime:
    def __init__(self, *, reads_cdi: bool) -> None:
        self.reads_cdi = reads_cdi
        self.silent = False

    async def sure(self) -> bool:
        if self.silent:
            raise RuntimeUnknownError("no answer")
        return self.reads_cdi


class Rig:
    """An agent's injection; creating it again restarts the agent."""

    def __init__(self, root: Path, runtime: FakeRuntime) -> None:
        self.specs, self.links = CdiFolder(root / "cdi"), LinkFolder(root / "links")
        allocated_folders = AllocatedFolders(root / "links" / ".handed-out")
        self.injection = Injection(self.specs, self.links, allocated_folders, runtime)

    async def places(self, slot_ids: frozenset[str]) -> list[object]:
        return list(await self.injection.stores(device_name(slot_ids)))


async def test_a_runtime_with_cdi_is_given_names_and_one_without_folders(tmp_path: Path) -> None:
    runtime = FakeRuntime(reads_cdi=True)
    rig = Rig(tmp_path, runtime)

    assert await rig.injection.allocate(S1) is None
    assert await rig.places(S1) == [rig.specs]

    runtime.reads_cdi = False
    assert await rig.injection.allocate(S2) is rig.links
    assert await rig.places(S2) == [rig.specs, rig.links]


async def test_a_container_with_a_cdi_name_is_not_started_by_a_runtime_that_reads_none(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(reads_cdi=True)
    rig = Rig(tmp_path, runtime)
    await rig.injection.allocate(S1)

    runtime.reads_cdi = False

    for injection in (rig, Rig(tmp_path, runtime)):
        with pytest.raises(InjectionError, match="delete the pod") as caught:
            await injection.places(S1)
        assert caught.value.outcome == "runtime_lacks_cdi"


async def test_a_container_with_a_folder_starts_on_any_runtime_after_any_restart(
    tmp_path: Path,
) -> None:
    runtime = FakeRuntime(reads_cdi=False)
    await Rig(tmp_path, runtime).injection.allocate(S1)

    for runtime.reads_cdi in (False, True):
        rig = Rig(tmp_path, runtime)
        assert await rig.places(S1) == [rig.specs, rig.links]


async def test_a_folder_of_an_agent_that_made_no_notes_counts_as_well(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeRuntime(reads_cdi=False))
    rig.links.write(CdiSpec(name=device_name(S1)))

    assert await rig.places(S1) == [rig.specs, rig.links]


async def test_ids_that_are_handed_out_again_begin_anew(tmp_path: Path) -> None:
    runtime = FakeRuntime(reads_cdi=False)
    rig = Rig(tmp_path, runtime)
    await rig.injection.allocate(BOTH)
    runtime.reads_cdi = True
    await rig.injection.allocate(S1)

    assert list((tmp_path / "links" / ".handed-out").iterdir()) == []
    assert await rig.places(S1) == [rig.specs]


@pytest.mark.parametrize("reads_cdi", [True, False])
async def test_of_ids_that_are_allocated_again_nothing_can_be_made_of_the_last_holders_spec(
    tmp_path: Path, reads_cdi: bool
) -> None:
    rig = Rig(tmp_path, FakeRuntime(reads_cdi=reads_cdi))
    rig.specs.write(CdiSpec(name=device_name(S1)))
    rig.specs.write(CdiSpec(name=device_name(S2)))

    await rig.injection.allocate(S1)

    assert rig.specs.environments().keys() == {device_name(S2)}
    # A container that was made of it, and has not started yet, still can.
    assert rig.specs.names() == {device_name(S1), device_name(S2)}


async def test_an_old_spec_that_cannot_be_removed_does_not_fail_the_pod(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeRuntime(reads_cdi=True))
    (tmp_path / "cdi" / f"fracgpu.io-slot_{device_name(S1)}.json").mkdir(parents=True)

    assert await rig.injection.allocate(S1) is None


async def test_without_an_answer_of_the_runtime_no_container_starts(tmp_path: Path) -> None:
    runtime = FakeRuntime(reads_cdi=True)
    rig = Rig(tmp_path, runtime)
    await rig.injection.allocate(S1)
    runtime.silent = True

    with pytest.raises(InjectionError, match="no answer") as caught:
        await rig.places(S1)
    assert caught.value.outcome == "runtime_silent"


def test_at_the_end_only_notes_of_sets_in_use_stay_and_an_empty_folder_goes(tmp_path: Path) -> None:
    folder = tmp_path / ".handed-out"
    allocated_folders = AllocatedFolders(folder)
    for ids in ("s1", "s2"):
        allocated_folders.note(frozenset({ids}), by_links=True)
    used = device_name({"s1"})

    allocated_folders.end(held={used})
    assert [path.name for path in folder.iterdir()] == [used]
    assert used in allocated_folders

    AllocatedFolders(folder).end(held=())
    assert not folder.exists()
    AllocatedFolders(folder).end(held=())
