"""KAI: a share or MiB for one container in pod annotations, or memory by container name."""

import re
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError, listed
from fracgpu.k8s.container import ContainerKind
from fracgpu.request.dialects.amounts import (
    annotation_field,
    card_count,
    memory_units,
    part_of_card,
    refuse_both,
    refuse_orphan,
)
from fracgpu.request.dialects.dialect import (
    Dialect,
    DialectReading,
    ForeignRequest,
    Options,
    PodForDialects,
    keys,
)
from fracgpu.request.dialects.preferences import not_offered
from fracgpu.spelling import did_you_mean, room_for_list
from fracgpu.units import parse_memory_mib

FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER: Final = "gpu-fraction-container-name"
MPS: Final = "mps"
SCHEDULER: Final = "kai-scheduler"
WHOLE_GPU: Final = "nvidia.com/gpu"

# Source: KAI-Scheduler issue 1505: memory by container name, and a higher limit for bursts.
_BY_NAME: Final = r"nvidia\.cdi\.k8s\.io/([a-z0-9-]+)\.gpu-memory\.(request|limit)"
_PORTION: Final = r"kai\.scheduler/container\.([a-z0-9-]+)\.gpu-memory\.portion\.limit"
_BY_NAME_KEY: Final = re.compile(_BY_NAME, re.ASCII)
_PORTION_KEY: Final = re.compile(_PORTION, re.ASCII)

_NO_BURST: Final = "FracGPU grants the request and no burst above it"


def _read(pod: PodForDialects, _options: Options) -> DialectReading:
    one = _one_container(pod)
    named, warnings = _by_name(pod)
    for request in named:
        if one is not None and request.container == one.container:
            key, text = one.sources[0], pod.annotations[one.sources[0]]
            refuse_both(annotation_field(key), annotation_field(request.sources[0]), found=text)
    requests = (*([one] if one else []), *named)
    if not requests:
        return DialectReading()
    portions = {key: _NO_BURST for key in sorted(pod.annotations) if _PORTION_KEY.fullmatch(key)}
    why = f"{names.ISOLATION} alone chooses what enforces a share"
    mps = {} if pod.annotations.get(MPS) == "false" else {MPS: why}
    more = not_offered(pod.annotations, {**mps, **portions})
    return DialectReading(requests=requests, warnings=(*warnings, *more))


def _one_container(pod: PodForDialects) -> ForeignRequest | None:
    fraction, memory = pod.annotations.get(FRACTION), pod.annotations.get(MEMORY)
    if fraction is None and memory is None:
        for key in (DEVICES, CONTAINER):
            if key in pod.annotations:
                refuse_orphan(
                    annotation_field(key),
                    found=pod.annotations[key],
                    needs=f"{FRACTION} or {MEMORY}",
                )
        return None
    if fraction is not None and memory is not None:
        refuse_both(annotation_field(FRACTION), annotation_field(MEMORY), found=fraction)
    cards = 1
    if DEVICES in pod.annotations:
        cards = card_count(pod.annotations[DEVICES], field=annotation_field(DEVICES))
    share = mib = None
    if fraction is not None:
        share = part_of_card(fraction, field=annotation_field(FRACTION))
    elif memory is not None:
        mib = memory_units(memory, field=annotation_field(MEMORY), unit_mib=1)
    present = (FRACTION, MEMORY, DEVICES, CONTAINER)
    return ForeignRequest(
        container=_chosen(pod),
        cards=cards,
        share=share,
        mib=mib,
        sources=tuple(key for key in present if key in pod.annotations),
    )


def _chosen(pod: PodForDialects) -> str:
    name = pod.annotations.get(CONTAINER)
    if name is not None:
        return _known(pod, name, field=annotation_field(CONTAINER), found=name)
    for spec in pod.containers:
        if spec.kind is ContainerKind.APP:
            return spec.name
    raise RequestError(
        field=annotation_field(FRACTION if FRACTION in pod.annotations else MEMORY),
        found="a pod without containers",
        wanted="a pod with at least one container",
    )


def _by_name(pod: PodForDialects) -> tuple[tuple[ForeignRequest, ...], tuple[str, ...]]:
    texts: dict[str, dict[str, str]] = {}
    for key, text in pod.annotations.items():
        match = _BY_NAME_KEY.fullmatch(key)
        if match:
            name = _known(pod, match[1], field=annotation_field(key), found=text)
            texts.setdefault(name, {})[match[2]] = text
    requests = []
    warnings: list[str] = []
    for spec in pod.containers:
        if spec.name in texts:
            request, burst = _named_request(spec.name, texts[spec.name])
            requests.append(request)
            warnings += burst
    return tuple(requests), tuple(warnings)


def _named_request(container: str, texts: dict[str, str]) -> tuple[ForeignRequest, tuple[str, ...]]:
    stem = f"nvidia.cdi.k8s.io/{container}.gpu-memory"
    request_key, limit_key = f"{stem}.request", f"{stem}.limit"
    if "request" not in texts:
        refuse_orphan(annotation_field(limit_key), found=texts["limit"], needs=request_key)
    mib = parse_memory_mib(texts["request"], field=annotation_field(request_key))
    if "limit" not in texts:
        return ForeignRequest(container=container, mib=mib, sources=(request_key,)), ()
    limit_mib = parse_memory_mib(texts["limit"], field=annotation_field(limit_key))
    if limit_mib < mib:
        raise RequestError(
            field=annotation_field(limit_key),
            found=texts["limit"],
            wanted=f"at least the request, {texts['request']}",
        )
    burst = (
        not_offered({limit_key: texts["limit"]}, {limit_key: _NO_BURST}) if limit_mib > mib else ()
    )
    return ForeignRequest(container=container, mib=mib, sources=(request_key, limit_key)), burst


def _known(pod: PodForDialects, name: str, *, field: str, found: str) -> str:
    known = [spec.name for spec in pod.containers]
    if name in known:
        return name
    hint = did_you_mean(name, known)
    raise RequestError(
        field=field,
        found=found,
        wanted="the name of one of this pod's containers: "
        + listed(known, limit=room_for_list(hint)),
        hint=hint,
    )


KAI: Final = Dialect(
    name="kai",
    title="KAI",
    annotations=keys(FRACTION, MEMORY, DEVICES, CONTAINER, MPS, patterns=(_BY_NAME, _PORTION)),
    read=_read,
    rivals=frozenset({WHOLE_GPU}),
    quiet=frozenset({MPS}),
    family=("kai.scheduler/", "runai/", "run.ai/", "runai-", "pod-group-name", "gpu-fraction-"),
    schedulers=frozenset({SCHEDULER}),
)
