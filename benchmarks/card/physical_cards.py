"""Finds the physical cards of this machine."""

from typing import Any

import pynvml


class NoPhysicalCardError(Exception):
    """This machine has no physical card that can be shared; the text says why."""


def shareable_uuids() -> tuple[str, ...]:
    """Return the UUIDs of the cards that are not in MIG mode, by NVML's index.

    Raises:
        NoPhysicalCardError: there is none.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoPhysicalCardError(f"no physical card: NVML says {error}") from error
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        found = tuple(pynvml.nvmlDeviceGetUUID(handle) for handle in handles if not _mig(handle))
    finally:
        pynvml.nvmlShutdown()
    if not found:
        raise NoPhysicalCardError("no physical card that is not in MIG mode")
    return found


def _mig(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError_NotSupported:
        return False
