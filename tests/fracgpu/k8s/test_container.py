from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.k8s.container import ContainerKind, ContainerSpec, pod_resource_sum

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def peak_over_time(containers: Sequence[tuple[ContainerKind, int]]) -> int:
    """Return the highest sum while containers start as the kubelet starts them.

    Init containers and sidecars start in spec order; an init container ends before the next one
    starts, a sidecar keeps running; then all app containers run beside the sidecars.
    """
    running: list[int] = []
    peak = 0
    for kind, amount in containers:
        if kind is APP:
            continue
        running.append(amount)
        peak = max(peak, sum(running))
        if kind is INIT:
            running.pop()
    for kind, amount in containers:
        if kind is APP:
            running.append(amount)
            peak = max(peak, sum(running))
    return peak


kinds = st.sampled_from(ContainerKind)
pods = st.lists(st.tuples(kinds, st.integers(0, 100)), max_size=8)


@pytest.mark.parametrize(
    ("containers", "wanted"),
    [
        ([], 0),
        ([(APP, 3), (APP, 4)], 7),
        ([(INIT, 9), (APP, 3)], 9),
        ([(INIT, 2), (INIT, 3), (APP, 4)], 4),
        ([(SIDECAR, 2), (INIT, 5), (APP, 4)], 7),
        ([(INIT, 5), (SIDECAR, 2), (APP, 4)], 6),
        ([(SIDECAR, 2), (SIDECAR, 3), (INIT, 1), (APP, 0)], 6),
    ],
)
def test_what_a_pod_needs_at_its_peak(
    containers: list[tuple[ContainerKind, int]], wanted: int
) -> None:
    assert pod_resource_sum(containers) == wanted


@given(pods)
def test_the_rule_equals_running_the_pod_through_time(
    containers: list[tuple[ContainerKind, int]],
) -> None:
    in_spec_order = sorted(containers, key=lambda container: container[0] is APP)

    assert pod_resource_sum(in_spec_order) == peak_over_time(in_spec_order)


@given(pods, st.permutations(range(8)))
def test_the_place_of_app_containers_among_the_others_does_not_matter(
    containers: list[tuple[ContainerKind, int]], order: list[int]
) -> None:
    others = [container for container in containers if container[0] is not APP]
    mixed = list(others)
    for place, app in zip(
        order, (container for container in containers if container[0] is APP), strict=False
    ):
        mixed.insert(place, app)

    assert pod_resource_sum(mixed) == pod_resource_sum(
        [*others, *(container for container in containers if container[0] is APP)]
    )


@given(pods, kinds, st.integers(0, 100))
def test_one_more_container_never_needs_less(
    containers: list[tuple[ContainerKind, int]], kind: ContainerKind, amount: int
) -> None:
    more = pod_resource_sum([*containers, (kind, amount)])

    assert pod_resource_sum(containers) <= more <= pod_resource_sum(containers) + amount


def test_a_container_without_limits_has_none() -> None:
    spec = ContainerSpec(name="a")

    assert (spec.kind, dict(spec.limits), dict(spec.requests)) == (APP, {}, {})
