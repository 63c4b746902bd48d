"""Alibaba's gpushare and its successor in ACK: ``aliyun.com/gpu-mem`` and ``gpu-count``."""

from typing import Final

from fracgpu.container import ContainerSpec
from fracgpu.dialects.amounts import card_count, evenly, limit_field, memory_units
from fracgpu.dialects.model import (
    WHOLE,
    Ask,
    Dialect,
    MemoryUnit,
    Options,
    PodPieces,
    Reading,
    keys,
)
from fracgpu.units import Mib

MEMORY: Final = "aliyun.com/gpu-mem"
COUNT: Final = "aliyun.com/gpu-count"

_UNIT_MIB: Final = {MemoryUnit.MIB: 1, MemoryUnit.GIB: 1024}


def _read(pod: PodPieces, options: Options) -> Reading:
    asks = [_ask(spec, pod.labels.get(COUNT), options) for spec in pod.containers]
    return Reading(asks=tuple(ask for ask in asks if ask))


def _ask(spec: ContainerSpec, label: str | None, options: Options) -> Ask | None:
    """Read one container; beside a count, gpu-mem is the total over that many cards.

    Source: Alibaba Cloud ACK, "multi-GPU sharing": N units over M cards give N/M on each, and N/M
    must be whole. There the count is a label of the pod.
    """
    count, memory = spec.limits.get(COUNT), spec.limits.get(MEMORY)
    if count is None and memory is None:
        return None
    field = limit_field(COUNT, spec)
    if count is None and label is not None:
        count, field = label, f"label {COUNT}"
    cards = 1 if count is None else card_count(count, field=field)
    if memory is None:
        return Ask(container=spec.name, cards=cards, share=WHOLE)
    unit_mib = _UNIT_MIB[options.gpushare_unit]
    field = limit_field(MEMORY, spec)
    total_mib = memory_units(memory, field=field, unit_mib=unit_mib)
    unit = f"a number of {options.gpushare_unit.value}"
    units = evenly(total_mib // unit_mib, cards=cards, field=field, found=memory, unit=unit)
    return Ask(container=spec.name, cards=cards, mib=Mib(units * unit_mib))


GPUSHARE: Final = Dialect(
    name="gpushare", title="Alibaba gpushare", limits=keys(MEMORY, COUNT), read=_read
)
