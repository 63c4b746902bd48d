"""A pod that uses more memory than its share is named once it has done so for five minutes."""

from dataclasses import replace

import pytest

from deviceplugin.cards.interface import CardProcess, CardSample, GroupLimits
from deviceplugin.exporter.attribution import Owner
from deviceplugin.exporter.overuse import OveruseEvents, OveruseWatch
from deviceplugin.exporter.usage import Counted, UsageSnapshot
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.units import Mib
from tests.deviceplugin.builders import a_container, a_pod, a_usage_snapshot
from tests.fakes.clock import VirtualClock
from tests.fakes.events import RecordedEvents

A = CardUuid("GPU-a")
SMALL = a_pod("small")  # of 1,000 MiB
LARGE = a_pod("large", assigned={"train": [("GPU-a", 10_000)]})


def using(small: int | None = 0, large: int = 0, *, read: bool = True) -> UsageSnapshot:
    sample = CardSample(
        processes=(
            CardProcess(pid=1, used_mib=None if small is None else Mib(small)),
            CardProcess(pid=2, used_mib=Mib(large)),
        )
    )
    owners = {1: "uid-small", 2: "uid-large"}
    return a_usage_snapshot(sample if read else None, SMALL, LARGE, owners=owners)


def named(snapshot: UsageSnapshot) -> list[str]:
    """Return the pods that are named once a snapshot has lasted for five minutes."""
    watch = OveruseWatch()
    for now_s in (0.0, 300.0):
        watch.observe(snapshot, now_s=now_s)
    return sorted(each.pod for each in watch.lasting)


@pytest.mark.parametrize(
    ("small", "large", "pods"),
    [
        pytest.param(1256, 0, [], id="256-MiB-are-not-too-many"),
        pytest.param(1257, 0, ["small"], id="257-are"),
        pytest.param(0, 10_500, [], id="5-percent-are-not-too-many"),
        pytest.param(0, 10_501, ["large"], id="more-are"),
        pytest.param(9000, 11_000, ["large", "small"], id="both"),
    ],
)
def test_over_is_more_than_5_percent_and_256_mib(small: int, large: int, pods: list[str]) -> None:
    assert named(using(small, large)) == pods


def test_only_what_lasts_five_minutes_counts_and_a_gap_begins_anew() -> None:
    watch = OveruseWatch()
    watch.observe(using(2000), now_s=0.0)
    watch.observe(using(2000), now_s=299.0)
    assert not watch.lasting
    watch.observe(using(900), now_s=299.5)
    watch.observe(using(2000), now_s=300.0)
    watch.observe(using(2000), now_s=599.0)
    assert not watch.lasting

    watch.observe(using(2100), now_s=600.0)

    (found,) = watch.lasting
    assert (found.pod, found.mib, found.beyond_mib) == ("small", 1000, 1100)


@pytest.mark.parametrize("unknown", [using(None), using(read=False)])
def test_what_is_not_known_for_a_moment_neither_ends_nor_proves_it(unknown: UsageSnapshot) -> None:
    watch = OveruseWatch()
    watch.observe(using(2000), now_s=0.0)

    watch.observe(unknown, now_s=301.0)
    assert not watch.lasting
    watch.observe(using(2000), now_s=302.0)

    assert [each.pod for each in watch.lasting] == ["small"]


def test_a_pod_may_use_what_all_its_containers_have() -> None:
    mib = {"one": 3000, "two": 1000}
    pod = a_pod(
        "small",
        assigned={name: [("GPU-a", size)] for name, size in mib.items()},
        containers=[a_container(name, mib=size) for name, size in mib.items()],
    )
    sample = CardSample(processes=(CardProcess(pid=1, used_mib=Mib(4100)),))

    assert named(a_usage_snapshot(sample, pod, owners={1: "uid-small"})) == []


async def test_a_pod_gets_one_event_each_time_that_it_begins() -> None:
    watch, events = OveruseWatch(), RecordedEvents()
    writer = OveruseEvents(
        lasting=lambda: watch.lasting, recorder=events, clock=VirtualClock(), period_s=5.0
    )
    for now_s in (0.0, 300.0, 305.0):
        watch.observe(using(2000), now_s=now_s)
        await writer.sync()
    assert [reason for _, reason, _ in events.events] == ["MemoryOverused"]
    assert "2000 MiB" in events.events[0][2]

    watch.observe(using(0), now_s=310.0)
    await writer.sync()
    for now_s in (315.0, 615.0):
        watch.observe(using(2000), now_s=now_s)
        await writer.sync()

    assert [reason for _, reason, _ in events.events] == ["MemoryOverused"] * 2


def test_a_pod_that_is_gone_is_forgotten() -> None:
    watch = OveruseWatch()
    for now_s in (0.0, 300.0):
        watch.observe(using(2000), now_s=now_s)
    gone = replace(using(2000), cards=())

    watch.observe(gone, now_s=305.0)
    watch.observe(using(2000), now_s=310.0)

    assert not watch.lasting


def test_more_than_is_guaranteed_within_a_limit_that_stands_is_no_overuse() -> None:
    limits = GroupLimits(guaranteed_mib=Mib(1000), limit_mib=Mib(4000), used_mib=Mib(3900))
    part = Slice(card=A, mib=Mib(1000), own_limit_mib=Mib(4000))

    def named_of(counted: Counted, *containers: str) -> list[str]:
        kinds = {"init": ContainerKind.INIT, "train": ContainerKind.APP}
        pod = a_pod(
            "small",
            assigned={},
            annotations={names.ASSIGNMENT: write_assignment(dict.fromkeys(containers, (part,)))},
        )
        specs = tuple(ContainerSpec(name=each, kind=kinds[each]) for each in containers)
        record = replace(pod.record, containers=specs)
        pod = replace(pod, record=record, container_ids={"train": "c1"})
        sample = CardSample(processes=(CardProcess(pid=1, used_mib=Mib(3900)),))
        owners = {1: Owner(pod_uid="uid-small", container_id="c1")}
        return named(a_usage_snapshot(sample, pod, owners=owners, counted=counted))

    stands = {("uid-small", "train", A): limits}
    assert named_of(stands, "train") == []
    assert named_of(stands, "init", "train") == []  # the first has ended, and is not counted
    assert named_of({}, "train") == named_of({}, "init", "train") == ["small"]
