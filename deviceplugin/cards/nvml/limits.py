"""A cgroup's limits of a card's memory, which NVIDIA's driver enforces since r615."""

from typing import Any, Final

from deviceplugin.cards.call_thread import CallThread, StuckError
from deviceplugin.cards.interface import CardLimits, CardLimitsError, GroupLimits
from deviceplugin.cards.nvml.calls import error_kind
from fracgpu.cards.card import CardUuid
from fracgpu.units import BYTES_PER_MIB, Mib

# The longest wait of a container's start for one call: a runtime waits two seconds for all of them.
_LONGEST_S: Final = 0.7
_REASONS: Final = {
    "FunctionNotFound": "the driver does not limit cgroups; NVIDIA's r615 is the first that does",
    "NotSupported": "the driver does not limit cgroups on this card, as with MIG",
    "NoPermission": "the driver lets only root limit cgroups",
    "NotFound": "the driver does not know the cgroup",
    "InvalidArgument": "the driver does not accept the cgroup or its limits",
    "InUse": "more than that is in use",
}


class NvmlLimits(CardLimits):
    """Calls each card in a thread of its own, so that one that hangs delays no other.

    Args:
        library: ``pynvml``, or something with its functions; initialised by others.
        timeout_s: limit of one call of NVML.
    """

    def __init__(self, library: Any, *, timeout_s: float) -> None:
        self._nvml = library
        self._timeout_s = min(timeout_s, _LONGEST_S)
        self._no_limit: Final[int] = library.NVML_DEVICE_MEMORY_LIMIT_MAX
        self._threads: dict[CardUuid, CallThread] = {}

    def set(self, card: CardUuid, group: str, limits: GroupLimits) -> None:
        self._call(self._set, card, group, limits)

    def read(self, card: CardUuid, group: str) -> GroupLimits:
        answer: GroupLimits = self._call(self._read, card, group)
        return answer

    def _call(self, function: Any, card: CardUuid, group: str, *args: Any) -> Any:
        thread = self._threads.setdefault(card, CallThread(f"nvml-limits-{card}"))
        try:
            return thread.wait(function, card, group, *args, timeout_s=self._timeout_s)
        except StuckError as error:
            raise CardLimitsError(f"{card}: NVML hangs: {error}") from error
        except self._nvml.NVMLError as error:
            reason = _REASONS.get(error_kind(error), str(error))
            raise CardLimitsError(f"{card}: {reason} ({group})") from error

    def _set(self, card: CardUuid, group: str, limits: GroupLimits) -> None:
        handle = self._nvml.nvmlDeviceGetHandleByUUID(card)
        wire = self._nvml.c_nvmlSetMemoryLimits_v1_t()
        wire.nameSpace = group.encode()
        wire.softLimit = limits.guaranteed_mib * BYTES_PER_MIB
        limit_mib = limits.limit_mib
        wire.hardLimit = self._no_limit if limit_mib is None else limit_mib * BYTES_PER_MIB
        self._nvml.nvmlDeviceSetMemoryLimits_v1(handle, wire)

    def _read(self, card: CardUuid, group: str) -> GroupLimits:
        handle = self._nvml.nvmlDeviceGetHandleByUUID(card)
        wire = self._nvml.c_nvmlGetMemoryLimits_v1_t()
        wire.nameSpace = group.encode()
        self._nvml.nvmlDeviceGetMemoryLimits_v1(handle, wire)
        limit = wire.hardLimit
        return GroupLimits(
            guaranteed_mib=Mib(wire.softLimit // BYTES_PER_MIB),
            limit_mib=None if limit == self._no_limit else Mib(limit // BYTES_PER_MIB),
            used_mib=Mib(-(-wire.currentUsed // BYTES_PER_MIB)),
        )
