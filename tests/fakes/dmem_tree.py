"""A tree of files that behaves like cgroup v2 with the controller dmem."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fracgpu.units import BYTES_PER_MIB

_FILES: Final = ("dmem.max", "dmem.min", "dmem.current")


class DmemTree:
    """Cgroups below *root*, which limit the memory of *regions*.

    Args:
        root: an empty folder.
        regions: what the kernel calls each card's memory.
        controllers: those of the root, and of what each cgroup gives to those in it.

    Attributes:
        lost: how many lines from now on have no effect, although they are taken.
    """

    def __init__(
        self, root: Path, *, regions: Sequence[str], controllers: str = "cpu memory dmem"
    ) -> None:
        self.root = root
        self._regions = regions
        self.lost = 0
        (root / "cgroup.controllers").write_text(f"{controllers}\n")
        (root / "cgroup.subtree_control").write_text(f"{controllers}\n")
        if "dmem" in controllers:
            capacity = "".join(f"{region} {24 << 30}\n" for region in regions)
            (root / "dmem.capacity").write_text(capacity)

    def make(self, group: str) -> Path:
        """Create a cgroup and those above it; each has what the one above gives to it."""
        folder = self.root
        for name in group.strip("/").split("/"):
            given = (folder / "cgroup.subtree_control").read_text()
            folder /= name
            if folder.exists():
                continue
            folder.mkdir()
            (folder / "cgroup.subtree_control").write_text(given)
            if "dmem" in given.split():
                (folder / "dmem.max").write_text(self._all("max"))
                (folder / "dmem.min").write_text(self._all("0"))
                (folder / "dmem.current").write_text(self._all("0"))
        return folder

    def remove(self, group: str) -> None:
        """Remove a cgroup without cgroups in it; its limits are gone with it."""
        folder = self.root / group.lstrip("/")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    def use(self, group: str, region: str, mib: int) -> None:
        """Let the processes of a cgroup use memory."""
        self._put(self.root / group.lstrip("/") / "dmem.current", region, str(mib * BYTES_PER_MIB))

    def write(self, file: Path, line: str) -> None:
        """Write as the kernel takes it: one region's value, not below what is in use."""
        if not file.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))
        region, value = line.split()
        if region not in self._regions or file.name not in _FILES:
            raise OSError(errno.EINVAL, "Invalid argument", str(file))
        used = dict(
            each.split() for each in (file.parent / "dmem.current").read_text().splitlines()
        )[region]
        if file.name == "dmem.max" and value != "max" and int(value) < int(used):
            raise OSError(errno.EBUSY, "Device or resource busy", str(file))
        if self.lost:
            self.lost -= 1
            return
        self._put(file, region, value)

    def _put(self, file: Path, region: str, value: str) -> None:
        values = dict(line.split() for line in file.read_text().splitlines())
        values[region] = value
        file.write_text("".join(f"{name} {text}\n" for name, text in values.items()))

    def _all(self, value: str) -> str:
        return "".join(f"{region} {value}\n" for region in self._regions)
