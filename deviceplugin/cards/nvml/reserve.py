"""A card's memory in one form, and the driver's own part of it where the driver does not tell.

Version 1 of ``nvmlDeviceGetMemoryInfo`` gives as used the "sum of Reserved and Allocated device
memory"; version 2 tells the reserved part. A note in newer headers has it that version 2's ``used``
"also includes" that part, and drivers were seen where it does not (``nvml.h``, ``nvmlMemory_t`` and
``nvmlMemory_v2_t``).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

# What a driver was seen to keep is about 1 GiB of 80, and 0.4 of 16: far below this part of a card.
# What is in use beyond it by nobody is not the driver's.
_LARGEST_PART: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A card's memory in bytes; *used* is without *reserved*, where that is known."""

    total: int
    used: int
    free: int
    reserved: int | None = None


def told_memory(memory: Any) -> Memory:
    """Read what NVML gave, version 2 where it has ``reserved``, else version 1."""
    reserved: int | None = getattr(memory, "reserved", None)
    used = int(memory.used)
    if reserved and used + memory.free + reserved - memory.total > reserved // 2:
        used -= reserved  # the three add up to more than there is: one stands in another
    return Memory(total=memory.total, used=used, free=memory.free, reserved=reserved)


class LearntReserve:
    """Learns what the driver keeps of one card: the least that is in use by no process.

    What it takes for the driver's is taken from what may be handed out, and what it does not is
    counted as used by nobody known; either way it is not free. So an error costs no pod its memory.
    """

    def __init__(self) -> None:
        self._bytes: int | None = None
        self._seen_empty = False
        self._told = False

    def forget(self) -> None:
        """Learn anew: the driver may be another one now."""
        self._bytes, self._seen_empty, self._told = None, False, False

    def told(self, reserved: int) -> None:
        """Take notice of what the driver itself says: there is nothing to learn any more."""
        self._bytes, self._told = reserved, True

    @property
    def settled(self) -> bool:
        """Whether a reading beside processes can teach nothing more."""
        return self._seen_empty or self._told

    def learn(self, memory: Memory, held: Collection[int | None] | None) -> None:
        """Take notice of a reading of version 1.

        Args:
            memory: the reading.
            held: bytes of each process on the card, None for one that is not told; None where the
                driver lists no processes, so that all that is in use may be theirs.
        """
        if self._told or (held is not None and None in held):
            return
        rest = memory.used - sum(it or 0 for it in held or ())
        empty = held is not None and not held
        if not 0 <= rest <= memory.total // _LARGEST_PART or (self._seen_empty and not empty):
            return
        if self._bytes is None or self._seen_empty < empty or rest < self._bytes:
            self._bytes = rest
        self._seen_empty = self._seen_empty or empty

    def apart(self, memory: Memory) -> Memory:
        """Tell the driver's part from what is in use, as version 2 does, once it is known."""
        if self._bytes is None:
            return memory
        used = max(0, memory.used - self._bytes)
        return Memory(total=memory.total, used=used, free=memory.free, reserved=self._bytes)
