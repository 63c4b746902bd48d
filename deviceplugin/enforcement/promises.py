"""Which limits a container is promised, and whether they stand; decided without I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from deviceplugin.cards.interface import GroupLimits
from deviceplugin.enforcement.interface import Limit
from fracgpu.cards.card import CardUuid
from fracgpu.request.language import wanted_isolation
from fracgpu.request.need import MECHANISMS, Isolation
from fracgpu.state.allocation import Slice
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib


def chosen_isolation(
    wanted: Sequence[Isolation], why_not: Callable[[Isolation], str | None]
) -> Isolation:
    """Return what limits a container: the first of what its pod wants that can.

    Args:
        wanted: in the order of preference.
        why_not: why a mechanism cannot limit it, or None.

    Returns:
        a mechanism, the best that can, or none; where none of *wanted* can, the last: its start is
        refused.
    """
    for each in wanted:
        if each not in MECHANISMS or why_not(each) is None:
            return each
    return wanted[-1]


def promised_limits(
    pod: PodInfo, slices: Iterable[Slice], limits: Callable[[CardUuid], bool]
) -> tuple[Limit, ...]:
    """Return the limits that a container is promised: by what its pod wants first that can be.

    Args:
        pod: the container's pod.
        slices: what the container is assigned.
        limits: whether this node can limit a card.
    """
    if wanted_isolation(pod.annotations)[0] is Isolation.NONE:
        return ()
    return limits_of(part for part in slices if limits(part.card))


def limits_of(slices: Iterable[Slice]) -> tuple[Limit, ...]:
    """Return the limits that are a container's shares of its cards."""
    return tuple(
        Limit(card=part.card, guaranteed_mib=part.mib, limit_mib=part.limit_mib) for part in slices
    )


def difference(limit: Limit, stands: GroupLimits) -> str | None:
    """Return in which way a limit does not stand, or None."""
    if stands.limit_mib != limit.limit_mib:
        found = "no limit" if stands.limit_mib is None else f"a limit of {stands.limit_mib} MiB"
        return f"{limit.card} has {found}, not of {limit.limit_mib} MiB"
    if stands.guaranteed_mib != limit.guaranteed_mib:
        kept, wanted = stands.guaranteed_mib, limit.guaranteed_mib
        return f"{limit.card} keeps {kept} MiB, not {wanted} MiB"
    return None


def lowest_first(groups: Iterable[str]) -> tuple[str, ...]:
    """Return cgroups in an order in which each comes after all that are in it."""
    return tuple(sorted(groups, key=lambda group: (-group.count("/"), group)))


def wanted_above(group: str, kept: Mapping[str, Mib]) -> Mib:
    """Return what a cgroup has to keep.

    Args:
        group: the cgroup.
        kept: what is kept for each container, by its cgroup.
    """
    return Mib(sum(mib for container, mib in kept.items() if container.startswith(f"{group}/")))
