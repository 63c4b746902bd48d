"""Finds which cards a running container really has: the device files in its own /dev.

They are read through ``/proc/<pid>/root`` of one of its processes, see proc(5). So it does not
matter who created them, and no runtime has to be asked.
"""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from deviceplugin.cards.interface import CardHardware
from deviceplugin.container.adjustment import host_file
from deviceplugin.exporter.attribution import owner_in_cgroup
from fracgpu.cards.card import CardUuid

CardFiles = Mapping[CardUuid, Sequence[tuple[str, int]]]
"""Each card's own device files: the path in a container, and the device number."""


def card_files(cards: Iterable[CardHardware], *, dev_root: Path = Path("/dev")) -> CardFiles:
    """Return the device numbers of each card's own files; a card without any is left out.

    Args:
        cards: with the files that their containers get.
        dev_root: where the host's ``/dev`` is.
    """
    found = {}
    for hardware in cards:
        files = [
            (node.path, number)
            for node in hardware.device_nodes
            if (number := _number(host_file(node, dev_root=dev_root))) is not None
        ]
        if files:
            found[hardware.card.uuid] = files
    return found


class VisibleDevices:
    """Finds the cards of running containers.

    Args:
        proc_root: the host's /proc.
    """

    def __init__(self, proc_root: Path) -> None:
        self._proc_root = proc_root

    def cards(
        self, container_ids: frozenset[str], files: CardFiles
    ) -> Mapping[str, frozenset[CardUuid]]:
        """Return the cards of which a container has every device file, by the container's id.

        Containers of which no process can be read are absent. Reads a small file for each process
        of the node; call it in a thread.
        """
        if not container_ids or not files:
            return {}
        found = {}
        for container, pid in self._processes(container_ids).items():
            root = self._proc_root / str(pid) / "root"
            if (root / "dev").is_dir():
                found[container] = frozenset(
                    uuid for uuid, nodes in files.items() if _has(root, nodes)
                )
        return found

    def _processes(self, container_ids: frozenset[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        try:
            pids = sorted(
                int(path.name) for path in self._proc_root.iterdir() if path.name.isdecimal()
            )
        except OSError:
            return {}
        for pid in pids:
            owner = owner_in_cgroup(self._cgroup(pid))
            if owner is not None and owner.container_id in container_ids:
                found.setdefault(owner.container_id, pid)
        return found

    def _cgroup(self, pid: int) -> str:
        try:
            return (self._proc_root / str(pid) / "cgroup").read_text(errors="replace")
        except OSError:  # the process has ended
            return ""


def _has(root: Path, nodes: Sequence[tuple[str, int]]) -> bool:
    return all(_number(root / path.lstrip("/")) == number for path, number in nodes)


def _number(file: Path) -> int | None:
    try:
        # lstat: a symbolic link in a container's /dev would lead into our own.
        found = os.lstat(file)
    except OSError:
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None
