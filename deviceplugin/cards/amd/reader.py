"""Implements `deviceplugin.cards.interface` with the files of the kernel's driver ``amdgpu``."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from deviceplugin.cards.amd import fdinfo, kfd, sysfs
from deviceplugin.cards.call_thread import CallThread, StuckError, settled
from deviceplugin.cards.interface import (
    CardHardware,
    CardList,
    CardProcess,
    Cards,
    CardSample,
    CardSamples,
    CardsUnavailableError,
    DeviceNode,
    SkippedCard,
    unhealthy,
)
from deviceplugin.cards.reserve import LearntReserve, Memory
from fracgpu.cards.card import Card, CardUuid
from fracgpu.units import BYTES_PER_MIB, Mib
from process.clock import Clock, SystemClock

log = structlog.get_logger()

_T = TypeVar("_T")

_COMMON: Final = "kfd"
_NODE, _PROCESSES = "amd-node", "amd-processes"
# A scan of the processes stops by itself before its caller stops waiting for it.
_SCAN_PART: Final = 0.8
# Distances are only compared, with each other and in the numbers that NVIDIA's cards have: up to 9
# by links of their own, then 40 for one socket and 50 for two.
_MOST_HOPS: Final = 9
_ONE_SOCKET, _TWO_SOCKETS = 40, 50


class AmdReader(Cards):
    """Cards of the driver ``amdgpu``; the files of each are read in a thread of its own.

    Args:
        timeout_s: limit of reading the files of one card, and of one scan of the processes.
        dev_root: where the host's device files are.
        sys_root: where the host's ``/sys`` is.
        proc_root: where the host's ``/proc`` is.
        clock: for durations.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        dev_root: Path = Path("/dev"),
        sys_root: Path = Path("/sys"),
        proc_root: Path = Path("/proc"),
        clock: Clock | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._dev_root = dev_root
        self._sys_root = sys_root
        self._proc_root = proc_root
        self._clock = clock or SystemClock()
        self._threads: dict[str, CallThread] = {}
        self._shares = fdinfo.Shares()
        self._reserves: dict[str, LearntReserve] = {}
        self._devices: Mapping[str, sysfs.Device] = {}
        self._hardware: Mapping[str, CardHardware] = {}  # by PCI address
        self._problem: str | None = None

    async def list_cards(self) -> CardList:
        try:
            devices, nodes, driver, common = await self._call(_NODE, self._look)
        except (OSError, StuckError) as error:
            raise CardsUnavailableError(f"amdgpu: {error}") from error
        if not devices:
            raise CardsUnavailableError("amdgpu: no card uses this driver")
        scanned = None
        if not all(self._reserve(device.address).settled for device in devices):
            scanned = await self._scan()
        looks = await self._of_each(devices, _inspect)
        found: dict[str, CardHardware] = {}
        left_out: dict[str, SkippedCard] = {}
        for address, look in looks.items():
            uuid, answer = (None, look) if isinstance(look, Exception) else look
            if uuid is not None and isinstance(answer, sysfs.Found):
                found[address] = self._identified(address, uuid, answer, nodes, scanned, common)
            else:
                self._add_unread(address, uuid, answer, found, left_out)
        _leave_out_twins(found, left_out)
        self._devices = {device.address: device for device in devices if device.address in found}
        # Programs number the cards in ROCm's order.
        order = sorted(found, key=lambda address: _order(address, _node(found[address], nodes)))
        cards = tuple(
            replace(
                found[address],
                driver=driver,
                card=replace(
                    found[address].card,
                    index=index,
                    links=_links(found[address], found.values(), nodes),
                ),
            )
            for index, address in enumerate(order)
        )
        self._hardware = dict(zip(order, cards, strict=True))
        return CardList(
            cards=cards,
            left_out=tuple(left_out[address] for address in sorted(left_out)),
        )

    async def read(self) -> CardSamples:
        hardware, devices = self._hardware, tuple(self._devices.values())
        answers = await self._of_each(devices, _measure)
        scanned = await self._scan() if devices else fdinfo.Scan()
        processes: Mapping[str, tuple[CardProcess, ...]] = {}
        if scanned is not None:
            processes = self._shares.processes(scanned, now_s=self._clock.monotonic())
        samples: dict[CardUuid, CardSample] = {}
        errors: dict[CardUuid, str] = {}
        for address, answer in answers.items():
            uuid = hardware[address].card.uuid
            if isinstance(answer, Exception):
                errors[uuid] = str(answer)
                continue
            (total, used), figures = answer
            memory = self._memory(address, total, used, scanned)
            samples[uuid] = CardSample(
                figures=replace(
                    figures,
                    total_mib=memory.total // BYTES_PER_MIB,
                    used_mib=memory.used // BYTES_PER_MIB,
                    free_mib=memory.free // BYTES_PER_MIB,
                    reserved_mib=_mib_up(memory.reserved),
                ),
                processes=processes.get(address, ()),
                processes_known=scanned is not None and scanned.complete,
            )
        return CardSamples(samples=samples, errors=errors)

    async def close(self) -> None:
        """Do nothing: no file is kept open."""

    # -- the cards -----------------------------------------------------------------------------

    def _look(
        self,
    ) -> tuple[
        tuple[sysfs.Device, ...], Mapping[int, kfd.ComputeNode], str, tuple[DeviceNode, ...]
    ]:
        there = (self._dev_root / _COMMON).exists()
        return (
            sysfs.devices(self._sys_root),
            kfd.compute_nodes(self._sys_root),
            sysfs.driver_version(self._sys_root),
            (DeviceNode(path=f"/dev/{_COMMON}"),) if there else (),
        )

    def _add_unread(
        self,
        address: str,
        uuid: CardUuid | None,
        answer: "_Answer | Exception",
        found: dict[str, CardHardware],
        left_out: dict[str, SkippedCard],
    ) -> None:
        """Add a card that was not read: unhealthy if it is known and not partitioned since."""
        known = self._hardware.get(address)
        shareable = not isinstance(answer, sysfs.NotShareableError)
        if shareable and known is not None and uuid in (None, known.card.uuid):
            found[address] = unhealthy(known, f"it does not answer: {answer}")
            return
        reason = f"it does not answer: {answer}" if shareable else str(answer)
        left_out[address] = SkippedCard(uuid=uuid or f"AMD card at {address}", reason=reason)

    def _identified(
        self,
        address: str,
        uuid: CardUuid,
        found: sysfs.Found,
        nodes: Mapping[int, kfd.ComputeNode],
        scanned: fdinfo.Scan | None,
        common: tuple[DeviceNode, ...],
    ) -> CardHardware:
        memory = self._memory(address, found.total_bytes, found.used_bytes, scanned)
        node = nodes.get(found.render)
        return CardHardware(
            card=Card(
                uuid=uuid,
                index=0,
                model=found.model,
                total_mib=Mib(memory.total // BYTES_PER_MIB),
                reserved_mib=_mib_up(memory.reserved) or Mib(0),
                numa_node=found.numa_node,
            ),
            pci_bus_id=address,
            device_nodes=(DeviceNode(path=f"/dev/dri/renderD{found.render}"),),
            common_nodes=common,
            family=node.family if node is not None else "",
            compute_units=node.compute_units if node is not None else 0,
        )

    def _memory(self, address: str, total: int, used: int, scanned: fdinfo.Scan | None) -> Memory:
        """Return a card's memory with the driver's part, which it does not report, apart."""
        used = min(used, total)
        memory = Memory(total=total, used=used, free=total - used)
        reserve = self._reserve(address)
        if scanned is not None:
            reserve.learn(memory, fdinfo.held_bytes(scanned, address))
        return reserve.apart(memory)

    def _reserve(self, address: str) -> LearntReserve:
        return self._reserves.setdefault(address, LearntReserve())

    # -- calls ---------------------------------------------------------------------------------

    async def _of_each(
        self, devices: Sequence[sysfs.Device], read: Callable[[sysfs.Device], _T]
    ) -> Mapping[str, _T | Exception]:
        """Read all cards at once; return by address what *read* returns or raises."""
        calls = {
            device.address: partial(self._call, device.address, read, device) for device in devices
        }
        return await settled(calls, sysfs.UnreadableError, StuckError)

    async def _scan(self) -> fdinfo.Scan | None:
        """Return the processes on the cards; None where they cannot be listed."""
        ends_s = self._clock.monotonic() + _SCAN_PART * self._timeout_s
        try:
            scanned = await self._call(
                _PROCESSES,
                fdinfo.scan,
                self._proc_root,
                late=lambda: self._clock.monotonic() > ends_s,
            )
        except (OSError, StuckError) as error:
            self._set_problem(str(error))
            return None
        self._set_problem(None if scanned.complete else "not every process can be read")
        return scanned

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.warning("card_processes_not_read", reason=problem)
        self._problem = problem

    async def _call(self, name: str, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        thread = self._threads.setdefault(name, CallThread(f"amd-{name}"))
        return await thread.call(function, *args, timeout_s=self._timeout_s, **kwargs)


_Answer = sysfs.Found | sysfs.NotShareableError | sysfs.UnreadableError


def _inspect(device: sysfs.Device) -> tuple[CardUuid | None, _Answer]:
    """Return a card's name, None if it cannot be read, and what else there is to say of it."""
    uuid: CardUuid | None = None
    try:
        uuid = CardUuid(f"AMD-{sysfs.unique_id(device)}")
        return uuid, sysfs.inspect(device)
    except (sysfs.NotShareableError, sysfs.UnreadableError) as error:
        return uuid, error


def _measure(device: sysfs.Device) -> tuple[tuple[int, int], Any]:
    return sysfs.memory(device), sysfs.metrics(device)


def _leave_out_twins(found: dict[str, CardHardware], left_out: dict[str, SkippedCard]) -> None:
    """Leave out the cards with a name that another one has too, shared or not."""
    names = [hardware.card.uuid for hardware in found.values()]
    count = Counter([*names, *(skipped.uuid for skipped in left_out.values())])
    for address, hardware in tuple(found.items()):
        if count[hardware.card.uuid] > 1:
            del found[address]
            left_out[address] = SkippedCard(
                uuid=f"{hardware.card.uuid} at {address}",
                reason="another card has the same unique_id, so that they cannot be told apart",
            )


def _node(hardware: CardHardware, nodes: Mapping[int, kfd.ComputeNode]) -> kfd.ComputeNode | None:
    """Return ROCm's node of a card, or None if it has none."""
    (own,) = hardware.device_nodes
    return nodes.get(int(own.path.rpartition("renderD")[2]))


def _order(address: str, node: kfd.ComputeNode | None) -> tuple[float, str]:
    """Return what cards are ordered by; one without a node comes last."""
    return (math.inf if node is None else node.number), address


def _links(
    hardware: CardHardware,
    others: Iterable[CardHardware],
    nodes: Mapping[int, kfd.ComputeNode],
) -> Mapping[CardUuid, int]:
    """Return a card's distance to others: links between them are nearest, then one socket."""
    own, found = _node(hardware, nodes), dict[CardUuid, int]()
    for other in others:
        if other is hardware:
            continue
        there = _node(other, nodes)
        hops = own.hops.get(there.number) if own is not None and there is not None else None
        places = (hardware.card.numa_node, other.card.numa_node)
        if hops is not None:
            found[other.card.uuid] = min(hops, _MOST_HOPS)
        elif None not in places:
            found[other.card.uuid] = _ONE_SOCKET if places[0] == places[1] else _TWO_SOCKETS
    return found


def _mib_up(amount: int | None) -> Mib | None:
    return None if amount is None else Mib(-(-amount // BYTES_PER_MIB))
