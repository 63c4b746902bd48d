"""The pod to explain, read from its JSON."""

from typing import Final

import msgspec

from fracgpu.errors import WireError
from fracgpu.k8s.pod import UNREADABLE
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.state.cluster_state import ExplainedPod
from fracgpu.state.pod_info import decode_pod_info


class _Gate(msgspec.Struct):
    name: str = ""


class _GatedSpec(msgspec.Struct, rename="camel"):
    scheduling_gates: list[_Gate] | None = None


class _GatedPod(msgspec.Struct):
    spec: _GatedSpec = msgspec.field(default_factory=_GatedSpec)


_gated_decoder: Final = msgspec.json.Decoder(_GatedPod)


def read_subject(body: bytes) -> ExplainedPod:
    """Return what an explanation needs of the pod that *body* holds.

    Raises:
        WireError: *body* is not a pod.
    """
    try:
        gates = _gated_decoder.decode(body).spec.scheduling_gates or ()
    except UNREADABLE as error:
        raise WireError(what="pod", message=str(error)) from error
    return ExplainedPod(
        info=decode_pod_info(body),
        scheduling_constraints=scheduling_constraints_of(body),
        gates=tuple(gate.name for gate in gates),
    )
