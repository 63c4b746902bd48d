"""Without CDI, a container gets its card as a folder of device files."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from deviceplugin.cards.interface import DeviceNode
from deviceplugin.container.cdi import CdiError, CdiSpec
from deviceplugin.container.device_links import LinkFolder

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
