"""Measured load, as the real Prometheus of the demo tells it."""

from collections.abc import Mapping
from typing import Final

from rebalancer.usage.prometheus import NoAnswer, Prometheus

_PERCENT: Final = 100.0
# Device lines only; per-pod lines carry a pod's name.
_BUSY: Final = 'max by (UUID) (DCGM_FI_DEV_GPU_UTIL{pod=""})'


class MeasuredHeat:
    """Asks Prometheus; None means that it did not answer."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus

    async def busy_ratio_by_card(self) -> Mapping[str, float] | None:
        """Give each card's share of busy time (0..1) by UUID."""
        try:
            samples = await self._prometheus.ask(_BUSY)
        except NoAnswer:
            return None
        return {it.labels["UUID"]: it.value / _PERCENT for it in samples if "UUID" in it.labels}
