"""NVML as ``pynvml`` offers it, over cards that a test describes; errors are pynvml's own."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1024 * 1024


def nvml_error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


@dataclass(slots=True, kw_only=True)
class FakeNvmlCard:
    """One healthy card, on which nothing runs."""

    uuid: str
    total_mib: int = 24576
    reserved_mib: int = 500
    used_mib: int = 100


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
    "nvmlDeviceGetName": _fixed("NVIDIA A30"),
    "nvmlDeviceGetMigMode": _fixed([0, 0]),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetRemappedRows": _fixed((1, 2, 0, 0)),
    "nvmlDeviceGetNumaNodeId": _fixed(0),
    "nvmlDeviceGetPciInfo": _fixed(SimpleNamespace(busId="00000000:17:00.0")),
    "nvmlDeviceGetMinorNumber": lambda nvml, card: nvml.cards.index(card),
    "nvmlDeviceGetTopologyCommonAncestor": _fixed(30),
    "nvmlDeviceGetUtilizationRates": _fixed(SimpleNamespace(gpu=40, memory=10)),
    "nvmlDeviceGetEncoderUtilization": _fixed([0, 1000]),
    "nvmlDeviceGetDecoderUtilization": _fixed([0, 1000]),
    "nvmlDeviceGetPowerUsage": _fixed(150_500),
    "nvmlDeviceGetTemperature": _fixed(48),
    "nvmlDeviceGetTotalEnergyConsumption": _fixed(123_456),
    "nvmlDeviceGetClockInfo": _fixed(1410),
    "nvmlDeviceGetPcieReplayCounter": _fixed(3),
    "nvmlDeviceGetFieldValues": _field,
    "nvmlDeviceGetComputeRunningProcesses_v3": _fixed([]),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _fixed([]),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _fixed([]),
    "nvmlDeviceGetProcessUtilization": _fixed([]),
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
