"""Alibaba's gpushare and its successor in ACK: ``aliyun.com/gpu-mem``, ``gpu-count`` and cores."""

from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import (
    card_count,
    evenly,
    limit_field,
    memory_units,
    percent,
    refuse_orphan,
)
from fracgpu.request.dialects.dialect import (
    ONE_CARD,
    Dialect,
    DialectReading,
    ForeignRequest,
    MemoryUnit,
    Options,
    PodForDialects,
    keys,
)
from fracgpu.units import Mib

MEMORY: Final = "aliyun.com/gpu-mem"
COUNT: Final = "aliyun.com/gpu-count"
# Available on ACK nodes labelled ack.node.gpu.schedule=core_mem, beside gpu-mem.
CORES: Final = "aliyun.com/gpu-core.percentage"

_UNIT_MIB: Final = {MemoryUnit.MIB: 1, MemoryUnit.GIB: 1024}


def _read(pod: PodForDialects, options: Options) -> DialectReading:
    requests = [_request(spec, pod.labels.get(COUNT), options) for spec in pod.containers]
    return DialectReading(requests=tuple(request for request in requests if request))


def _request(spec: ContainerSpec, label: str | None, options: Options) -> ForeignRequest | None:
    """Parse one container; with a count, gpu-mem is the total over that many cards.

    Source: Alibaba Cloud ACK, "multi-GPU sharing": N units over M cards give N/M on each, and N/M
    must be whole. There the count is a label of the pod.
    """
    count, memory = spec.limits.get(COUNT), spec.limits.get(MEMORY)
    if count is None and memory is None:
        if CORES in spec.limits:
            refuse_orphan(limit_field(CORES, spec), found=spec.limits[CORES], needs=MEMORY)
        return None
    where: str = limit_field(COUNT, spec)
    if count is None and label is not None:
        count, where = label, f"label {COUNT}"
    cards = 1 if count is None else card_count(count, field=where)
    cores = _cores(spec, cards)
    if memory is None:
        return ForeignRequest(container=spec.name, cards=cards, share=ONE_CARD, cores=cores)
    unit_mib = _UNIT_MIB[options.gpushare_unit]
    field = limit_field(MEMORY, spec)
    total_mib = memory_units(memory, field=field, unit_mib=unit_mib)
    unit = f"a number of {options.gpushare_unit.value}"
    units = evenly(total_mib // unit_mib, cards=cards, field=field, found=memory, unit=unit)
    return ForeignRequest(container=spec.name, cards=cards, mib=Mib(units * unit_mib), cores=cores)


def _cores(spec: ContainerSpec, cards: int) -> int:
    text = spec.limits.get(CORES)
    if text is None:
        return 0
    field = limit_field(CORES, spec)
    if cards > 1:
        # The documentation does not say whether it is for each card, or a total as gpu-mem is.
        raise RequestError(
            field=field,
            found=text,
            wanted=f"none beside {cards} cards: not defined whether it is for each or a total",
            hint=f"write {names.MEMORY}, {names.CARDS} and {names.CORES} instead",
        )
    return percent(text, field=field)


GPUSHARE: Final = Dialect(
    name="gpushare",
    title="Alibaba gpushare",
    limits=keys(MEMORY, COUNT, CORES),
    family=("aliyun.com/gpu-", "scheduler.framework.gpushare", "gpushare.alibabacloud.com/"),
    labels=frozenset({COUNT}),
    read=_read,
)
