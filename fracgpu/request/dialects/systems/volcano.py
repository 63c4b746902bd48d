"""Volcano: MiB on one card, whole cards, or virtual GPUs; and the variant of Huawei's CCE."""

from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import (
    annotation_field,
    card_count,
    limit_field,
    memory_units,
    percent,
    refuse_both,
    refuse_orphan,
)
from fracgpu.request.dialects.dialect import (
    ONE_CARD,
    Dialect,
    DialectReading,
    ForeignRequest,
    Options,
    PodForDialects,
    keys,
)
from fracgpu.request.dialects.preferences import not_offered
from fracgpu.request.dialects.shapes import CountMemoryCores

MEMORY: Final = "volcano.sh/gpu-memory"
NUMBER: Final = "volcano.sh/gpu-number"
VGPU: Final = CountMemoryCores(
    number="volcano.sh/vgpu-number",
    memory="volcano.sh/vgpu-memory",
    cores="volcano.sh/vgpu-cores",
    memory_percent="volcano.sh/vgpu-memory-percentage",
)
# Source: volcano.sh, user guide "GPU virtualization": a task may require one of two modes.
MODE: Final = "volcano.sh/vgpu-mode"
_HAMI_CORE: Final = "hami-core"
_FAMILY: Final = ("volcano.sh/", "scheduling.volcano.sh/", "scheduling.k8s.io/group-name")
_SCHEDULERS: Final = frozenset({"volcano"})
CCE_MEMORY: Final = "volcano.sh/gpu-mem.128Mi"
CCE_CORES: Final = "volcano.sh/gpu-core.percentage"


def _read(pod: PodForDialects, options: Options) -> DialectReading:
    requests = tuple(
        request for request in (_request(spec, options) for spec in pod.containers) if request
    )
    return DialectReading(requests=requests, warnings=_mode(pod) if requests else ())


def _mode(pod: PodForDialects) -> tuple[str, ...]:
    mode = pod.annotations.get(MODE)
    if mode is not None and mode != _HAMI_CORE:
        raise RequestError(
            field=annotation_field(MODE),
            found=mode,
            wanted=f"'{_HAMI_CORE}'",
            hint="MIG slices are not shares of a card" if mode == "mig" else "",
        )
    return not_offered(
        pod.annotations, {MODE: f"{names.ISOLATION} alone chooses what enforces a share"}
    )


def _request(spec: ContainerSpec, options: Options) -> ForeignRequest | None:
    present = [key for key in (MEMORY, NUMBER, VGPU.number) if key in spec.limits]
    if len(present) > 1:
        first, second = limit_field(present[0], spec), limit_field(present[1], spec)
        why = "they are three ways to ask for one thing"
        refuse_both(first, second, found=spec.limits[present[0]], why=why)
    if MEMORY in spec.limits:
        field = limit_field(MEMORY, spec)
        mib = memory_units(spec.limits[MEMORY], field=field, unit_mib=1)
        _refuse_loose(spec)
        return ForeignRequest(container=spec.name, mib=mib)
    if NUMBER in spec.limits:
        cards = card_count(spec.limits[NUMBER], field=limit_field(NUMBER, spec))
        _refuse_loose(spec)
        return ForeignRequest(container=spec.name, cards=cards, share=ONE_CARD)
    return VGPU.read(spec, unit_mib=options.volcano_memory_factor)


def _refuse_loose(spec: ContainerSpec) -> None:
    for key in (VGPU.memory, VGPU.memory_percent, VGPU.cores):
        if key in spec.limits:
            refuse_orphan(limit_field(key, spec), found=spec.limits[key], needs=VGPU.number)


def _read_cce(pod: PodForDialects, _options: Options) -> DialectReading:
    return DialectReading(
        requests=tuple(request for request in (_cce(spec) for spec in pod.containers) if request)
    )


def _cce(spec: ContainerSpec) -> ForeignRequest | None:
    memory, cores = spec.limits.get(CCE_MEMORY), spec.limits.get(CCE_CORES)
    if memory is None:
        if cores is not None:
            hint = f'write {names.FRACTION}: "{cores}%" for a share of a card'
            refuse_orphan(limit_field(CCE_CORES, spec), found=cores, needs=CCE_MEMORY, hint=hint)
        return None
    mib = memory_units(memory, field=limit_field(CCE_MEMORY, spec), unit_mib=128)
    percents = 0 if cores is None else percent(cores, field=limit_field(CCE_CORES, spec))
    return ForeignRequest(container=spec.name, mib=mib, cores=percents)


VOLCANO: Final = Dialect(
    name="volcano",
    title="Volcano",
    limits=keys(MEMORY, NUMBER, VGPU.number, VGPU.memory, VGPU.memory_percent, VGPU.cores),
    annotations=keys(MODE),
    family=_FAMILY,
    schedulers=_SCHEDULERS,
    read=_read,
)
CCE: Final = Dialect(
    name="cce",
    title="Huawei CCE",
    limits=keys(CCE_MEMORY, CCE_CORES),
    family=_FAMILY,
    schedulers=_SCHEDULERS,
    read=_read_cce,
)
