"""AWS's virtual GPU plugin: one ``k8s.amazonaws.com/vgpu`` is a tenth of a card by default."""

from fractions import Fraction
from typing import Final

from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.amounts import decimal_share, integer, limit_field
from fracgpu.request.dialects.dialect import (
    Dialect,
    DialectReading,
    ForeignRequest,
    Options,
    PodForDialects,
    keys,
)

VGPU: Final = "k8s.amazonaws.com/vgpu"


def _read(pod: PodForDialects, options: Options) -> DialectReading:
    requests = [_request(spec, options.aws_vgpus_per_card) for spec in pod.containers]
    return DialectReading(requests=tuple(request for request in requests if request))


def _request(spec: ContainerSpec, per_card: int) -> ForeignRequest | None:
    text = spec.limits.get(VGPU)
    if text is None:
        return None
    wanted = f"parts of one card, a whole number from 1 to {per_card}"
    parts = integer(text, field=limit_field(VGPU, spec), wanted=wanted, low=1, high=per_card)
    return ForeignRequest(container=spec.name, share=decimal_share(Fraction(parts, per_card)))


AWS: Final = Dialect(
    name="aws", title="AWS virtual GPU", limits=keys(VGPU), family=(VGPU,), read=_read
)
