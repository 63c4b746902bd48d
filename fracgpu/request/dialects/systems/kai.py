"""KAI: a share or MiB for one container in pod annotations, or memory by container name.

Sources of the keys by container name: KAI-Scheduler 0.18, pkg/common/constants and
pkg/common/resources (a limit alone is also the request; gpu-fraction-num-devices counts for them;
admission writes the request beside gpu-memory), and before that the proposal in its issue 1505.
"""

import re
from dataclasses import replace
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError, listed
from fracgpu.k8s.container import app_containers
from fracgpu.request.dialects.amounts import (
    annotation_field,
    card_count,
    memory_units,
    part_of_card,
    refuse_below,
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
# Its own, and that of Run:ai, which it comes from and which reads the same keys. Source of the
# second: NVIDIA Run:ai 3.0, "Setting the Default Scheduler".
SCHEDULERS: Final = frozenset({"kai-scheduler", "runai-scheduler"})
WHOLE_GPU: Final = "nvidia.com/gpu"

# As shipped, and as it was proposed.
_BY_NAME: Final = (
    r"(nvidia\.com/container\.|nvidia\.cdi\.k8s\.io/)([a-z0-9-]+)\.(gpu-memory\.(?:request|limit))"
)
_SHIPPED: Final = r"nvidia\.com/container\.([a-z0-9-]+)\.(gpu-[a-z-]+\.[a-z-]+)"
_PORTION: Final = r"kai\.scheduler/container\.([a-z0-9-]+)\.gpu-memory\.portion\.limit"
_SHIPPED_KEY: Final = re.compile(_SHIPPED, re.ASCII)
_BY_NAME_KEY: Final = re.compile(_BY_NAME, re.ASCII)
_PORTION_KEY: Final = re.compile(_PORTION, re.ASCII)

_REQUEST, _LIMIT, _MODE = "gpu-memory.request", "gpu-memory.limit", "gpu-compute.mode"
_SETTINGS: Final = (_REQUEST, _LIMIT, _MODE)
_TIME_SLICING: Final = "time-slicing"
_MODES: Final = (_TIME_SLICING, "sm-sharing")

_ISOLATION: Final = f"{names.ISOLATION} alone chooses what enforces a share"
_NO_BURST: Final = "FracGPU grants the request and no burst above it"


def _read(pod: PodForDialects, options: Options) -> DialectReading:
    modes = _modes(pod)
    named, warnings = _by_name(pod, burst=options.burst)
    one = _one_container(pod, beside=bool(named))
    for request in named:
        if one is not None and request.container == one.container:
            if request.mib != one.mib:
                key, text = one.sources[0], pod.annotations[one.sources[0]]
                refuse_both(annotation_field(key), annotation_field(request.sources[0]), found=text)
            one = None
    portions = {key: _NO_BURST for key in sorted(pod.annotations) if _PORTION_KEY.fullmatch(key)}
    if options.burst and one is not None and one.share is not None:
        one, granted = _with_portion(pod, one)
        portions.pop(granted, None)
    requests = (*([one] if one else []), *named)
    if not requests:
        return DialectReading(warnings=not_offered(pod.annotations, modes))
    mps = {} if pod.annotations.get(MPS) == "false" else {MPS: _ISOLATION}
    more = not_offered(pod.annotations, {**mps, **portions, **modes})
    return DialectReading(requests=requests, warnings=(*warnings, *more))


def _with_portion(pod: PodForDialects, request: ForeignRequest) -> tuple[ForeignRequest, str]:
    """Return a request with its limit as a share of the card, and the key of that, if it has one.

    Raises:
        RequestError: the limit is no share of a card, or below the request.
    """
    key = f"kai.scheduler/container.{request.container}.gpu-memory.portion.limit"
    text = pod.annotations.get(key)
    if text is None or request.share is None:
        return request, ""
    limit_share = part_of_card(text, field=annotation_field(key), up_to_one=True)
    asked = pod.annotations[FRACTION]
    refuse_below(limit_share, request.share, key=key, found=text, asked=asked)
    more = limit_share if limit_share > request.share else None
    return replace(request, limit_share=more, sources=(*request.sources, key)), key


def _modes(pod: PodForDialects) -> dict[str, str]:
    """Return the compute modes that are not offered, with the reason.

    Raises:
        RequestError: a key by container name, as KAI ships them, has an unknown setting, container
            or mode.
    """
    found = {}
    for key, text in sorted(pod.annotations.items()):
        match = _SHIPPED_KEY.fullmatch(key)
        if match is None:
            continue
        _known(pod, match[1], field=annotation_field(key), found=text)
        if match[2] not in _SETTINGS:
            raise RequestError(
                field=annotation_field(key),
                found=text,
                wanted=f"a setting that KAI has: {listed(_SETTINGS)}",
                hint=did_you_mean(match[2], _SETTINGS),
            )
        if match[2] == _MODE and text not in _MODES:
            raise RequestError(
                field=annotation_field(key),
                found=text,
                wanted=" or ".join(_MODES),
                hint=did_you_mean(text, _MODES),
            )
        if match[2] == _MODE and text != _TIME_SLICING:
            found[key] = _ISOLATION
    return found


def _one_container(pod: PodForDialects, *, beside: bool) -> ForeignRequest | None:
    """Return what the keys for one container ask for; *beside* requests by container name."""
    fraction, memory = pod.annotations.get(FRACTION), pod.annotations.get(MEMORY)
    if fraction is None and memory is None:
        for key in (CONTAINER,) if beside else (DEVICES, CONTAINER):
            if key in pod.annotations:
                refuse_orphan(
                    annotation_field(key),
                    found=pod.annotations[key],
                    needs=f"{FRACTION} or {MEMORY}",
                )
        return None
    if fraction is not None and memory is not None:
        refuse_both(annotation_field(FRACTION), annotation_field(MEMORY), found=fraction)
    share = mib = None
    if fraction is not None:
        share = part_of_card(fraction, field=annotation_field(FRACTION))
    elif memory is not None:
        mib = memory_units(memory, field=annotation_field(MEMORY), unit_mib=1)
    present = (FRACTION, MEMORY, DEVICES, CONTAINER)
    return ForeignRequest(
        container=_chosen(pod),
        cards=_cards(pod),
        share=share,
        mib=mib,
        sources=tuple(key for key in present if key in pod.annotations),
    )


def _chosen(pod: PodForDialects) -> str:
    name = pod.annotations.get(CONTAINER)
    if name is not None:
        return _known(pod, name, field=annotation_field(CONTAINER), found=name)
    if main := pod.main or next(iter(app_containers(pod.containers)), None):
        return main
    raise RequestError(
        field=annotation_field(FRACTION if FRACTION in pod.annotations else MEMORY),
        found="a pod without containers",
        wanted="a pod with at least one container",
    )


def _by_name(
    pod: PodForDialects, *, burst: bool
) -> tuple[tuple[ForeignRequest, ...], tuple[str, ...]]:
    keys: dict[str, dict[str, str]] = {}
    for key, text in pod.annotations.items():
        match = _BY_NAME_KEY.fullmatch(key)
        if match:
            name = _known(pod, match[2], field=annotation_field(key), found=text)
            present = keys.setdefault(name, {})
            if match[3] in present:
                refuse_both(annotation_field(present[match[3]]), annotation_field(key), found=text)
            present[match[3]] = key
    requests = []
    warnings: list[str] = []
    for spec in pod.containers:
        if spec.name in keys:
            request, ignored = _named_request(pod, spec.name, keys[spec.name], burst=burst)
            requests.append(request)
            warnings += ignored
    return tuple(requests), tuple(warnings)


def _named_request(
    pod: PodForDialects, container: str, keys: dict[str, str], *, burst: bool
) -> tuple[ForeignRequest, tuple[str, ...]]:
    request_key, limit_key = keys.get(_REQUEST, keys.get(_LIMIT, "")), keys.get(_LIMIT, "")
    text, limit = pod.annotations[request_key], pod.annotations.get(limit_key, "")
    mib = parse_memory_mib(text, field=annotation_field(request_key))
    ignored: tuple[str, ...] = ()
    limit_mib = None
    if limit_key:
        wanted_mib = parse_memory_mib(limit, field=annotation_field(limit_key))
        refuse_below(wanted_mib, mib, key=limit_key, found=limit, asked=text)
        if wanted_mib > mib and burst:
            limit_mib = wanted_mib
        elif wanted_mib > mib:
            ignored = not_offered({limit_key: limit}, {limit_key: _NO_BURST})
    sources = [request_key, limit_key] if limit_key not in ("", request_key) else [request_key]
    sources += [DEVICES] if DEVICES in pod.annotations else []
    request = ForeignRequest(
        container=container,
        cards=_cards(pod),
        mib=mib,
        limit_mib=limit_mib,
        sources=tuple(sources),
    )
    return request, ignored


def _cards(pod: PodForDialects) -> int:
    text = pod.annotations.get(DEVICES)
    return 1 if text is None else card_count(text, field=annotation_field(DEVICES))


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
    annotations=keys(
        FRACTION, MEMORY, DEVICES, CONTAINER, MPS, patterns=(_BY_NAME, _SHIPPED, _PORTION)
    ),
    read=_read,
    rivals=frozenset({WHOLE_GPU}),
    quiet=frozenset({MPS}),
    family=(
        "nvidia.com/container.",
        "kai.scheduler/",
        "runai/",
        "run.ai/",
        "runai-",
        "pod-group-name",
        "gpu-fraction-",
    ),
    schedulers=SCHEDULERS,
)
