"""All checks, in the order of a request's way: admitted, placed, started, measured, moved."""

from collections.abc import Collection
from typing import Final

from fracgpu.doctor import (
    admission,
    device_claims,
    measurements,
    nodes,
    rights,
    roles,
    scheduling,
    versions,
    workloads,
)
from fracgpu.doctor.facts import Facts
from fracgpu.doctor.finding import Check, Result

CHECKS: Final[tuple[Check, ...]] = (
    *roles.CHECKS,
    *rights.CHECKS,
    *versions.CHECKS,
    *admission.CHECKS,
    *scheduling.CHECKS,
    *device_claims.CHECKS,
    *nodes.CHECKS,
    *measurements.CHECKS,
    *workloads.CHECKS,
)


def examine(facts: Facts, *, only: Collection[str] = ()) -> tuple[Result, ...]:
    """Return the outcome of every check, or of those named *only*."""
    return tuple(check.run(facts) for check in CHECKS if not only or check.name in only)
