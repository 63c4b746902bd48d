"""NVML as ``pynvml`` offers it, over cards that a test describes; errors are pynvml's own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1024 * 1024


def nvml_error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


@dataclass(slots=True, kw_only=True)
class FakeNvmlCard:
    """One card; *failing* is function name → NVML error code."""

    uuid: str
    name: str = "NVIDIA A30"
    total_mib: int = 24576
    reserved_mib: int = 500
    used_mib: int = 100
    gpu: int = 40
    memory: int = 10
    mig: int = 0
    remap_failed: int = 0
    # pid → bytes or None, as the compute process list has it
    processes: dict[int, int | None] = field(default_factory=dict)
    # (pid, time stamp in microseconds, SM percent)
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    failing: dict[str, int] = field(default_factory=dict)


class FakeNvml:
    """The functions of ``pynvml`` that the agent calls."""

    def __init__(self, *cards: FakeNvmlCard) -> None:
        self.cards = list(cards)
        self.failing: dict[str, int] = {}
        self.calls: list[str] = []
        self.before_call: Callable[[str], None] = lambda _: None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in (
            "nvmlMemory_v2",
            "nvmlEventTypeXidCriticalError",
        ):
            return getattr(pynvml, name)  # a constant, a structure, the error type

        def function(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.before_call(name)
            if name in self.failing:
                raise nvml_error(self.failing[name])
            card = args[0] if args and isinstance(args[0], FakeNvmlCard) else None
            if card is not None and name in card.failing:
                raise nvml_error(card.failing[name])
            return _ANSWERS[name](self, *args, **kwargs)

        function.__name__ = name
        return function


def _by_uuid(nvml: FakeNvml, uuid: str) -> FakeNvmlCard:
    for card in nvml.cards:
        if card.uuid == uuid:
            return card
    raise nvml_error(pynvml.NVML_ERROR_NOT_FOUND)


def _by_index(nvml: FakeNvml, index: int) -> FakeNvmlCard:
    return nvml.cards[index]


def _memory(_: FakeNvml, card: FakeNvmlCard, version: int | None = None) -> Any:
    total, used, kept = (mib * MIB for mib in (card.total_mib, card.used_mib, card.reserved_mib))
    if version is None:  # version 1 counts the driver's own part as used
        return SimpleNamespace(total=total, used=used + kept, free=total - used - kept)
    return SimpleNamespace(total=total, used=used, free=total - used - kept, reserved=kept)


def _processes(_: FakeNvml, card: FakeNvmlCard) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes.items()]


def _utilization(_: FakeNvml, card: FakeNvmlCard, since_us: int) -> list[Any]:
    new = [
        SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent)
        for pid, at, percent in card.samples
        if at > since_us
    ]
    if not new:
        raise nvml_error(pynvml.NVML_ERROR_NOT_FOUND)
    return new


def _field(_: FakeNvml, card: FakeNvmlCard, fields: list[int]) -> list[Any]:
    value = SimpleNamespace(uiVal=51)
    return [SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=value) for _ in fields]


def _lacking(*_: Any) -> Any:
    raise nvml_error(NOT_SUPPORTED)


def _fixed(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": _fixed(None),
    "nvmlShutdown": _fixed(None),
    "nvmlSystemGetDriverVersion": _fixed("580.65.06"),
    "nvmlDeviceGetCount": lambda nvml: len(nvml.cards),
    "nvmlDeviceGetHandleByIndex": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceGetUUID": lambda _, card: card.uuid,
    "nvmlDeviceGetName": lambda _, card: card.name,
    "nvmlDeviceGetMigMode": lambda _, card: [card.mig, card.mig],
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetRemappedRows": lambda _, card: (1, 2, 0, card.remap_failed),
    "nvmlDeviceGetNumaNodeId": _fixed(0),
    "nvmlDeviceGetPciInfo": _fixed(SimpleNamespace(busId="00000000:17:00.0")),
    "nvmlDeviceGetMinorNumber": lambda nvml, card: nvml.cards.index(card),
    "nvmlDeviceGetTopologyCommonAncestor": _fixed(30),
    "nvmlDeviceGetUtilizationRates": lambda _, card: SimpleNamespace(
        gpu=card.gpu, memory=card.memory
    ),
    "nvmlDeviceGetEncoderUtilization": _fixed([0, 1000]),
    "nvmlDeviceGetDecoderUtilization": _fixed([0, 1000]),
    "nvmlDeviceGetPowerUsage": _fixed(150_500),
    "nvmlDeviceGetTemperature": _fixed(48),
    "nvmlDeviceGetTotalEnergyConsumption": _fixed(123_456),
    "nvmlDeviceGetClockInfo": _fixed(1410),
    "nvmlDeviceGetPcieReplayCounter": _fixed(3),
    "nvmlDeviceGetFieldValues": _field,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _fixed([]),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _fixed([]),
    "nvmlDeviceGetProcessUtilization": _utilization,
    "nvmlDeviceGetArchitecture": _fixed(pynvml.NVML_DEVICE_ARCH_AMPERE),
    "nvmlDeviceGetBrand": _fixed(pynvml.NVML_BRAND_NVIDIA),
    "nvmlDeviceGetVirtualizationMode": _fixed(pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE),
    "nvmlDeviceGetTotalEccErrors": _fixed(0),
    "nvmlDeviceGetViolationStatus": _lacking,
    "nvmlDeviceGetNvLinkState": _lacking,
    "nvmlDeviceGetPcieThroughput": _lacking,
    "nvmlGpmQueryDeviceSupport": _lacking,
    "nvmlEventSetCreate": _lacking,
}
