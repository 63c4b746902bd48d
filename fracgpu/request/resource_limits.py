"""A strict parser of our resources in a container's limits and requests."""

from collections.abc import Iterable
from typing import Final

from fracgpu import names
from fracgpu.errors import PodField, RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.units import Mib, parse_count, parse_mib

MAX_CARDS: Final = 64


def any_of_ours(keys: Iterable[str]) -> bool:
    """Report whether any of *keys* has our prefix."""
    for key in keys:  # noqa: SIM110 - each pod is asked this often, and a generator takes longer
        if key.startswith(names.PREFIX):
            return True
    return False


def parse_resource_limits(spec: ContainerSpec) -> tuple[Mib | None, int | None]:
    """Return MiB and slots from a container's limits; requests may only repeat them."""
    if not any_of_ours(spec.limits) and not any_of_ours(spec.requests):
        return None, None  # nearly every container
    _refuse_other_resources(spec)
    mib = slots = None
    if names.GPU_MEM in spec.limits:
        field = limit_of(names.GPU_MEM, spec.name)
        mib = parse_mib(spec.limits[names.GPU_MEM], field=field)
    if names.GPU_SLOT in spec.limits:
        slots = parse_count(
            spec.limits[names.GPU_SLOT],
            field=limit_of(names.GPU_SLOT, spec.name),
            low=1,
            high=MAX_CARDS,
            wanted=f"what the webhook writes; set {names.GPU_MEM} instead",
        )
    for key in (names.GPU_MEM, names.GPU_SLOT):
        if key in spec.requests and spec.requests[key] != spec.limits.get(key):
            _refuse_other_request(key, spec, limit=mib if key == names.GPU_MEM else slots)
    return mib, slots


def limit_of(key: str, container: str) -> PodField:
    """Return the place of a limit as errors write it."""
    return PodField(key, container=container, amounts="limits")


def _refuse_other_resources(spec: ContainerSpec) -> None:
    for place, amounts in (("limits", spec.limits), ("requests", spec.requests)):
        for key in sorted(amounts):
            if key.startswith(names.PREFIX) and key not in (names.GPU_MEM, names.GPU_SLOT):
                raise RequestError(
                    field=PodField(key, container=spec.name, amounts=place),
                    found=amounts[key],
                    wanted=f"{names.GPU_MEM} in whole MiB",
                    hint=f"use the annotation {names.CARDS} for several cards",
                )


def _refuse_other_request(key: str, spec: ContainerSpec, *, limit: int | None) -> None:
    """Raise for a request that differs from its limit; ``8000`` and ``8k`` are one amount."""
    field = PodField(key, container=spec.name, amounts="requests")
    if limit is None:
        raise RequestError(
            field=field,
            found=spec.requests[key],
            wanted="the same amount in limits",
            hint=f"set {names.GPU_MEM} in limits alone",
        )
    if parse_mib(spec.requests[key], field=field) != limit:
        raise RequestError(
            field=field,
            found=spec.requests[key],
            wanted=f"what its limits say, {limit}",
            hint="leave the request out; Kubernetes copies the limit",
        )


def split_over_cards(total_mib: Mib, cards: int, container: str) -> Mib:
    """Return a container's MiB per card: its total, split evenly over its cards.

    Raises:
        RequestError: the total is not a multiple of *cards*.
    """
    if total_mib % cards:
        below = total_mib - total_mib % cards
        raise RequestError(
            field=limit_of(names.GPU_MEM, container),
            found=str(total_mib),
            wanted=f"a number of MiB that divides evenly over its {cards} cards",
            hint=f"'{max(below, cards)}' would do",
        )
    return Mib(total_mib // cards)
