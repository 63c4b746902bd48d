"""nos: ``nvidia.com/gpu-10gb: 1`` is one MPS slice of that size."""

import re
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import limit_field, memory_units, refuse_both
from fracgpu.request.dialects.dialect import (
    Dialect,
    DialectReading,
    ForeignRequest,
    Options,
    PodForDialects,
    keys,
)

_SLICE: Final = r"nvidia\.com/gpu-(\d{1,6})gb"
_SLICE_KEY: Final = re.compile(_SLICE, re.ASCII)


def _read(pod: PodForDialects, _options: Options) -> DialectReading:
    return DialectReading(
        requests=tuple(
            request for request in (_request(spec) for spec in pod.containers) if request
        )
    )


def _request(spec: ContainerSpec) -> ForeignRequest | None:
    present = sorted(key for key in spec.limits if _SLICE_KEY.fullmatch(key))
    if not present:
        return None
    key = present[0]
    field, text = limit_field(key, spec), spec.limits[key]
    if len(present) > 1:
        why = "a container gets one slice"
        refuse_both(field, limit_field(present[1], spec), found=text, why=why)
    if text != "1":
        # nos does not define whether two slices are on one card or on two, and we do not guess.
        raise RequestError(
            field=field,
            found=text,
            wanted="'1', one slice for a container",
            hint=f"use {names.MEMORY} with {names.CARDS} for several cards",
        )
    match = _SLICE_KEY.fullmatch(key)
    assert match, "the list has only slices"
    mib = memory_units(match[1], field=f"the size in {field}", unit_mib=1024)
    return ForeignRequest(container=spec.name, mib=mib)


NOS: Final = Dialect(
    name="nos",
    title="nos",
    limits=keys(patterns=(_SLICE,)),
    family=("nvidia.com/gpu-", "nos.nebuly.com/"),
    schedulers=frozenset({"nos-scheduler"}),
    read=_read,
)
