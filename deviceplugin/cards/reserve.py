"""A card's memory, with the driver's own part, learnt where the driver does not report it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fracgpu.units import BYTES_PER_MIB, MAX_MIB

# Drivers were seen to reserve 1 GiB of 80, and 0.4 of 16: far below this part of a card. If more is
# in use by no process, it is not the driver's.
_LARGEST_PART: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A card's memory in bytes; *used* is without *reserved*, where that is known."""

    total: int
    used: int
    free: int
    reserved: int | None = None

    @property
    def is_possible(self) -> bool:
        """Whether a card can have it: a lost one reads as all ones, and some drivers say worse."""
        parts = (self.used, self.free, self.reserved or 0)
        return 0 <= min(parts) <= max(parts) <= self.total <= MAX_MIB * BYTES_PER_MIB


class LearntReserve:
    """Learns what the driver reserves of one card: the least memory in use by no process.

    Memory that counts as the driver's is not shared; memory that does not counts as foreign. Either
    way it is not free, so a wrong estimate takes no memory from a pod.
    """

    def __init__(self) -> None:
        self._bytes: int | None = None
        self._was_empty = False
        self._reported = False

    def set_reported(self, reserved: int) -> None:
        """Set what the driver itself reports: there is nothing to learn any more."""
        self._bytes, self._reported = reserved, True

    @property
    def settled(self) -> bool:
        """Whether a reading while processes run can no longer change the result."""
        return self._was_empty or self._reported

    def learn(self, memory: Memory, held: Collection[int | None] | None) -> None:
        """Learn from a reading without the driver's part.

        Args:
            memory: the reading.
            held: bytes of each process on the card, None for one that is not reported; None where
                the driver lists no processes, so that all memory in use may be theirs.
        """
        if self._reported or (held is not None and None in held):
            return
        rest = memory.used - sum(used or 0 for used in held or ())
        empty = held is not None and not held
        if not 0 <= rest <= memory.total // _LARGEST_PART or (self._was_empty and not empty):
            return
        if self._bytes is None or self._was_empty < empty or rest < self._bytes:
            self._bytes = rest
        self._was_empty = self._was_empty or empty

    def apart(self, memory: Memory) -> Memory:
        """Return *memory* with the driver's part apart from ``used``, once it is known."""
        if self._bytes is None:
            return memory
        used = max(0, memory.used - self._bytes)
        return Memory(total=memory.total, used=used, free=memory.free, reserved=self._bytes)
