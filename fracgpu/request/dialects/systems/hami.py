"""HAMi: ``nvidia.com/gpu`` cards, each with ``gpumem`` or ``gpumem-percentage``, ``gpucores``."""

from fractions import Fraction
from typing import Final

from fracgpu import names
from fracgpu.cards.card import FULL_CORES
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import (
    annotation_field,
    card_count,
    integer,
    limit_field,
    memory_units,
    percent,
    refuse_both,
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
from fracgpu.request.dialects.preferences import (
    model_globs,
    not_offered,
    refuse_single_cards,
    strategy,
)

GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"

USE_TYPE: Final = "nvidia.com/use-gputype"
AVOID_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
AVOID_UUID: Final = "nvidia.com/nouse-gpuuuid"
NUMA_BIND: Final = "nvidia.com/numa-bind"
MODE: Final = "nvidia.com/vgpu-mode"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
OPT_OUT: Final = "hami.io/webhook"

_MODES: Final = ("hami-core", "mps")


def _read(pod: PodForDialects, options: Options) -> DialectReading:
    requests = tuple(
        request for request in (_request(spec, options) for spec in pod.containers) if request
    )
    models = model_globs(pod.annotations, use=USE_TYPE, avoid=AVOID_TYPE)
    preferred, warnings = strategy(
        pod.annotations,
        card=CARD_POLICY,
        node=NODE_POLICY,
        others=("topology-aware", "mutex"),
    )
    if requests:
        refuse_single_cards(pod.annotations, (USE_UUID, AVOID_UUID))
        warnings = (*_priorities(pod), *_mode(pod), *_numa(pod), *warnings)
    return DialectReading(requests=requests, models=models, strategy=preferred, warnings=warnings)


def _request(spec: ContainerSpec, options: Options) -> ForeignRequest | None:
    """Parse one container, with HAMi's own defaults.

    Without a count it gets the configured number of cards, without memory all of a card's memory,
    and with a count alone all cores as well.
    """
    texts = {key: spec.limits.get(key) for key in (GPU, MEMORY, MEMORY_PERCENT, CORES)}
    if not any(text is not None for text in texts.values()):
        return None
    count, memory, share, cores = texts.values()
    if memory is not None and share is not None:
        refuse_both(limit_field(MEMORY, spec), limit_field(MEMORY_PERCENT, spec), found=memory)
    cards = options.hami_default_count
    if count is not None:
        cards = card_count(count, field=limit_field(GPU, spec))
    mib = part = None
    if memory is not None:
        field = limit_field(MEMORY, spec)
        mib = memory_units(memory, field=field, unit_mib=options.hami_memory_factor)
    elif share is not None:
        part = Fraction(percent(share, field=limit_field(MEMORY_PERCENT, spec)), 100)
    else:
        part = ONE_CARD
    alone = memory is None and share is None and cores is None
    return ForeignRequest(
        container=spec.name,
        cards=cards,
        mib=mib,
        share=part,
        cores=FULL_CORES if alone else _cores(cores, spec),
    )


def _cores(text: str | None, spec: ContainerSpec) -> int:
    return 0 if text is None else percent(text, field=limit_field(CORES, spec), low=0)


def _priorities(pod: PodForDialects) -> tuple[str, ...]:
    warnings = []
    for spec in pod.containers:
        if PRIORITY in spec.limits:
            field, text = limit_field(PRIORITY, spec), spec.limits[PRIORITY]
            integer(text, field=field, wanted="0 for high or 1 for low", low=0, high=1)
            warnings.append(
                f"{field} is '{text}', which is ignored: FracGPU has no priorities on a card; "
                "a PriorityClass is for pods"
            )
    return tuple(warnings)


def _mode(pod: PodForDialects) -> tuple[str, ...]:
    mode = pod.annotations.get(MODE)
    if mode is not None and mode not in _MODES:
        raise RequestError(
            field=annotation_field(MODE),
            found=mode,
            wanted="one of " + ", ".join(_MODES),
            hint="MIG slices are not shares of a card" if mode == "mig" else "",
        )
    why = f"{names.ISOLATION} alone chooses what enforces a share"
    return not_offered(pod.annotations, {MODE: why})


def _numa(pod: PodForDialects) -> tuple[str, ...]:
    bind = pod.annotations.get(NUMA_BIND)
    if bind in (None, "false"):
        return ()
    if bind != "true":
        raise RequestError(
            field=annotation_field(NUMA_BIND), found=bind, wanted="'true' or 'false'"
        )
    return not_offered(pod.annotations, {NUMA_BIND: "FracGPU does not bind pods to NUMA nodes"})


def _leaves(pod: PodForDialects, _options: Options) -> bool:
    return "ignore" in (pod.labels.get(OPT_OUT), pod.namespace_labels.get(OPT_OUT))


HAMI: Final = Dialect(
    name="hami",
    title="HAMi",
    limits=keys(GPU, MEMORY, MEMORY_PERCENT, CORES, PRIORITY),
    annotations=keys(
        USE_TYPE, AVOID_TYPE, USE_UUID, AVOID_UUID, NUMA_BIND, MODE, NODE_POLICY, CARD_POLICY
    ),
    read=_read,
    leaves=_leaves,
    quiet=frozenset({GPU}),
    family=("hami.io/", "nvidia.com/gpu", "nvidia.com/vgpu", "nvidia.com/use", "nvidia.com/nouse"),
    labels=frozenset({OPT_OUT}),
    model_keys=(USE_TYPE, AVOID_TYPE),
    schedulers=frozenset({"hami-scheduler"}),
)
