"""The processes on AMD's cards: the memory they hold, and their share of each card's time.

Source: the kernel's ``Documentation/gpu/drm-usage-stats.rst``. A process that has opened a card has
a file ``/proc/<pid>/fdinfo/<n>`` with a line for each fact: ``drm-driver``, ``drm-pdev`` (the PCI
address), ``drm-client-id`` (the same for copies of one open file, which count once),
``drm-memory-vram`` or, in newer kernels, ``drm-resident-vram`` (bytes, KiB or MiB), and
``drm-engine-<name>`` (nanoseconds that the engine was busy; it may fall for a moment, and then the
larger value holds).

ROCm's programs put their work into queues of ``/dev/kfd``, past the kernel: the time of these is in
no ``drm-engine`` (``amdgpu_ctx_mgr_usage`` counts the driver's own submissions). So the share of a
process that has ``/dev/kfd`` open is unknown, while its memory is counted: ROCm gives it to the
address space of the card's open file (``kfd_process_device_init_vm``).
"""

import errno
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deviceplugin.cards.interface import CardProcess
from fracgpu.units import BYTES_PER_MIB, Mib

# The files of cards, wherever a container has them.
_CARD_FILE: Final = re.compile(r"/(?:renderD|card)\d+")
_KFD_FILE: Final = re.compile(r"/kfd")
_DRIVER: Final = "amdgpu"
_ENGINES: Final = ("gfx", "compute")
_MEMORY: Final = ("drm-memory-vram", "drm-resident-vram")
_UNITS: Final = {"": 1, "KiB": 1024, "MiB": BYTES_PER_MIB}
_MAX_CHARS: Final = 16_384
_NS_PER_S: Final = 1_000_000_000
_FULL_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One open file of a card; *vram_bytes* is None where the kernel does not report it."""

    address: str
    id: int
    vram_bytes: int | None
    busy_ns: int


@dataclass(slots=True, kw_only=True)
class Scan:
    """The clients of all cards at one moment.

    Attributes:
        clients: by card's address and pid.
        in_queues: processes that may use queues of ROCm.
        complete: every process could be read.
    """

    clients: Mapping[str, Mapping[int, tuple[Client, ...]]] = field(default_factory=dict)
    in_queues: frozenset[int] = frozenset()
    complete: bool = True


def scan(proc_root: Path, *, late: Callable[[], bool]) -> Scan:
    """Return the clients of cards; reads the links of all open files of the node.

    Args:
        proc_root: the host's /proc.
        late: whether it is time to stop; what was found until then is not complete.

    Raises:
        OSError: the processes cannot be listed.
    """
    clients: dict[str, dict[int, tuple[Client, ...]]] = defaultdict(dict)
    in_queues: set[int] = set()
    counted: set[tuple[str, int]] = set()
    complete = True
    names = [entry.name for entry in proc_root.iterdir()]
    for pid in sorted(int(name) for name in names if name.isdecimal()):
        if late():
            complete = False
            break
        try:
            found, queues = _of_process(proc_root / str(pid), late)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):  # it has ended
            continue
        except OSError:
            complete = False
            continue
        if queues:
            in_queues.add(pid)
        for address in {client.address for client in found}:
            # Copies of one open file count for the first process that has one.
            first = {
                client.id: client
                for client in found
                if client.address == address and (address, client.id) not in counted
            }
            counted |= {(address, each) for each in first}
            clients[address][pid] = tuple(first.values())
    return Scan(clients=clients, in_queues=frozenset(in_queues), complete=complete)


def _path_of(link: str) -> str:
    """Return the path of an open file; empty if it is closed, or too long for a card's.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return os.readlink(link).removesuffix(" (deleted)")  # noqa: PTH115
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            return ""
        raise


