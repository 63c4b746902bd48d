"""Finds the container of a process on a card by the process's control group."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The pod's part of a cgroup path: "pod<uid>" as cgroupfs writes it, "...-pod<uid>.slice" as systemd
# does, with "_" for "-". A static pod's uid is 32 hex digits, every other is a UUID.
_POD: Final = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=$|:)"
)
# "<cid>", "cri-containerd-<cid>.scope", and "<slice>:cri-containerd:<cid>", which a systemd path
# becomes where the runtime uses cgroupfs.
_CONTAINER: Final = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")

_COLONS: Final = 2
# What the kernel appends to the path of a group that was removed while a process was in it.
_REMOVED: Final = " (deleted)"

_STARTTIME_FIELD: Final = 22  # of /proc/<pid>/stat, counted from 1; see proc(5)
_FIELDS_TO_NAME: Final = 2  # pid and "(comm)", which may itself hold spaces and brackets


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The pod a process runs in; *container_id* is empty where the path does not have it."""

    pod_uid: str
    container_id: str = ""


def owner_in_cgroup(text: str) -> Owner | None:
    """Return the innermost pod in the lines of ``/proc/<pid>/cgroup``, or None.

    A node that itself runs in a container (kind, Docker in Docker) has two pods on the path; the
    inner one is the pod of our API server. A reader in a cgroup namespace of its own sees other
    paths relative to its own group, ``/../../...``; they end the same way.
    """
    for line in text.splitlines():
        # "0::<path>" in version 2, "<number>:<controllers>:<path>" in version 1; see cgroups(7).
        found = _owner_in_path(line.split(":", 2)[-1].removesuffix(_REMOVED))
        if found is not None:
            return found
    return None


def _owner_in_path(path: str) -> Owner | None:
    parts = path.split("/")
    for position in range(len(parts) - 1, -1, -1):
        match = _POD.search(parts[position])
        if match:
            last = parts[min(position + 1, len(parts) - 1)]
            container = _CONTAINER.search(last)
            return Owner(
                pod_uid=match[1].replace("_", "-"),
                container_id=container[1] if container else "",
            )
    return None


KnownContainers = Mapping[str, tuple[str, str]]
"""By container id: the UID of its pod, and its cgroup path as in the OCI spec."""


def known_owner_in_cgroup(text: str, known: KnownContainers) -> Owner | None:
    """Return the container in the lines of ``/proc/<pid>/cgroup``, if the runtime named it.

    Containers of one runtime are not nested, and what a container makes below its own group may
    have any name. So the outermost group counts that is a known container's, by its name and its
    parent's. That is enough of the path: its beginning is unknown where the node itself runs in a
    container, or where the reader has a cgroup namespace of its own.
    """
    groups = {
        name: (parent, Owner(pod_uid=uid, container_id=container_id))
        for container_id, (uid, path) in known.items()
        for parent, name in _groups(path)
    }
    for line in text.splitlines():
        above = ".."
        for part in line.split(":", 2)[-1].removesuffix(_REMOVED).split("/"):
            parent, owner = groups.get(part, (None, None))
            if owner is not None and (parent is None or above in ("..", parent)):
                return owner
            above = part
    return None


def _groups(path: str) -> Iterable[tuple[str | None, str]]:
    """Yield the parent and the name that a container's group may have; None for any parent."""
    above, _, name = path.rpartition("/")
    if name.count(":") != _COLONS:
        yield above.rpartition("/")[2], name
        return
    # "slice:prefix:name", which systemd's driver reads so, and the other one as a name.
    parent, prefix, container = name.split(":")
    yield parent, f"{prefix}-{container}.scope"
    yield None, name


class Attribution:
    """Finds the owners of processes, and caches them by pid *and* start time.

    A pid alone is not unique: the kernel reuses it. That a process has no owner is not cached: it
    may have been read before it was moved to its control group.

    Args:
        proc_root: the host's /proc.
        known: the containers that the runtime has named; None where it names none, and the owner is
            the one in the innermost group that looks like a pod's.
    """

    def __init__(
        self, proc_root: Path, known: Callable[[], KnownContainers | None] = lambda: None
    ) -> None:
        self._proc_root = proc_root
        self._containers = known
        self._known: dict[tuple[int, str], Owner] = {}

    def owners(self, pids: Iterable[int]) -> Mapping[int, Owner | None]:
        """Return the owner of each process; None for a foreign one or one that has ended.

        Reads two small files for each; call it in a thread.
        """
        found: dict[int, Owner | None] = {}
        used: dict[tuple[int, str], Owner] = {}
        for pid in set(pids):
            started = self._started(pid)
            if started is None:
                found[pid] = None
                continue
            key = (pid, started)
            owner = self._known.get(key) or self._read(pid)
            found[pid] = owner
            if owner is not None:
                used[key] = owner
        self._known = used
        return found

    def _started(self, pid: int) -> str | None:
        text = self._text(pid, "stat")
        fields = text.rpartition(")")[2].split()
        wanted = _STARTTIME_FIELD - _FIELDS_TO_NAME - 1
        return fields[wanted] if len(fields) > wanted else None

    def _read(self, pid: int) -> Owner | None:
        text, known = self._text(pid, "cgroup"), self._containers()
        return owner_in_cgroup(text) if known is None else known_owner_in_cgroup(text, known)

    def _text(self, pid: int, file: str) -> str:
        try:
            return (self._proc_root / str(pid) / file).read_text(errors="replace")
        except OSError:  # the process has ended, or we may not read it: it has no owner
            return ""
