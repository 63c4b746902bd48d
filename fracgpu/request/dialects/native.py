"""An ask in the words of our own request language: what a pod would say that had written it so."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from fracgpu import names
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.dialect import DialectReading, ForeignRequest

# The keys whose value is one item for each container.
ITEM_KEYS: Final = (names.FRACTION, names.MEMORY, names.CORES, names.CARDS)

_GRAIN: Final = 10**9


def items_of(request: ForeignRequest) -> dict[str, str]:
    """Write what one container asks, key by key."""
    items = {}
    if request.share is not None:
        items[names.FRACTION] = decimal(request.share)
    else:
        assert request.mib is not None, "an ask has a share or MiB"
        items[names.MEMORY] = f"{request.mib}Mi"
    if request.cores:
        items[names.CORES] = str(request.cores)
    if request.cards > 1:
        items[names.CARDS] = str(request.cards)
    return items


def decimal(share: Fraction) -> str:
    """Write a share of at most nine decimals exactly."""
    grains = share * _GRAIN
    assert grains.denominator == 1, f"{share} has more than nine decimals"
    if share == 1:
        return "1"
    return f"0.{int(grains):09d}".rstrip("0")


def pod_keys(reading: DialectReading) -> dict[str, str]:
    """Write what a dialect says of the whole pod."""
    said = {}
    if reading.models:
        said[names.MODEL] = ", ".join(reading.models)
    if reading.strategy is not None:
        said[names.PLACEMENT] = reading.strategy.value
    return said


def annotations_of(
    items: Mapping[str, Mapping[str, str]], containers: Sequence[ContainerSpec]
) -> dict[str, str]:
    """Join containers' items to annotations: bare in a pod of one container, else in pairs."""
    joined = {}
    for key in ITEM_KEYS:
        pairs = [
            (it.name, items[it.name][key]) for it in containers if key in items.get(it.name, {})
        ]
        if pairs:
            bare = len(containers) == 1
            joined[key] = pairs[0][1] if bare else ", ".join(f"{n}={item}" for n, item in pairs)
    return joined


def spelled(reading: DialectReading, containers: Sequence[ContainerSpec]) -> str:
    """Write a whole reading as a user would type it: ``fracgpu.io/memory: "3000Mi"``."""
    items = {request.container: items_of(request) for request in reading.requests}
    said = {**annotations_of(items, containers), **pod_keys(reading)}
    return ", ".join(f'{key}: "{text}"' for key, text in said.items())
