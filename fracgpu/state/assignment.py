"""The assignment: a pod's allocation as an annotation, written on its Binding and read back."""

from collections.abc import Sequence
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.annotations import MAX_ANNOTATION_CHARS
from fracgpu.cards.card import FULL_CORES, CardUuid
from fracgpu.errors import WireError, decode_wire
from fracgpu.state.allocation import Assignment, Slice
from fracgpu.units import MAX_MIB, Mib


class _WireSlice(msgspec.Struct, omit_defaults=True):
    card: str
    mib: int
    cores: int = 0


_assignment_decoder: Final = msgspec.json.Decoder(dict[str, list[_WireSlice]])

_encoder: Final = msgspec.json.Encoder(order="sorted")


def read_assignment(text: str) -> Assignment:
    """Return the assignment that ``fracgpu.io/assignment`` holds.

    Raises:
        WireError: *text* is not what :func:`write_assignment` writes.
    """
    what = names.ASSIGNMENT
    if len(text) > MAX_ANNOTATION_CHARS:
        raise WireError(
            what=what, message=f"{len(text)} characters; want at most {MAX_ANNOTATION_CHARS}"
        )
    wire = decode_wire(_assignment_decoder.decode, text, what=what)
    assignment = {}
    for container, slices in wire.items():
        fault = _slices_fault(slices)
        if fault:
            raise WireError(what=what, message=f"container '{container}' has {fault}")
        assignment[container] = tuple(
            Slice(card=CardUuid(part.card), mib=Mib(part.mib), cores=part.cores) for part in slices
        )
    if not assignment:
        raise WireError(what=what, message="no container")
    return assignment


def _slices_fault(slices: Sequence[_WireSlice]) -> str:
    if not slices:
        return "no slice"
    if len({part.card for part in slices}) != len(slices):
        return "one card twice"
    for part in slices:
        if not 1 <= part.mib <= MAX_MIB or not 0 <= part.cores <= FULL_CORES:
            return f"{part.mib} MiB and {part.cores}% of a card"
    return ""


def write_assignment(assignment: Assignment) -> str:
    """Return an assignment as compact JSON with sorted keys."""
    return _encoder.encode(
        {
            container: [
                _WireSlice(card=part.card, mib=part.mib, cores=part.cores) for part in slices
            ]
            for container, slices in assignment.items()
        }
    ).decode()