def _of_process(folder: Path, late: Callable[[], bool]) -> tuple[list[Client], bool]:
    """Return the clients of a process, and whether it has opened ROCm's file."""
    found: list[Client] = []
    queues = False
    links = f"{folder}/fd"
    for name in os.listdir(links):  # noqa: PTH208 - tens of thousands on a node, at each reading
        if late():
            raise TimeoutError
        path = _path_of(f"{links}/{name}")
        if not path.startswith("/"):  # no file: a socket, a pipe and the like
            continue
        name_of_file = path[path.rfind("/") :]
        queues = queues or _KFD_FILE.fullmatch(name_of_file) is not None
        if _CARD_FILE.fullmatch(name_of_file):
            try:
                with (folder / "fdinfo" / name).open(errors="replace") as opened:
                    client = read_client(opened.read(_MAX_CHARS))
            except FileNotFoundError:
                continue
            if client is not None:
                found.append(client)
    return found, queues


def read_client(text: str) -> Client | None:
    """Return what an fdinfo file says of an open card of AMD's; None if it is no such file."""
    facts = dict(_facts(text))
    address, identity = facts.get("drm-pdev", ""), _amount(facts.get("drm-client-id"))
    if facts.get("drm-driver") != _DRIVER or not address or identity is None:
        return None
    memory = (_amount(facts.get(key)) for key in _MEMORY)
    return Client(
        address=address.lower(),
        id=identity,
        vram_bytes=next((each for each in memory if each is not None), None),
        busy_ns=sum(
            (_amount(facts.get(f"drm-engine-{engine}")) or 0)
            // max(1, _amount(facts.get(f"drm-engine-capacity-{engine}")) or 1)
            for engine in _ENGINES
        ),
    )


def _facts(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()


def _amount(text: str | None) -> int | None:
    """Return ``12``, ``12 KiB`` or ``12 ns`` as a number, of bytes or as it stands."""
    number, _, unit = (text or "").partition(" ")
    factor = 1 if unit == "ns" else _UNITS.get(unit.strip())
    if factor is None or not (number.isascii() and number.isdecimal()):
        return None
    return int(number) * factor


class Shares:
    """Turns the busy times of two scans into each process's share of its card's time."""

    def __init__(self) -> None:
        self._busy_ns: Mapping[tuple[str, int], int] = {}
        self._at_s: float | None = None

    def processes(self, scanned: Scan, *, now_s: float) -> Mapping[str, tuple[CardProcess, ...]]:
        """Return the processes of each card by its address, since the scan before.

        After the first scan the shares of all are unknown.
        """
        elapsed_ns = (now_s - self._at_s) * _NS_PER_S if self._at_s is not None else 0.0
        before = self._busy_ns
        # A process that could not be read this time may be there the next time.
        now: dict[tuple[str, int], int] = {} if scanned.complete else dict(before)
        found: dict[str, list[CardProcess]] = defaultdict(list)
        for address, by_pid in scanned.clients.items():
            for pid, clients in sorted(by_pid.items()):
                since_ns = 0
                for client in clients:
                    key = (address, client.id)
                    now[key] = max(client.busy_ns, before.get(key, 0))
                    since_ns += now[key] - before.get(key, 0)
                known = pid not in scanned.in_queues and elapsed_ns > 0
                percent = (
                    min(_FULL_PERCENT, _FULL_PERCENT * since_ns / elapsed_ns) if known else None
                )
                found[address].append(
                    CardProcess(pid=pid, used_mib=_used_mib(clients), sm_percent=percent)
                )
        self._busy_ns, self._at_s = now, now_s
        return {address: tuple(each) for address, each in found.items()}


def held_bytes(scanned: Scan, address: str) -> tuple[int | None, ...] | None:
    """Return the bytes that each process holds of a card; None where not every one is known."""
    if not scanned.complete:
        return None
    return tuple(map(_held, scanned.clients.get(address, {}).values()))


def _held(clients: tuple[Client, ...]) -> int | None:
    total = 0
    for client in clients:
        if client.vram_bytes is None:
            return None
        total += client.vram_bytes
    return total


def _used_mib(clients: tuple[Client, ...]) -> Mib | None:
    held = _held(clients)
    return None if held is None else Mib(held // BYTES_PER_MIB)
