"""Measures how busy the parts of a card are, by GPM, which cards have since Hopper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from deviceplugin.cards.nvml.calls import NvmlCalls
from process.clock import Clock

# NVML measures between two samples that are at least this far apart.
_APART_S: Final = 1.0
_NAME: Final = "gpm"

GR_ENGINE, SM_ACTIVE, SM_OCCUPANCY, TENSOR, DRAM = 1, 2, 3, 5, 10
FP64, FP32, FP16, PCIE_TX, PCIE_RX = 11, 12, 13, 20, 21
METRICS: Final = (
    GR_ENGINE, SM_ACTIVE, SM_OCCUPANCY, TENSOR, DRAM, FP64, FP32, FP16, PCIE_TX, PCIE_RX
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    at_s: float
    handle: Any


class NvmlGpm:
    """Keeps one sample of each card, to measure from it to the next.

    Args:
        calls: the way into the library.
        clock: measures the time between two samples.
    """

    def __init__(self, calls: NvmlCalls, clock: Clock) -> None:
        self._calls = calls
        self._nvml = calls.library
        self._clock = clock
        self._supported: set[str] = set()
        self._last: dict[str, _Sample] = {}

    async def read(self, card: str, handle: Any) -> Mapping[int, float]:
        """Return what was measured since the last sample, by metric id.

        Empty at the first reading, on cards without GPM, within a second of the last sample, and
        where the library returns an error. Metrics that the card lacks are absent.

        Raises:
            StuckError: the card does not answer in time.
            NVMLError: the driver as a whole is lost.
        """
        if not await self._is_supported(card, handle):
            return {}
        try:
            return await self._read(card, handle)
        except self._nvml.NVMLError as error:
            self._calls.missed(card, _NAME, error)
            return {}

    async def _read(self, card: str, handle: Any) -> Mapping[int, float]:
        last = self._last.get(card)
        if last is not None and self._clock.monotonic() - last.at_s < _APART_S:
            return {}
        now = await self._take(handle)
        try:
            return await self._measure(last, now) if last is not None else {}
        finally:
            self._last[card] = now
            if last is not None:
                await self._calls.call(self._nvml.nvmlGpmSampleFree, last.handle)

    def supports(self, card: str) -> bool:
        """Report whether *card* has GPM, as its last reading found."""
        return card in self._supported

    async def close(self) -> None:
        """Free the samples, while the library is still open."""
        last, self._last = self._last, {}
        self._supported.clear()
        for sample in last.values():
            await self._calls.call(self._nvml.nvmlGpmSampleFree, sample.handle)

    async def _is_supported(self, card: str, handle: Any) -> bool:
        if self._calls.lacks(card, _NAME):
            self._supported.discard(card)
        elif card not in self._supported:
            query = self._nvml.nvmlGpmQueryDeviceSupport
            answer = await self._calls.figure(card, _NAME, query, handle)
            if answer is not None and answer.isSupportedDevice:
                self._supported.add(card)
            elif answer is not None:
                self._calls.drop(card, _NAME, reason="not on this card")
        return card in self._supported

    async def _take(self, handle: Any) -> _Sample:
        sample = await self._calls.call(self._nvml.nvmlGpmSampleAlloc)
        try:
            await self._calls.call(self._nvml.nvmlGpmSampleGet, handle, sample)
        except self._nvml.NVMLError:
            await self._calls.call(self._nvml.nvmlGpmSampleFree, sample)
            raise
        return _Sample(at_s=self._clock.monotonic(), handle=sample)

    async def _measure(self, first: _Sample, second: _Sample) -> Mapping[int, float]:
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        request.sample1, request.sample2 = first.handle, second.handle
        for position, metric in enumerate(METRICS):
            request.metrics[position].metricId = metric
        answer = await self._calls.call(nvml.nvmlGpmMetricsGet, request)
        return {
            metric.metricId: float(metric.value)
            for metric in answer.metrics[: len(METRICS)]
            if metric.nvmlReturn == nvml.NVML_SUCCESS
        }
