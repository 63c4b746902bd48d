"""Measured load comes from a real Prometheus, and no answer is not zero."""

from pathlib import Path

from rebalancer.usage.prometheus import Prometheus
from simulator.demo.observer import MeasuredHeat
from simulator.envtest.ports import free_ports
from simulator.envtest.prometheus import RealPrometheus


async def test_a_prometheus_that_knows_no_card_says_so(tmp_path: Path) -> None:
    async with (
        RealPrometheus.start(tmp_path, {}) as real,
        Prometheus(real.url, limit_s=60, limit_bytes=1_000_000) as asked,
    ):
        assert await MeasuredHeat(asked).busy_ratio_by_card() == {}


async def test_silence_is_not_an_empty_answer() -> None:
    (port,) = free_ports(1)

    async with Prometheus(f"http://127.0.0.1:{port}", limit_s=1, limit_bytes=1000) as asked:
        assert await MeasuredHeat(asked).busy_ratio_by_card() is None
