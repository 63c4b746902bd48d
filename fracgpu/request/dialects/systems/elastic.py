"""Elastic GPU: core and memory in limits under two prefixes; its claims are not supported."""

import re
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import annotation_field, limit_field, refuse_both
from fracgpu.request.dialects.dialect import (
    Dialect,
    DialectReading,
    ForeignRequest,
    Options,
    PodForDialects,
    keys,
)
from fracgpu.request.dialects.shapes import CoreAndMemory

_PREFIXES: Final = ("elasticgpu.io", "elasticgpu.com")
# Source: elastic-gpu-agent: one kubelet device is 1 MiB; the examples of its README suggest
# otherwise.
_SHAPES: Final = tuple(
    CoreAndMemory(core=f"{prefix}/gpu-core", memory=f"{prefix}/gpu-memory", unit_mib=1)
    for prefix in _PREFIXES
)
_CLAIMS: Final = (r"elasticgpu\.io/egpuc-[a-z0-9-]+", r"egpuc\.elasticgpu\.io/[a-z0-9-]+")


def _read(pod: PodForDialects, _options: Options) -> DialectReading:
    for key in sorted(pod.annotations):
        if any(re.fullmatch(claim, key, re.ASCII) for claim in _CLAIMS):
            raise RequestError(
                field=annotation_field(key),
                found=pod.annotations[key],
                wanted="no ElasticGPUClaim: FracGPU has no such objects",
                hint=f"write {names.FRACTION} or {names.MEMORY} instead",
            )
    pairs = [_request(spec) for spec in pod.containers]
    return DialectReading(
        requests=tuple(request for request, _ in pairs if request),
        warnings=tuple(text for _, texts in pairs for text in texts),
    )


def _request(spec: ContainerSpec) -> tuple[ForeignRequest | None, tuple[str, ...]]:
    one, other = (
        [key for key in sorted(spec.limits) if key.startswith(prefix)] for prefix in _PREFIXES
    )
    if one and other:
        first, second = limit_field(one[0], spec), limit_field(other[0], spec)
        refuse_both(first, second, found=spec.limits[one[0]], why="one spelling is enough")
    return _SHAPES[1 if other else 0].read(spec)


ELASTIC: Final = Dialect(
    name="elastic-gpu",
    title="Elastic GPU",
    limits=keys(*(key for shape in _SHAPES for key in (shape.core, shape.memory))),
    annotations=keys(patterns=_CLAIMS),
    family=("elasticgpu.io/", "elasticgpu.com/", "egpuc.elasticgpu.io/"),
    read=_read,
)
