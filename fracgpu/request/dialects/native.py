"""Foreign requests written in our own request language."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from fracgpu import names
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.dialect import DialectReading, ForeignRequest
from fracgpu.request.language import ITEMS

_GRAIN: Final = 10**9


def items_of(request: ForeignRequest) -> dict[str, str]:
    """Return the request of one container, key by key."""
    items = {}
    if request.share is not None:
        items[names.FRACTION] = decimal(request.share)
    else:
        assert request.mib is not None, "a request has a share or MiB"
        items[names.MEMORY] = f"{request.mib}Mi"
    if request.limit_share is not None:
        items[names.FRACTION_LIMIT] = decimal(request.limit_share)
    if request.limit_mib is not None:
        items[names.MEMORY_LIMIT] = f"{request.limit_mib}Mi"
    if request.cores:
        items[names.CORES] = str(request.cores)
    if request.cards > 1:
        items[names.CARDS] = str(request.cards)
    return items


def decimal(share: Fraction) -> str:
    """Return a share as an exact decimal; it has at most nine decimals."""
    grains = share * _GRAIN
    assert grains.denominator == 1, f"{share} has more than nine decimals"
    if share == 1:
        return "1"
    return f"0.{int(grains):09d}".rstrip("0")


def pod_keys(reading: DialectReading) -> dict[str, str]:
    """Return the annotations for the settings that a dialect has for the whole pod."""
    annotations = {}
    if reading.models:
        annotations[names.MODEL] = ", ".join(reading.models)
    if reading.strategy is not None:
        annotations[names.PLACEMENT] = reading.strategy.value
    return annotations


def annotations_of(
    items: Mapping[str, Mapping[str, str]], containers: Sequence[ContainerSpec]
) -> dict[str, str]:
    """Return annotations for the items of containers: without names if there is one container."""
    joined = {}
    for key in ITEMS:
        pairs = [
            (spec.name, items[spec.name][key])
            for spec in containers
            if key in items.get(spec.name, {})
        ]
        if pairs:
            bare = len(containers) == 1
            joined[key] = (
                pairs[0][1] if bare else ", ".join(f"{name}={item}" for name, item in pairs)
            )
    return joined


def spelled(reading: DialectReading, containers: Sequence[ContainerSpec]) -> str:
    """Return a reading as a user would write it: ``fracgpu.io/memory: "3000Mi"``."""
    items = {request.container: items_of(request) for request in reading.requests}
    annotations = {**annotations_of(items, containers), **pod_keys(reading)}
    return ", ".join(f'{key}: "{text}"' for key, text in annotations.items())
