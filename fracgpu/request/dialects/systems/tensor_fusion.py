"""TensorFusion: memory per GPU, percent of compute and a number of GPUs, in pod annotations.

Source of the keys: tensor-fusion.ai, reference "Workload Configuration", and its annotations list.
"""

from typing import Final

from fracgpu import names
from fracgpu.cards.card import FULL_CORES
from fracgpu.errors import RequestError, listed
from fracgpu.k8s.container import app_containers
from fracgpu.request.dialects.amounts import (
    annotation_field,
    card_count,
    percent,
    refuse_below,
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
from fracgpu.request.dialects.preferences import model_globs, not_offered, refuse_single_cards
from fracgpu.units import Mib, parse_memory_mib

_PREFIX: Final = "tensor-fusion.ai/"
MEMORY: Final = f"{_PREFIX}vram-request"
MEMORY_LIMIT: Final = f"{_PREFIX}vram-limit"
TFLOPS: Final = f"{_PREFIX}tflops-request"
TFLOPS_LIMIT: Final = f"{_PREFIX}tflops-limit"
COMPUTE: Final = f"{_PREFIX}compute-percent-request"
COMPUTE_LIMIT: Final = f"{_PREFIX}compute-percent-limit"
COUNT: Final = f"{_PREFIX}gpu-count"
INDICES: Final = f"{_PREFIX}gpu-indices"
MODEL: Final = f"{_PREFIX}gpu-model"
CONTAINER: Final = f"{_PREFIX}inject-container"
ENABLED: Final = f"{_PREFIX}enabled"
VENDOR: Final = f"{_PREFIX}vendor"
PROFILE: Final = f"{_PREFIX}workload-profile"
DEDICATED: Final = f"{_PREFIX}dedicated-gpu"
BY_CONTAINER: Final = f"{_PREFIX}container-gpu-count"
PARTITION: Final = f"{_PREFIX}partition-id"
# Written by its scheduler: the chosen cards.
CHOSEN: Final = (f"{_PREFIX}gpu-ids", f"{_PREFIX}container-gpus")

_SIZES: Final = (MEMORY, MEMORY_LIMIT, TFLOPS, TFLOPS_LIMIT, COMPUTE, COMPUTE_LIMIT)

_NO_BURST: Final = "FracGPU grants the request and no burst above it"
_NO_TFLOPS: Final = f"FracGPU counts compute in percent of a card; write {names.CORES} instead"
_NO_PROFILE: Final = "FracGPU reads no WorkloadProfile"
_IGNORED: Final = {
    PROFILE: _NO_PROFILE,
    TFLOPS: _NO_TFLOPS,
    TFLOPS_LIMIT: _NO_TFLOPS,
    f"{_PREFIX}isolation": f"{names.ISOLATION} alone chooses what enforces a share",
    f"{_PREFIX}qos": "FracGPU has no priorities on a card; a PriorityClass is for pods",
    f"{_PREFIX}gpupool": "FracGPU has no pools; a nodeSelector chooses nodes",
}


def _read(pod: PodForDialects, options: Options) -> DialectReading:
    dedicated = _dedicated(pod)
    if not dedicated and MEMORY not in pod.annotations:
        _refuse_orphans(pod)
        return DialectReading()
    _refuse_others(pod)
    return _entire_cards(pod) if dedicated else _share(pod, options)


def _refuse_orphans(pod: PodForDialects) -> None:
    if PROFILE in pod.annotations:
        raise RequestError(
            field=annotation_field(PROFILE),
            found=pod.annotations[PROFILE],
            wanted=f"{MEMORY} on the pod itself: FracGPU reads no WorkloadProfile",
            hint=f"write what the profile says as annotations, or {names.MEMORY}",
        )
    for key in (MEMORY_LIMIT, COMPUTE, COMPUTE_LIMIT, COUNT, BY_CONTAINER, TFLOPS):
        if key in pod.annotations:
            found = pod.annotations[key]
            refuse_orphan(annotation_field(key), found=found, needs=MEMORY)


def _refuse_others(pod: PodForDialects) -> None:
    """Raise for a choice of single cards, of another vendor or of partitions."""
    texts = pod.annotations
    refuse_single_cards(texts, (INDICES, *CHOSEN))
    wanted = {
        VENDOR: "NVIDIA: FracGPU shares no other vendor's cards",
        BY_CONTAINER: f"no count by container; write {names.MEMORY} with 'container=item' pairs",
        PARTITION: "no partition: MIG slices are not shares of a card",
    }
    for key, want in wanted.items():
        if key in texts and not (key == VENDOR and texts[key].lower() == "nvidia"):
            raise RequestError(field=annotation_field(key), found=texts[key], wanted=want)


def _dedicated(pod: PodForDialects) -> bool:
    text = pod.annotations.get(DEDICATED, "false")
    if text not in ("true", "false"):
        raise RequestError(
            field=annotation_field(DEDICATED), found=text, wanted="'true' or 'false'"
        )
    return text == "true"


def _entire_cards(pod: PodForDialects) -> DialectReading:
    """Parse a request for whole cards, with which TensorFusion ignores sizes too."""
    why = f"a card of {DEDICATED} is whole"
    useless = dict.fromkeys(_SIZES, why) | {PROFILE: _NO_PROFILE}
    request = ForeignRequest(
        container=_container(pod),
        cards=_count(pod),
        share=ONE_CARD,
        cores=FULL_CORES,
        sources=tuple(
            key for key in (DEDICATED, COUNT, VENDOR, CONTAINER) if key in pod.annotations
        ),
    )
    return DialectReading(
        requests=(request,),
        models=model_globs(pod.annotations, use=MODEL, avoid=""),
        warnings=not_offered(pod.annotations, {**_IGNORED, **useless}),
    )


def _count(pod: PodForDialects) -> int:
    text = pod.annotations.get(COUNT)
    return 1 if text is None else card_count(text, field=annotation_field(COUNT))


def _share(pod: PodForDialects, options: Options) -> DialectReading:
    texts = pod.annotations
    mib = parse_memory_mib(texts[MEMORY], field=annotation_field(MEMORY))
    limit_mib = _memory_limit(pod, mib)
    granted = options.burst and limit_mib is not None
    ignored = {MEMORY_LIMIT: _NO_BURST} if limit_mib is not None and not granted else {}
    bursts = (*not_offered(texts, ignored), *_compute_burst(pod))
    keys_read = (MEMORY, *((MEMORY_LIMIT,) if granted else ()), COMPUTE, COUNT, VENDOR, CONTAINER)
    request = ForeignRequest(
        container=_container(pod),
        cards=_count(pod),
        mib=mib,
        limit_mib=limit_mib if granted else None,
        cores=_compute(pod, COMPUTE) or 0,
        sources=tuple(key for key in keys_read if key in texts),
    )
    return DialectReading(
        requests=(request,),
        models=model_globs(texts, use=MODEL, avoid=""),
        warnings=(*bursts, *not_offered(texts, _IGNORED)),
    )


def _memory_limit(pod: PodForDialects, mib: Mib) -> Mib | None:
    """Return the limit if it is above the request."""
    text = pod.annotations.get(MEMORY_LIMIT)
    if text is None:
        return None
    limit_mib = parse_memory_mib(text, field=annotation_field(MEMORY_LIMIT))
    asked = pod.annotations[MEMORY]
    refuse_below(limit_mib, mib, key=MEMORY_LIMIT, found=text, asked=asked)
    return limit_mib if limit_mib > mib else None


def _compute_burst(pod: PodForDialects) -> tuple[str, ...]:
    asked, limit = _compute(pod, COMPUTE), _compute(pod, COMPUTE_LIMIT)
    if limit is None or limit == asked:
        return ()
    if asked is not None:
        found = pod.annotations[COMPUTE_LIMIT]
        refuse_below(limit, asked, key=COMPUTE_LIMIT, found=found, asked=str(asked))
    return not_offered(pod.annotations, {COMPUTE_LIMIT: _NO_BURST})


def _compute(pod: PodForDialects, key: str) -> int | None:
    text = pod.annotations.get(key)
    return None if text is None else percent(text, field=annotation_field(key))


def _container(pod: PodForDialects) -> str:
    """Return the one container of the request; several cannot share one slice."""
    apps = app_containers(pod.containers)
    named = pod.annotations.get(CONTAINER, pod.main)
    if named is None and len(apps) == 1:
        return apps[0]
    if named in [spec.name for spec in pod.containers]:
        return named or ""
    raise RequestError(
        field=annotation_field(CONTAINER),
        found="absent" if named is None else named,
        wanted=f"the name of one of this pod's containers: {listed(apps)}",
        hint=f"use {names.MEMORY} with 'container=item' pairs for several",
    )


def _leaves(pod: PodForDialects, options: Options) -> bool:
    return options.tensor_fusion_runs and pod.labels.get(ENABLED) == "true"


TENSOR_FUSION: Final = Dialect(
    name="tensor-fusion",
    title="TensorFusion",
    annotations=keys(
        *(*_SIZES, COUNT, INDICES, *CHOSEN, MODEL, VENDOR, CONTAINER),
        *(DEDICATED, BY_CONTAINER, PARTITION, *_IGNORED),
    ),
    family=(_PREFIX,),
    labels=frozenset({ENABLED}),
    model_keys=(MODEL,),
    schedulers=frozenset({"tensor-fusion-scheduler"}),
    read=_read,
    leaves=_leaves,
)
