"""The GPM metrics of a card, over a library whose clock a test moves."""

from types import SimpleNamespace
from typing import Any

import pynvml

from deviceplugin.cards.nvml.calls import NvmlCalls
from deviceplugin.cards.nvml.gpm import GR_ENGINE, METRICS, NvmlGpm
from tests.fakes.clock import VirtualClock
from tests.fakes.nvml import nvml_error


class FakeGpm:
    """The GPM functions; samples are numbers, and what one measures is the time between two."""

    NVMLError = pynvml.NVMLError
    NVML_SUCCESS = pynvml.NVML_SUCCESS
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION

    def __init__(self) -> None:
        self.live: list[int] = []
        self.made = 0
        self.supported = 1
        self.lost = False

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802 - pynvml's name
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in METRICS]
        return SimpleNamespace(metrics=metrics)

    def nvmlGpmQueryDeviceSupport(self, _: Any) -> Any:  # noqa: N802
        return SimpleNamespace(isSupportedDevice=self.supported)

    def nvmlGpmSampleAlloc(self) -> int:  # noqa: N802
        self.made += 1
        self.live.append(self.made)
        return self.made

    def nvmlGpmSampleFree(self, sample: int) -> None:  # noqa: N802
        self.live.remove(sample)

    def nvmlGpmSampleGet(self, _: Any, __: int) -> None:  # noqa: N802
        if self.lost:
            raise nvml_error(pynvml.NVML_ERROR_GPU_IS_LOST)

    def nvmlGpmMetricsGet(self, question: Any) -> Any:  # noqa: N802
        question.metrics[0].value = question.sample2 * 10.0 + question.sample1
        for metric in question.metrics[1:]:
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return question


async def test_each_reading_measures_from_the_one_before() -> None:
    library, clock = FakeGpm(), VirtualClock()
    profile = NvmlGpm(NvmlCalls(library, timeout_s=2.0, clock=clock), clock)

    readings = []
    for _ in range(3):
        readings.append(await profile.read("GPU-a", object()))
        await clock.advance(5)

    assert readings == [{}, {GR_ENGINE: 21.0}, {GR_ENGINE: 32.0}]
    assert library.live == [3]


async def test_two_readings_within_a_second_do_not_measure() -> None:
    library, clock = FakeGpm(), VirtualClock()
    profile = NvmlGpm(NvmlCalls(library, timeout_s=2.0, clock=clock), clock)
    await profile.read("GPU-a", object())
    await clock.advance(0.9)

    assert await profile.read("GPU-a", object()) == {}
    assert library.made == 1


async def test_a_card_that_says_no_is_asked_once() -> None:
    library = FakeGpm()
    library.supported = 0
    clock = VirtualClock()
    profile = NvmlGpm(NvmlCalls(library, timeout_s=2.0, clock=clock), clock)

    assert [await profile.read("GPU-a", object()) for _ in range(2)] == [{}, {}]
    assert not profile.supports("GPU-a")


async def test_no_sample_is_left_behind_when_the_card_is_lost_or_we_end() -> None:
    library, clock = FakeGpm(), VirtualClock()
    profile = NvmlGpm(NvmlCalls(library, timeout_s=2.0, clock=clock), clock)
    await profile.read("GPU-a", object())
    await clock.advance(2)
    library.lost = True

    assert await profile.read("GPU-a", object()) == {}
    assert library.live == [1]

    await profile.close()
    assert library.live == []
