"""TensorFusion: memory per GPU, percent of compute, a number of GPUs, all by pod annotation."""

from typing import Final

from fracgpu import names
from fracgpu.container import ContainerKind
from fracgpu.dialects.amounts import annotation_field, card_count, percent, refuse_orphan
from fracgpu.dialects.model import Ask, Dialect, Options, PodPieces, Reading, keys
from fracgpu.dialects.preferences import model_globs, not_offered, refuse_single_cards
from fracgpu.errors import RequestError, listed
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

_NO_BURST: Final = "FracGPU grants the request and no burst above it"
_NO_TFLOPS: Final = f"FracGPU counts compute in percent of a card; write {names.CORES} instead"
_ASIDE: Final = {
    TFLOPS: _NO_TFLOPS,
    TFLOPS_LIMIT: _NO_TFLOPS,
    f"{_PREFIX}isolation": f"what enforces a share is said by {names.ISOLATION} alone",
    f"{_PREFIX}qos": "FracGPU ranks no tasks on a card; a PriorityClass ranks pods",
    f"{_PREFIX}gpupool": "FracGPU has no pools; a nodeSelector chooses nodes",
}


def _read(pod: PodPieces, _options: Options) -> Reading:
    texts = pod.annotations
    if MEMORY not in texts:
        for key in (MEMORY_LIMIT, COMPUTE, COMPUTE_LIMIT, COUNT, TFLOPS):
            if key in texts:
                refuse_orphan(annotation_field(key), found=texts[key], needs=MEMORY)
        return Reading()
    refuse_single_cards(texts, (INDICES,))
    mib = parse_memory_mib(texts[MEMORY], field=annotation_field(MEMORY))
    count = texts.get(COUNT)
    bursts = (*_memory_burst(pod, mib), *_compute_burst(pod))
    ask = Ask(
        container=_container(pod),
        cards=1 if count is None else card_count(count, field=annotation_field(COUNT)),
        mib=mib,
        cores=_compute(pod, COMPUTE) or 0,
        sources=tuple(key for key in (MEMORY, COMPUTE, COUNT, CONTAINER) if key in texts),
    )
    return Reading(
        asks=(ask,),
        models=model_globs(texts, use=MODEL, avoid=""),
        warnings=(*bursts, *not_offered(texts, _ASIDE)),
    )


def _memory_burst(pod: PodPieces, mib: Mib) -> tuple[str, ...]:
    text = pod.annotations.get(MEMORY_LIMIT)
    if text is None:
        return ()
    limit_mib = parse_memory_mib(text, field=annotation_field(MEMORY_LIMIT))
    if limit_mib < mib:
        wanted = f"at least the request, {pod.annotations[MEMORY]}"
        raise RequestError(field=annotation_field(MEMORY_LIMIT), found=text, wanted=wanted)
    more = limit_mib > mib
    return not_offered(pod.annotations, {MEMORY_LIMIT: _NO_BURST}) if more else ()


def _compute_burst(pod: PodPieces) -> tuple[str, ...]:
    asked, limit = _compute(pod, COMPUTE), _compute(pod, COMPUTE_LIMIT)
    if limit is None or limit == asked:
        return ()
    if asked is not None and limit < asked:
        raise RequestError(
            field=annotation_field(COMPUTE_LIMIT),
            found=pod.annotations[COMPUTE_LIMIT],
            wanted=f"at least the request, {asked}",
        )
    return not_offered(pod.annotations, {COMPUTE_LIMIT: _NO_BURST})


def _compute(pod: PodPieces, key: str) -> int | None:
    text = pod.annotations.get(key)
    return None if text is None else percent(text, field=annotation_field(key))


def _container(pod: PodPieces) -> str:
    """Choose the one container; several would have to share one slice, which nobody can count."""
    apps = [spec.name for spec in pod.containers if spec.kind is ContainerKind.APP]
    named = pod.annotations.get(CONTAINER)
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


def _leaves(pod: PodPieces, options: Options) -> bool:
    return options.tensor_fusion_runs and pod.labels.get(ENABLED) == "true"


TENSOR_FUSION: Final = Dialect(
    name="tensor-fusion",
    title="TensorFusion",
    annotations=keys(
        MEMORY, MEMORY_LIMIT, COMPUTE, COMPUTE_LIMIT, COUNT, INDICES, MODEL, CONTAINER, *_ASIDE
    ),
    read=_read,
    leaves=_leaves,
)
