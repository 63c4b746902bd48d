"""What enforces a limit of a card's memory for a container: the driver or the kernel."""

from dataclasses import dataclass
from typing import Protocol

from deviceplugin.cards.interface import CardHardware, GroupLimits
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib


class EnforcementError(Exception):
    """A limit cannot be set, read or taken away; the text says why."""


class LimitMissingError(EnforcementError):
    """A promised limit is known not to stand, and cannot be set again."""


class ResizePendingError(EnforcementError):
    """A granted size cannot be set now; the limit before it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a container may use of one card: *guaranteed_mib* of it are kept for the container."""

    card: CardUuid
    guaranteed_mib: Mib
    limit_mib: Mib


class Enforcer(Protocol):
    """Limits all processes of a cgroup together. Every call blocks, for a limited time."""

    @property
    def name(self) -> str:
        """What people know it as: ``driver`` or ``kernel``."""
        ...

    @property
    def keeps_guarantees(self) -> bool:
        """Whether a container gets what it is guaranteed although others have borrowed it."""
        ...

    def why_not(self, card: CardHardware) -> str | None:
        """Return why it cannot limit *card* on this node, or None if it can."""
        ...

    def apply(self, group: str, card: CardHardware, limit: Limit) -> None:
        """Set the limit of the cgroup *group*, a path below the root of the cgroups.

        Raises:
            EnforcementError: it is not set.
        """
        ...

    def read(self, group: str, card: CardHardware) -> GroupLimits:
        """Return what stands.

        Raises:
            EnforcementError: it cannot be read.
        """
        ...

    def kept(self, group: str, card: CardHardware) -> Mib | None:
        """Return what a cgroup keeps for all that are in it; None if nothing has to add up.

        Raises:
            EnforcementError: it cannot be read.
        """
        ...

    def keep(self, group: str, card: CardHardware, mib: Mib) -> None:
        """Set what a cgroup keeps for all that are in it.

        Raises:
            EnforcementError: it is not set.
        """
        ...

    def release(self, group: str, card: CardHardware) -> None:
        """Return what is kept for the cgroup, which is about to go.

        Raises:
            EnforcementError: it is not given back.
        """
        ...
