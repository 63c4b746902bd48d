"""Limits that NVIDIA's driver keeps per cgroup, since r615."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from deviceplugin.cards.interface import (
    CardHardware,
    CardLimits,
    CardLimitsError,
    GroupLimits,
)
from deviceplugin.enforcement.cgroups import version_problem
from deviceplugin.enforcement.interface import EnforcementError, Enforcer, Limit
from fracgpu.units import Mib

_NOTHING: Final = GroupLimits(guaranteed_mib=Mib(0), limit_mib=None)


class DriverEnforcer(Enforcer):
    """Sets hard and soft limit through the cards' driver.

    The driver adds each soft limit to all cgroups above, and leaves it there when the cgroup is
    removed: so it is taken away before.

    Args:
        limits: the driver's calls.
        root: where the node's cgroups are; the driver knows cgroups by their full path.
    """

    name = "driver"
    keeps_guarantees = False  # soft limits have an effect with MPS only

    def __init__(self, limits: CardLimits, root: Path) -> None:
        self._limits = limits
        self._root = root

    def why_not(self, card: CardHardware) -> str | None:
        if (problem := version_problem(self._root)) is not None:
            return problem
        try:
            self._limits.read(card.card.uuid, str(self._root))
        except CardLimitsError as error:
            return str(error)
        return None

    def apply(self, group: str, card: CardHardware, limit: Limit) -> None:
        wanted = GroupLimits(guaranteed_mib=limit.guaranteed_mib, limit_mib=limit.limit_mib)
        self._set(group, card, wanted)

    def read(self, group: str, card: CardHardware) -> GroupLimits:
        try:
            return self._limits.read(card.card.uuid, self._full(group))
        except CardLimitsError as error:
            raise EnforcementError(str(error)) from error

    def kept(self, group: str, card: CardHardware) -> Mib | None:
        return self.read(group, card).guaranteed_mib

    def keep(self, group: str, card: CardHardware, mib: Mib) -> None:
        stands = self.read(group, card)
        self._set(group, card, replace(stands, guaranteed_mib=mib))

    def release(self, group: str, card: CardHardware) -> None:
        self._set(group, card, _NOTHING)

    def _set(self, group: str, card: CardHardware, wanted: GroupLimits) -> None:
        try:
            self._limits.set(card.card.uuid, self._full(group), wanted)
        except CardLimitsError as error:
            raise EnforcementError(str(error)) from error

    def _full(self, group: str) -> str:
        return f"{self._root}{group}"
