"""What one pod holds of its cards."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.errors import WireError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.state.allocation import (
    CardAllocation,
    Slice,
    allocations_by_card,
    most_by_limits,
    read_assignment,
    write_assignment,
)
from fracgpu.units import MAX_MIB, Mib
from tests.support.core import an_allocation, kinds


def a_slice(card: str, mib: int, *, cores: int = 0) -> Slice:
    return Slice(card=CardUuid(card), mib=Mib(mib), cores=cores)


@pytest.mark.parametrize(
    ("kind", "mib", "slots"),
    [
        (ContainerKind.APP, 40, 2),
        (ContainerKind.INIT, 30, 1),  # only at its peak, before the apps
        (ContainerKind.SIDECAR, 40, 2),
    ],
)
def test_containers_beside_each_other_add_up_on_a_card(
    kind: ContainerKind, mib: int, slots: int
) -> None:
    specs = [ContainerSpec(name="a", kind=kind), ContainerSpec(name="b")]
    assignment = {"a": (a_slice("GPU-1", 30, cores=20),), "b": (a_slice("GPU-1", 10, cores=10),)}

    held = an_allocation(mib, cores=10 + 10 * slots, slots=slots)
    assert allocations_by_card(assignment, specs) == {"GPU-1": held}


def test_each_card_has_its_own_sum() -> None:
    assignment = {"a": (a_slice("GPU-1", 10), a_slice("GPU-2", 10))}

    holds = allocations_by_card(assignment, [ContainerSpec(name="a")])

    assert holds == {"GPU-1": an_allocation(10), "GPU-2": an_allocation(10)}


def test_a_container_that_the_spec_does_not_have_counts_in_full() -> None:
    specs = [ContainerSpec(name="load", kind=ContainerKind.INIT)]
    assignment = {"load": (a_slice("GPU-1", 30),), "ghost": (a_slice("GPU-1", 10),)}

    assert allocations_by_card(assignment, specs)[CardUuid("GPU-1")].mib >= 30
    assert allocations_by_card({"ghost": (a_slice("GPU-1", 10),)}, specs) == {
        "GPU-1": an_allocation(10)
    }


@given(st.lists(st.tuples(kinds, st.integers(1, 100)), min_size=1, max_size=5))
def test_the_allocation_is_at_least_every_slice_and_at_most_their_sum(
    parts: list[tuple[ContainerKind, int]],
) -> None:
    specs = [ContainerSpec(name=f"c{n}", kind=kind) for n, (kind, _) in enumerate(parts)]
    assignment = {f"c{n}": (a_slice("GPU-1", mib),) for n, (_, mib) in enumerate(parts)}

    allocation = allocations_by_card(assignment, specs)[CardUuid("GPU-1")]

    assert max(mib for _, mib in parts) <= allocation.mib <= sum(mib for _, mib in parts)


def test_the_most_a_pod_can_hold_of_one_card_is_what_its_limits_say_at_its_peak() -> None:
    limits = [("prepare", ContainerKind.INIT, "5k"), ("a", ContainerKind.APP, "1000")]
    limits += [("b", ContainerKind.APP, "2000")]
    containers = [
        ContainerSpec(name=name, kind=kind, limits={names.GPU_MEM: text})
        for name, kind, text in limits
    ]

    assert most_by_limits(containers) == CardAllocation(mib=Mib(5000), cores=100, slots=2)
    assert most_by_limits(containers[1:]) == CardAllocation(mib=Mib(3000), cores=100, slots=2)


@pytest.mark.parametrize("limits", [{}, {names.GPU_MEM: "lots"}, {names.GPU_MEM: "4Gi"}])
def test_without_limits_that_can_be_read_it_may_be_any_card_whole(limits: dict[str, str]) -> None:
    assert most_by_limits([ContainerSpec(name="a", limits=limits)]).mib == MAX_MIB


@given(st.data())
def test_no_assignment_within_the_limits_holds_more_of_a_card(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(ContainerKind), min_size=1, max_size=4))
    assignment = {
        f"c{n}": tuple(
            Slice(card=CardUuid(card), mib=Mib(data.draw(st.integers(1, 50))))
            for card in data.draw(st.sets(st.sampled_from("xyz"), min_size=1))
        )
        for n in range(len(kinds))
    }
    containers = [
        ContainerSpec(
            name=f"c{n}",
            kind=kind,
            limits={names.GPU_MEM: str(sum(part.mib for part in assignment[f"c{n}"]))},
        )
        for n, kind in enumerate(kinds)
    ]

    most = most_by_limits(containers).mib

    assert all(
        allocation.mib <= most
        for allocation in allocations_by_card(assignment, containers).values()
    )


def test_what_a_pod_may_borrow_is_beyond_its_peak_and_is_read_again() -> None:
    specs = [ContainerSpec(name="init", kind=ContainerKind.INIT), ContainerSpec(name="a")]
    assignment = {
        "init": (replace(a_slice("GPU-1", 30), own_limit_mib=Mib(35)),),
        "a": (replace(a_slice("GPU-1", 20), own_limit_mib=Mib(50)),),
    }

    (held,) = allocations_by_card(assignment, specs).values()

    assert (held.mib, held.borrow_mib, held.limit_mib) == (30, 20, 50)
    assert read_assignment(write_assignment(assignment)) == assignment
    (alone,) = allocations_by_card({"a": assignment["a"]}, specs).values()
    assert (alone.mib, alone.limit_mib) == (20, 50)
    # As much as it is guaranteed is no more than that, and says nothing.
    assert "limit" not in write_assignment(
        {"a": (replace(a_slice("c", 20), own_limit_mib=Mib(20)),)}
    )
    for limit in (19, MAX_MIB + 1, -1):
        with pytest.raises(WireError, match="a limit of"):
            read_assignment(f'{{"a": [{{"card": "c", "mib": 20, "limit": {limit}}}]}}')
