"""Koordinator: totals over ``gpu.shared`` cards, in percent of core and memory or in bytes."""

from fractions import Fraction
from typing import Final

from fracgpu.cards.card import FULL_CORES
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import (
    card_count,
    evenly,
    integer,
    limit_field,
    memory_bytes,
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
from fracgpu.request.language import MAX_CARDS
from fracgpu.units import Mib

GPU: Final = "koordinator.sh/gpu"
CORE: Final = "koordinator.sh/gpu-core"
RATIO: Final = "koordinator.sh/gpu-memory-ratio"
MEMORY: Final = "koordinator.sh/gpu-memory"
SHARED: Final = "koordinator.sh/gpu.shared"


def _read(pod: PodForDialects, _options: Options) -> DialectReading:
    return DialectReading(
        requests=tuple(
            request for request in (_request(spec) for spec in pod.containers) if request
        )
    )


def _request(spec: ContainerSpec) -> ForeignRequest | None:
    present = [key for key in (GPU, CORE, RATIO, MEMORY, SHARED) if key in spec.limits]
    if not present:
        return None
    _refuse_contradictions(spec)
    core = GPU if GPU in spec.limits else CORE
    ratio = GPU if GPU in spec.limits else RATIO
    totals = {key: _total(key, spec) for key in {core, ratio} if key in spec.limits}
    cards = _cards(spec, totals)
    cores = _per_card(core, totals, cards, spec) or 0
    if MEMORY in spec.limits:
        field, text = limit_field(MEMORY, spec), spec.limits[MEMORY]
        total_mib = memory_bytes(text, field=field)
        unit = "memory in whole MiB"
        mib = evenly(total_mib, cards=cards, field=field, found=text, unit=unit)
        return ForeignRequest(container=spec.name, cards=cards, mib=Mib(mib), cores=cores)
    percents = _per_card(ratio, totals, cards, spec)
    assert percents is not None, "there is either memory or a ratio"
    return ForeignRequest(
        container=spec.name, cards=cards, share=Fraction(percents, 100), cores=cores
    )


def _refuse_contradictions(spec: ContainerSpec) -> None:
    limits = spec.limits
    rivals = ((GPU, CORE), (GPU, RATIO), (GPU, MEMORY), (RATIO, MEMORY))
    for first, second in rivals:
        if first in limits and second in limits:
            fields = limit_field(first, spec), limit_field(second, spec)
            refuse_both(*fields, found=limits[first])
    if not {GPU, RATIO, MEMORY} & limits.keys():
        key = CORE if CORE in limits else SHARED
        field = limit_field(key, spec)
        refuse_orphan(field, found=limits[key], needs=f"{RATIO} or {MEMORY}")


def _total(key: str, spec: ContainerSpec) -> int:
    wanted = "percent of one card from 1 to 100, or more in total over several cards"
    high = MAX_CARDS * FULL_CORES
    text = spec.limits[key]
    return integer(text, field=limit_field(key, spec), wanted=wanted, low=1, high=high)


def _cards(spec: ContainerSpec, totals: dict[str, int]) -> int:
    """Return the number of cards of the totals; without ``gpu.shared`` one for each 100 percent."""
    if SHARED in spec.limits:
        return card_count(spec.limits[SHARED], field=limit_field(SHARED, spec))
    cards = 1
    for key in (GPU, RATIO, CORE):
        total = totals.get(key, 0)
        if total > FULL_CORES:
            if total % FULL_CORES:
                raise RequestError(
                    field=limit_field(key, spec),
                    found=spec.limits[key],
                    wanted=f"at most 100, or a multiple of 100 for whole cards, or {SHARED} too",
                    hint=f"'{total - total % FULL_CORES}' would do",
                )
            cards = max(cards, total // FULL_CORES)
    return cards


def _per_card(key: str, totals: dict[str, int], cards: int, spec: ContainerSpec) -> int | None:
    if key not in totals:
        return None
    field, text = limit_field(key, spec), spec.limits[key]
    percents = evenly(totals[key], cards=cards, field=field, found=text, unit="percent")
    if percents > FULL_CORES:
        raise RequestError(
            field=field,
            found=text,
            wanted=f"at most 100 for each of {cards} cards",
            hint=f"'{cards * FULL_CORES}' would do",
        )
    return percents


KOORDINATOR: Final = Dialect(
    name="koordinator",
    title="Koordinator",
    limits=keys(GPU, CORE, RATIO, MEMORY, SHARED),
    family=(
        "koordinator.sh/gpu",
        "scheduling.koordinator.sh/",
        "gang.scheduling.koordinator.sh/",
        "quota.scheduling.koordinator.sh/",
    ),
    schedulers=frozenset({"koord-scheduler"}),
    read=_read,
)
