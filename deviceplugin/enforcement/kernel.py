"""Limits that the kernel keeps per cgroup: the controller ``dmem``, for AMD's and Intel's cards."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deviceplugin.cards.interface import CardHardware, GroupLimits, kernel_address
from deviceplugin.enforcement.cgroups import ancestors, version_problem, write_line
from deviceplugin.enforcement.interface import EnforcementError, Enforcer, Limit
from fracgpu.units import BYTES_PER_MIB, MAX_MIB, Mib

_MAX: Final = "max"
_REASONS: Final = {
    errno.EBUSY: "more than that is in use",
    errno.ENOENT: "the cgroup is gone, or has no controller dmem",
    errno.ENODEV: "the cgroup is gone",
}


class KernelEnforcer(Enforcer):
    """Writes the files ``dmem.*`` of cgroup v2.

    What is guaranteed is in ``dmem.min``: the kernel does not move it to the host's memory to make
    room for what others borrow. It protects no more than what the cgroups above protect, so it is
    added there.

    Args:
        root: where the node's cgroups are.
        write: writes a line into a file that is there.
    """

    name = "kernel"
    # dmem.min makes room only for what dmem itself places. ROCm's KFD reserves memory before that,
    # fails with ENOMEM where others have borrowed it, and evicts nobody: not shown on a card yet.
    keeps_guarantees = False

    def __init__(self, root: Path, *, write: Callable[[Path, str], None] = write_line) -> None:
        self._root = root
        self._write_line = write
        self._lock = threading.Lock()  # from reading what is above to writing it

    def why_not(self, card: CardHardware) -> str | None:
        if (problem := version_problem(self._root)) is not None:
            return problem
        try:
            capacity = _by_region((self._root / "dmem.capacity").read_text())
        except OSError:
            return "the kernel does not limit the memory of cards: it has no dmem.capacity"
        region = _region(card)
        if region not in capacity:
            return (
                f"the kernel does not count the memory of the card: dmem.capacity has no {region}"
            )
        return self._unled("/")

    def apply(self, group: str, card: CardHardware, limit: Limit) -> None:
        for above in (*ancestors(group), "/"):
            if (problem := self._unled(above)) is not None:
                raise EnforcementError(problem)
        self._write(group, "dmem.max", card, limit.limit_mib)
        self._guarantee(group, card, limit.guaranteed_mib)

    def read(self, group: str, card: CardHardware) -> GroupLimits:
        region = _region(card)
        limit = self._read(group, "dmem.max").get(region, _MAX)
        used = self._read(group, "dmem.current").get(region, "0")
        try:
            used_mib = Mib(-(-int(used) // BYTES_PER_MIB))
            limit_mib = None if limit == _MAX else Mib(int(limit) // BYTES_PER_MIB)
        except ValueError as error:
            raise EnforcementError(f"the files dmem.* of {group} have no numbers") from error
        return GroupLimits(
            guaranteed_mib=self._guaranteed(group, card), limit_mib=limit_mib, used_mib=used_mib
        )

    def kept(self, group: str, card: CardHardware) -> Mib | None:
        """Return what is guaranteed to a cgroup; None to one without the controller."""
        if not self._file(group, "dmem.min").exists():
            return None
        return self._guaranteed(group, card)

    def keep(self, group: str, card: CardHardware, mib: Mib) -> None:
        with self._lock:
            self._write(group, "dmem.min", card, mib)

    def release(self, group: str, card: CardHardware) -> None:
        self._guarantee(group, card, Mib(0))

    def _guarantee(self, group: str, card: CardHardware, mib: Mib) -> None:
        with self._lock:
            added = mib - self._guaranteed(group, card)
            if not added:
                return
            self._write(group, "dmem.min", card, mib)
            for above in ancestors(group):
                before = self._guaranteed(above, card)
                self._write(above, "dmem.min", card, Mib(max(0, before + added)))

    def _guaranteed(self, group: str, card: CardHardware) -> Mib:
        text = self._read(group, "dmem.min").get(_region(card), "0")
        try:
            return Mib(MAX_MIB if text == _MAX else int(text) // BYTES_PER_MIB)
        except ValueError as error:
            raise EnforcementError(f"dmem.min of {group} has no number") from error

    def _unled(self, group: str) -> str | None:
        """Return why the cgroups in *group* have no limits of their own, or None."""
        file = self._root / group.lstrip("/") / "cgroup.subtree_control"
        try:
            controllers = file.read_text().split()
        except OSError as error:
            return f"cannot read {file}: {error.strerror}"
        return None if "dmem" in controllers else f"{file} has no dmem"

    def _write(self, group: str, name: str, card: CardHardware, mib: Mib) -> None:
        file = self._file(group, name)
        try:
            self._write_line(file, f"{_region(card)} {mib * BYTES_PER_MIB}\n")
        except OSError as error:
            raise _failed(file, "written", error) from error

    def _read(self, group: str, name: str) -> dict[str, str]:
        file = self._file(group, name)
        try:
            return _by_region(file.read_text())
        except OSError as error:
            raise _failed(file, "read", error) from error

    def _file(self, group: str, name: str) -> Path:
        return self._root / group.lstrip("/") / name


def _failed(file: Path, what: str, error: OSError) -> EnforcementError:
    why = _REASONS.get(error.errno or 0, error.strerror)
    return EnforcementError(f"{file} cannot be {what}: {why}")


def _region(card: CardHardware) -> str:
    """Return what the kernel calls the card's memory."""
    try:
        return f"drm/{kernel_address(card.pci_bus_id)}/vram0"
    except ValueError:
        return "drm/(no PCI address)/vram0"


def _by_region(text: str) -> dict[str, str]:
    pairs = (line.rpartition(" ") for line in text.splitlines())
    return {region: value for region, _, value in pairs if region}
