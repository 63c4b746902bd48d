"""Tencent's vcuda (tkestack) and qGPU: core below 100 with memory, else whole cards."""

from dataclasses import replace
from typing import Final

from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import limit_field, percent, refuse_both, refuse_orphan
from fracgpu.request.dialects.dialect import (
    Dialect,
    DialectReading,
    ForeignRequest,
    Options,
    PodForDialects,
    keys,
)
from fracgpu.request.dialects.preferences import not_offered
from fracgpu.request.dialects.shapes import CoreAndMemory

VCUDA_CORE: Final = "tencent.com/vcuda-core"
VCUDA_MEMORY: Final = "tencent.com/vcuda-memory"
VCUDA_BURST: Final = "tencent.com/vcuda-core-limit"
QGPU_CORE: Final = "tke.cloud.tencent.com/qgpu-core"
QGPU_MEMORY: Final = "tke.cloud.tencent.com/qgpu-memory"
QGPU_GREEDY: Final = "tke.cloud.tencent.com/qgpu-core-greedy"

_VCUDA: Final = CoreAndMemory(core=VCUDA_CORE, memory=VCUDA_MEMORY, unit_mib=256)
_QGPU: Final = CoreAndMemory(core=QGPU_CORE, memory=QGPU_MEMORY, unit_mib=1024, step=5)


def _read_vcuda(pod: PodForDialects, _options: Options) -> DialectReading:
    pairs = [_VCUDA.read(spec) for spec in pod.containers]
    requests = tuple(request for request, _ in pairs if request)
    if not requests:
        return DialectReading()
    why = {VCUDA_BURST: "FracGPU grants the request and no burst above it"}
    warnings = [text for _, texts in pairs for text in texts]
    return DialectReading(
        requests=requests, warnings=(*warnings, *not_offered(pod.annotations, why))
    )


def _read_qgpu(pod: PodForDialects, _options: Options) -> DialectReading:
    pairs = [_qgpu(spec) for spec in pod.containers]
    return DialectReading(
        requests=tuple(request for request, _ in pairs if request),
        warnings=tuple(text for _, texts in pairs for text in texts),
    )


def _qgpu(spec: ContainerSpec) -> tuple[ForeignRequest | None, tuple[str, ...]]:
    """Parse one container; a greedy core is best effort, as no core is in our language."""
    greedy = spec.limits.get(QGPU_GREEDY)
    if greedy is None:
        return _QGPU.read(spec)
    field = limit_field(QGPU_GREEDY, spec)
    if QGPU_CORE in spec.limits:
        why = "a guaranteed core is not best effort"
        refuse_both(field, limit_field(QGPU_CORE, spec), found=greedy, why=why)
    if QGPU_MEMORY not in spec.limits:
        refuse_orphan(field, found=greedy, needs=QGPU_MEMORY)
    percent(greedy, field=field)
    request, warnings = _QGPU.read(spec)
    return (replace(request, cores=0) if request else None), warnings


VCUDA: Final = Dialect(
    name="vcuda",
    title="tkestack vcuda",
    limits=keys(VCUDA_CORE, VCUDA_MEMORY),
    annotations=keys(VCUDA_BURST),
    family=("tencent.com/vcuda-", "tencent.com/gpu-", "tencent.com/predicate-"),
    read=_read_vcuda,
)
QGPU: Final = Dialect(
    name="qgpu",
    title="Tencent qGPU",
    limits=keys(QGPU_CORE, QGPU_MEMORY, QGPU_GREEDY),
    family=("tke.cloud.tencent.com/qgpu-",),
    read=_read_qgpu,
)
