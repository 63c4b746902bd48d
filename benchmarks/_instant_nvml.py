"""NVML that answers at once, in the shapes of pynvml: what is left is what our reader costs."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import pynvml

_MIB: Final = 1024 * 1024
_NOW_US: Final = 1_700_000_000_000_000  # not ahead of the machine's clock


class InstantNvml:
    """Cards without GPM, each with as many busy processes.

    Args:
        cards: how many.
        processes: how many on each card.
    """

    def __init__(self, *, cards: int, processes: int) -> None:
        self._cards = cards
        self._reads = 0
        listed = [SimpleNamespace(pid=100 + it, usedGpuMemory=_MIB) for it in range(processes)]
        memory = SimpleNamespace(total=80_000 * _MIB, used=_MIB, free=_MIB, reserved=_MIB)
        field = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=50))
        self._processes = processes
        self._answers: Mapping[str, Any] = {
            "nvmlSystemGetDriverVersion": "580.65.06",
            "nvmlDeviceGetCount": cards,
            "nvmlDeviceGetName": "NVIDIA A100",
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:17:00.0"),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50, memory=20),
            "nvmlDeviceGetEncoderUtilization": [0, 0],
            "nvmlDeviceGetDecoderUtilization": [0, 0],
            "nvmlDeviceGetFieldValues": [field],
            "nvmlDeviceGetComputeRunningProcesses_v3": listed,
            "nvmlDeviceGetGraphicsRunningProcesses_v3": [],
            "nvmlDeviceGetMPSComputeRunningProcesses_v3": [],
            "nvmlDeviceGetViolationStatus": SimpleNamespace(violationTime=0),
            "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=0),
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in (
            "nvmlMemory_v2",
            "nvmlEventTypeXidCriticalError",
        ):
            return getattr(pynvml, name)
        return self._function(name)

    def _function(self, name: str) -> Callable[..., Any]:
        if name == "nvmlDeviceGetHandleByIndex":
            return lambda index: index
        if name == "nvmlDeviceGetUUID":
            return lambda handle: f"GPU-{handle}"
        if name == "nvmlDeviceGetHandleByUUID":
            return lambda uuid: int(uuid.rpartition("-")[2])
        if name == "nvmlDeviceGetProcessUtilization":
            return self._samples
        if name in ("nvmlEventSetCreate", "nvmlDeviceGetNvLinkState"):
            return _not_supported
        answer = self._answers.get(name, 1)
        return lambda *_, **__: answer

    def _samples(self, _: Any, __: int) -> list[Any]:
        self._reads += 1
        at_us = _NOW_US + self._reads
        return [
            SimpleNamespace(pid=100 + it, timeStamp=at_us, smUtil=2)
            for it in range(self._processes)
        ]


def _not_supported(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
