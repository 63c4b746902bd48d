"""A container's cards are read from its own /dev, through one of its processes."""

import os
import stat
from pathlib import Path

import pytest

from deviceplugin.cards.interface import CardHardware, DeviceNode
from deviceplugin.exporter.visible_devices import VisibleDevices, card_files
from tests.deviceplugin.builders import a_card

CONTAINER, OTHER = "a" * 64, "b" * 64
POD = "pod0f7d1b0a-1111-2222-3333-444455556666"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device files are made by root")


def device(file: Path, minor: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(file, 0o600 | stat.S_IFCHR, os.makedev(1, minor))


def a_process(proc: Path, pid: int, container: str, **minors: int) -> None:
    """A process of *container* whose /dev has files with these minor numbers."""
    folder = proc / str(pid)
    (folder / "root" / "dev").mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::/kubepods/{POD}/{container}\n")
    for name, minor in minors.items():
        device(folder / "root" / "dev" / name, minor)


def two_cards(root: Path) -> list[CardHardware]:
    for index, minor in enumerate((3, 5)):
        device(root / f"host{index}", minor)
    return [
        CardHardware(
            card=a_card(f"GPU-{index}", index=index),
            device_nodes=(
                DeviceNode(path=f"/dev/nv{index}", host_path=str(root / f"host{index}")),
            ),
        )
        for index in range(2)
    ]


def test_cards_are_recognised_by_path_and_device_number(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    a_process(proc, 10, CONTAINER, nv0=3)
    a_process(proc, 11, OTHER, nv0=8, nv1=5)  # nv0 is something else there

    visible = VisibleDevices(proc).cards(
        frozenset({CONTAINER, OTHER, "c" * 64}), card_files(two_cards(tmp_path))
    )

    assert visible == {CONTAINER: {"GPU-0"}, OTHER: {"GPU-1"}}


def test_a_link_in_a_containers_dev_is_no_device(tmp_path: Path) -> None:
    proc, cards = tmp_path / "proc", two_cards(tmp_path)
    a_process(proc, 10, CONTAINER)
    (proc / "10" / "root" / "dev" / "nv0").symlink_to(tmp_path / "host0")

    assert VisibleDevices(proc).cards(frozenset({CONTAINER}), card_files(cards)) == {
        CONTAINER: frozenset()
    }


def test_a_card_whose_files_are_not_there_cannot_be_recognised(tmp_path: Path) -> None:
    facts = CardHardware(card=a_card(), device_nodes=(DeviceNode(path=str(tmp_path / "none")),))

    assert card_files([facts]) == {}


def test_a_cards_file_is_looked_for_where_the_host_has_it(tmp_path: Path) -> None:
    device(tmp_path / "host-dev" / "nvidia0", 5)
    facts = CardHardware(card=a_card(), device_nodes=(DeviceNode(path="/dev/nvidia0"),))

    files = card_files([facts], dev_root=tmp_path / "host-dev")

    assert files == {facts.card.uuid: [("/dev/nvidia0", os.makedev(1, 5))]}


def test_a_process_that_ends_meanwhile_is_absent(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "10").mkdir(parents=True)

    files = card_files(two_cards(tmp_path))

    assert VisibleDevices(proc).cards(frozenset({CONTAINER}), files) == {}
    assert VisibleDevices(tmp_path / "none").cards(frozenset({CONTAINER}), files) == {}
