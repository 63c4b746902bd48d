"""The limits of cgroups that a simulated driver keeps: in a file of each cgroup's folder.

A process on a simulated card is in the cgroup that its file names, and holds no more of a card than
the limit of that. What the real driver adds to the cgroups above is computed here, so that nothing
is ever left there.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin.cards.interface import CardLimits, CardLimitsError, GroupLimits
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from simulator.cards.processes import ProcessFolder, SimulatedProcess

_FILE: Final = "simulated-limits.json"
CONTROLLERS: Final = "cgroup.controllers"


class _WireLimits(msgspec.Struct):
    guaranteed: int = 0
    limit: int | None = None


_decoder: Final = msgspec.json.Decoder(dict[str, _WireLimits])


class SimulatedLimits(CardLimits):
    """Sets and reads limits; a limit below present use is refused.

    Args:
        processes: those on the simulated cards.
    """

    def __init__(self, processes: ProcessFolder) -> None:
        self._processes = processes

    def set(self, card: CardUuid, group: str, limits: GroupLimits) -> None:
        found = _read(Path(group))
        used_mib = self._used_mib(card, group)
        if limits.limit_mib is not None and used_mib > limits.limit_mib:
            raise CardLimitsError(f"{card}: more than that is in use ({group})")
        found[card] = _WireLimits(guaranteed=limits.guaranteed_mib, limit=limits.limit_mib)
        fresh = Path(group) / f"{_FILE}.new"
        fresh.write_bytes(msgspec.json.encode(found))
        fresh.replace(Path(group) / _FILE)

    def read(self, card: CardUuid, group: str) -> GroupLimits:
        stands = _read(Path(group)).get(card, _WireLimits())
        return GroupLimits(
            guaranteed_mib=Mib(_kept(card, Path(group))),
            limit_mib=None if stands.limit is None else Mib(stands.limit),
            used_mib=Mib(self._used_mib(card, group)),
        )

    def _used_mib(self, card: CardUuid, group: str) -> int:
        return sum(
            process.used_mib
            for process in capped(self._processes.read(), card)
            if process.cgroup == group and card in process.cards
        )


def capped(processes: Iterable[SimulatedProcess], card: str) -> tuple[SimulatedProcess, ...]:
    """Return processes with what they hold of a card: the driver refuses more than their limit."""
    return tuple(_capped(process, card) for process in processes)


def _capped(process: SimulatedProcess, card: str) -> SimulatedProcess:
    limit = None
    if process.cgroup:
        with suppress(CardLimitsError):
            limit = _read(Path(process.cgroup)).get(card, _WireLimits()).limit
    return process if limit is None else replace(process, used_mib=min(process.used_mib, limit))


def _kept(card: CardUuid, group: Path) -> int:
    """Return what a cgroup and those in it keep, as the driver sums it up."""
    total = 0
    for folder, _, files in os.walk(group):
        if _FILE in files:
            with suppress(CardLimitsError):
                total += _read(Path(folder)).get(card, _WireLimits()).guaranteed
    return total


def _read(group: Path) -> dict[str, _WireLimits]:
    if not group.is_dir():
        raise CardLimitsError(f"the driver does not know the cgroup {group}")
    try:
        return _decoder.decode((group / _FILE).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CardLimitsError(f"{group / _FILE}: {error}") from error
