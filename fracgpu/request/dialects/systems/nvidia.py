"""NVIDIA's device plugin: whole cards, and replicas of a card under time slicing or MPS."""

from fractions import Fraction
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import card_count, decimal_share, limit_field, refuse_both
from fracgpu.request.dialects.dialect import (
    ONE_CARD,
    Dialect,
    DialectReading,
    ForeignRequest,
    Options,
    PodForDialects,
    keys,
)

GPU: Final = "nvidia.com/gpu"
SHARED: Final = "nvidia.com/gpu.shared"


def _read(pod: PodForDialects, options: Options) -> DialectReading:
    requests = [_request(spec, options.nvidia_replicas) for spec in pod.containers]
    return DialectReading(requests=tuple(request for request in requests if request))


def _request(spec: ContainerSpec, replicas: int | None) -> ForeignRequest | None:
    gpu, shared = spec.limits.get(GPU), spec.limits.get(SHARED)
    if gpu is not None and shared is not None:
        why = "a card is whole or shared"
        refuse_both(limit_field(GPU, spec), limit_field(SHARED, spec), found=gpu, why=why)
    if gpu is not None:
        cards = card_count(gpu, field=limit_field(GPU, spec))
        return ForeignRequest(container=spec.name, cards=cards, share=ONE_CARD)
    if shared is None:
        return None
    field = limit_field(SHARED, spec)
    if replicas is None:
        raise RequestError(
            field=field,
            found=shared,
            wanted="a share of a card that FracGPU can count",
            hint=f"write {names.FRACTION}, or have the administrator set nvidiaReplicas",
        )
    if shared != "1":
        # The plugin allocates any free replicas, so two of them may be of one card.
        raise RequestError(
            field=field,
            found=shared,
            wanted="'1', one replica for a container",
            hint=f"write {names.FRACTION} and {names.CARDS} for several cards",
        )
    return ForeignRequest(container=spec.name, share=decimal_share(Fraction(1, replicas)))


NVIDIA: Final = Dialect(
    name="nvidia",
    title="NVIDIA device plugin",
    limits=keys(GPU, SHARED),
    read=_read,
    quiet=frozenset({GPU, SHARED}),
    family=("nvidia.com/gpu",),
)
