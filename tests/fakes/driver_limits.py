"""A model of the limits that NVIDIA's driver r615 keeps per cgroup, its odd sides included."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deviceplugin.cards.interface import CardLimits, CardLimitsError, GroupLimits
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib

Key = tuple[CardUuid, str]


@dataclass(slots=True, kw_only=True)
class DriverModel(CardLimits):
    """Adds each soft limit to all cgroups above; one that is removed leaves there what it had.

    The C stand-in for NVIDIA's library does the same, which ``test_limits.py`` compares.

    Attributes:
        root: the folder of the cgroups.
        used_mib: what each uses on each card.
        troubles: an error in place of the next answers, by card.
        lost: how many settings from now on have no effect, although the driver takes them.
        on_set: called with each setting.
        on_read: called before each reading.
    """

    root: str
    used_mib: dict[Key, int] = field(default_factory=dict)
    troubles: dict[CardUuid, str] = field(default_factory=dict)
    lost: int = 0
    on_set: Callable[[CardUuid, str, GroupLimits], None] = lambda *_: None
    on_read: Callable[[CardUuid, str], None] = lambda *_: None
    _kept: dict[Key, int] = field(default_factory=dict)
    _limits: dict[Key, int] = field(default_factory=dict)

    def make(self, group: str) -> None:
        """Create a cgroup and those above it."""
        Path(group).mkdir(parents=True, exist_ok=True)

    def remove(self, group: str) -> None:
        """Remove a cgroup without cgroups in it; what it had stays counted above it."""
        Path(group).rmdir()
        for kept in (self._kept, self._limits):
            for key in [key for key in kept if key[1] == group]:
                del kept[key]

    def set(self, card: CardUuid, group: str, limits: GroupLimits) -> None:
        self._check(card, group)
        self.on_set(card, group, limits)
        if self.lost:
            self.lost -= 1
            return
        if limits.limit_mib is not None and self.used_mib.get((card, group), 0) > limits.limit_mib:
            raise CardLimitsError(f"{card}: more than that is in use ({group})")
        self._limits.pop((card, group), None)
        if limits.limit_mib is not None:
            self._limits[card, group] = limits.limit_mib
        added = limits.guaranteed_mib - self._kept.get((card, group), 0)
        while group != self.root:
            self._kept[card, group] = self._kept.get((card, group), 0) + added
            group = group.rpartition("/")[0]

    def read(self, card: CardUuid, group: str) -> GroupLimits:
        self.on_read(card, group)
        self._check(card, group)
        limit = self._limits.get((card, group))
        return GroupLimits(
            guaranteed_mib=Mib(self._kept.get((card, group), 0)),
            limit_mib=None if limit is None else Mib(limit),
            used_mib=Mib(self.used_mib.get((card, group), 0)),
        )

    def _check(self, card: CardUuid, group: str) -> None:
        if (trouble := self.troubles.get(card)) is not None:
            raise CardLimitsError(f"{card}: {trouble} ({group})")
        if not Path(group).is_dir():
            raise CardLimitsError(f"{card}: the driver does not know the cgroup ({group})")
