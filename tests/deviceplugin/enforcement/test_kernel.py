"""Limits by the kernel's controller dmem, on a tree of files that behaves like it."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from deviceplugin.cards.interface import CardHardware, GroupLimits
from deviceplugin.enforcement.cgroups import write_line
from deviceplugin.enforcement.interface import EnforcementError, Limit
from deviceplugin.enforcement.kernel import KernelEnforcer
from fracgpu.units import MAX_MIB, Mib
from tests.deviceplugin.builders import a_card, facts
from tests.fakes.dmem_tree import DmemTree

FIRST, SECOND = "drm/0000:00:00.0/vram0", "drm/0000:01:00.0/vram0"
CARD: Final = facts(a_card("GPU-a"))
OTHER: Final = facts(a_card("GPU-b", index=1))
GROUP: Final = "/kubepods/burstable/pod1/c1"
SYSTEMD: Final = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-c1.scope"


def a_limit(card: CardHardware, mib: int) -> Limit:
    return Limit(card=card.card.uuid, guaranteed_mib=Mib(mib), limit_mib=Mib(mib))


@pytest.fixture
def tree(tmp_path: Path) -> DmemTree:
    return DmemTree(tmp_path, regions=(FIRST, SECOND))


@pytest.fixture
def kernel(tree: DmemTree) -> KernelEnforcer:
    return KernelEnforcer(tree.root, write=tree.write)


@pytest.mark.parametrize("group", [GROUP, SYSTEMD])
def test_each_card_of_a_container_has_a_limit_of_its_own(
    tree: DmemTree, kernel: KernelEnforcer, group: str
) -> None:
    tree.make(group)

    assert kernel.why_not(CARD) is None
    kernel.apply(group, CARD, a_limit(CARD, 1000))
    kernel.apply(group, OTHER, a_limit(OTHER, 300))
    tree.use(group, SECOND, 20)

    assert kernel.read(group, CARD).limit_mib == 1000
    assert kernel.read(group, OTHER) == GroupLimits(
        guaranteed_mib=Mib(300), limit_mib=Mib(300), used_mib=Mib(20)
    )
    above = tree.root / group.rpartition("/")[0].lstrip("/")
    assert (above / "dmem.max").read_text() == f"{FIRST} max\n{SECOND} max\n"


def test_without_a_limit_there_is_none(tree: DmemTree, kernel: KernelEnforcer) -> None:
    tree.make(GROUP)

    assert kernel.read(GROUP, CARD) == GroupLimits(guaranteed_mib=Mib(0), limit_mib=None)


def test_a_kernel_without_the_controller_says_so(tmp_path: Path) -> None:
    tree = DmemTree(tmp_path, regions=(FIRST,), controllers="cpu memory")

    assert "has no dmem.capacity" in str(KernelEnforcer(tree.root).why_not(CARD))


def test_version_1_says_so(tmp_path: Path) -> None:
    assert "no cgroup v2" in str(KernelEnforcer(tmp_path).why_not(CARD))


def test_a_card_that_the_kernel_does_not_count_says_so(kernel: KernelEnforcer) -> None:
    for bus_id in ("00000000:42:00.0", ""):
        assert "dmem.capacity has no drm/" in str(kernel.why_not(replace(CARD, pci_bus_id=bus_id)))


@pytest.mark.parametrize("above", ["", "kubepods", "kubepods/burstable"])
def test_a_cgroup_above_that_does_not_hand_the_controller_down_is_named(
    tree: DmemTree, kernel: KernelEnforcer, above: str
) -> None:
    tree.make(GROUP)
    (tree.root / above / "cgroup.subtree_control").write_text("cpu memory\n")

    with pytest.raises(EnforcementError, match=f"{above}/cgroup.subtree_control has no dmem"):
        kernel.apply(GROUP, CARD, a_limit(CARD, 1000))


def test_a_limit_below_present_use_is_said(tree: DmemTree, kernel: KernelEnforcer) -> None:
    tree.make(GROUP)
    tree.use(GROUP, FIRST, 500)

    with pytest.raises(EnforcementError, match="more than that is in use"):
        kernel.apply(GROUP, CARD, a_limit(CARD, 499))
    assert kernel.read(GROUP, CARD).limit_mib is None


def test_a_cgroup_that_vanishes_between_writing_and_reading_is_said(
    tree: DmemTree, kernel: KernelEnforcer
) -> None:
    tree.make(GROUP)
    kernel.apply(GROUP, CARD, a_limit(CARD, 1000))
    tree.remove(GROUP)

    for call in (
        lambda: kernel.read(GROUP, CARD),
        lambda: kernel.apply(GROUP, CARD, a_limit(CARD, 1000)),
    ):
        with pytest.raises(EnforcementError, match="the cgroup is gone"):
            call()


@pytest.mark.parametrize(
    ("error", "why"),
    [(errno.EACCES, "Permission denied"), (errno.EROFS, "Read-only file system")],
)
def test_a_cgroup_that_may_not_be_written_is_said(tree: DmemTree, error: int, why: str) -> None:
    def refuse(file: Path, line: str) -> None:
        raise OSError(error, os.strerror(error), str(file))

    tree.make(GROUP)

    with pytest.raises(EnforcementError, match=f"dmem.max cannot be written: {why}"):
        KernelEnforcer(tree.root, write=refuse).apply(GROUP, CARD, a_limit(CARD, 1000))


def test_a_file_of_a_cgroup_is_written_and_never_made(tmp_path: Path) -> None:
    file = tmp_path / "dmem.max"
    with pytest.raises(FileNotFoundError):
        write_line(file, f"{FIRST} 1\n")
    file.touch()
    write_line(file, f"{FIRST} 1\n")

    assert file.read_text() == f"{FIRST} 1\n"


def test_what_is_guaranteed_is_kept_by_the_cgroups_above_too(
    tree: DmemTree, kernel: KernelEnforcer
) -> None:
    other = GROUP.replace("c1", "c2")
    for group in (GROUP, other):
        tree.make(group)
    limit = Limit(card=CARD.card.uuid, guaranteed_mib=Mib(300), limit_mib=Mib(1000))

    kernel.apply(GROUP, CARD, limit)
    kernel.apply(GROUP, CARD, limit)
    kernel.apply(other, CARD, a_limit(CARD, 200))

    assert kernel.read(GROUP, CARD) == GroupLimits(guaranteed_mib=Mib(300), limit_mib=Mib(1000))
    above = ("/kubepods/burstable/pod1", "/kubepods/burstable", "/kubepods")
    assert [kernel.kept(group, CARD) for group in above] == [500] * 3
    kernel.release(other, CARD)
    assert [kernel.kept(group, CARD) for group in (other, *above)] == [0, 300, 300, 300]
    assert kernel.kept("/elsewhere", CARD) is None


def test_a_guarantee_without_end_and_one_that_is_no_number(
    tree: DmemTree, kernel: KernelEnforcer
) -> None:
    file = tree.make(GROUP) / "dmem.min"
    file.write_text(f"{FIRST} max\n")
    assert kernel.kept(GROUP, CARD) == MAX_MIB
    file.write_text(f"{FIRST} much\n")
    with pytest.raises(EnforcementError, match=f"dmem.min of {GROUP} has no number"):
        kernel.kept(GROUP, CARD)
