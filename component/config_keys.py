"""The keys of the ConfigMap."""

from collections.abc import Iterable
from typing import Final

from fracgpu.spelling import unknown_keys

ADMISSION: Final = "admission"

PLACEMENT: Final = "placement"

REBALANCER: Final = "rebalancer"

POOLS: Final = "pools"

WIRING: Final = "wiring"

KEYS: Final = (ADMISSION, PLACEMENT, POOLS, REBALANCER, WIRING)


def refuse_unknown_keys(keys: Iterable[str]) -> None:
    """Raise if the ConfigMap has keys that no role reads.

    Raises:
        ValueError: the message lists the first few, the likely meant keys, and how many more.
    """
    mistakes = unknown_keys(keys, KEYS)
    if mistakes:
        raise ValueError(f"{'; '.join(mistakes)}; want only {', '.join(KEYS)}")
