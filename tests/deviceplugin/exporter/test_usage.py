"""Use of cards by pods: limits from assignments, use from processes, the rest is foreign."""

from dataclasses import replace

import pytest

from deviceplugin.cards.interface import (
    CardMetrics,
    CardProcess,
    CardSample,
    CardSamples,
    GroupLimits,
)
from deviceplugin.exporter.attribution import Owner
from deviceplugin.exporter.usage import CardUse, PodCardUsage, build_usage_snapshot
from fracgpu.cards.card import CardUuid
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.deviceplugin.builders import a_card, a_container, a_pod, an_inventory

A = CardUuid("GPU-a")


def a_process(pid: int, *, mib: int | None = 100, sm: float | None = 0.0) -> CardProcess:
    return CardProcess(pid=pid, used_mib=None if mib is None else Mib(mib), sm_percent=sm)


def use_of(
    *processes: CardProcess,
    pods: list[PodInfo],
    owners: dict[int, str],
    gpu_percent: float | None = 50.0,
    known: bool = True,
) -> CardUse:
    reading = CardSample(
        figures=CardMetrics(gpu_percent=gpu_percent), processes=processes, processes_known=known
    )
    snapshot = build_usage_snapshot(
        taken_at_s=1.0,
        inventory=an_inventory(a_card("GPU-a")),
        samples=CardSamples(samples={A: reading}),
        owners={pid: Owner(pod_uid=uid) for pid, uid in owners.items()},
        pods=pods,
    )
    return snapshot.cards[0]


def shares(use: CardUse) -> list[tuple[str, float | None, float | None]]:
    return [(pod.pod, pod.used_mib, pod.sm_percent) for pod in use.pods]


def test_each_pod_has_its_limit_its_memory_and_its_part_of_the_time() -> None:
    pods = [a_pod("one"), a_pod("two")]

    use = use_of(
        a_process(1, mib=300, sm=30),
        a_process(2, mib=200, sm=10),
        a_process(3, mib=100, sm=10),
        pods=pods,
        owners={1: "uid-one", 2: "uid-two", 3: "uid-two"},
    )

    assert use.allocated_mib == 2000
    assert shares(use) == [("one", 300.0, 30.0), ("two", 300.0, 20.0)]


def test_what_driver_or_kernel_count_is_what_a_container_uses() -> None:
    stands = GroupLimits(guaranteed_mib=Mib(1000), limit_mib=Mib(1000), used_mib=Mib(640))
    reading = CardSample(processes=(a_process(1, mib=300), a_process(2, mib=200)))

    snapshot = build_usage_snapshot(
        taken_at_s=1.0,
        inventory=an_inventory(a_card("GPU-a")),
        samples=CardSamples(samples={A: reading}),
        owners={1: Owner(pod_uid="uid-one"), 2: Owner(pod_uid="uid-two")},
        pods=[a_pod("one"), a_pod("two")],
        counted={("uid-one", "train", A): stands},
    )

    one, two = snapshot.cards[0].pods
    assert (one.used_mib, one.processes_mib, one.counted) == (640, 300, stands)
    assert (two.used_mib, two.processes_mib, two.counted) == (200, 200, None)


def test_the_parts_of_the_pods_add_up_to_the_cards_own_figure() -> None:
    pods = [a_pod("one"), a_pod("two")]

    use = use_of(
        a_process(1, sm=80),
        a_process(2, sm=80),
        pods=pods,
        owners={1: "uid-one", 2: "uid-two"},
        gpu_percent=90,
    )

    assert [pod.sm_percent for pod in use.pods] == [45.0, 45.0]


def test_an_idle_pod_uses_nothing_and_still_has_its_limit() -> None:
    use = use_of(pods=[a_pod("one")], owners={}, gpu_percent=0)

    assert shares(use) == [("one", 0.0, 0.0)]
    assert use.pods[0].mib == 1000


def test_a_busy_card_with_no_busy_process_is_a_riddle_not_a_zero() -> None:
    use = use_of(a_process(1), pods=[a_pod("one")], owners={1: "uid-one"}, gpu_percent=60)

    assert shares(use) == [("one", 100.0, None)]


def test_clients_of_mps_have_memory_and_no_part_of_the_time_that_their_server_is_said_to_use() -> (
    None
):
    use = use_of(
        a_process(1, mib=2566, sm=None),
        a_process(2, mib=100, sm=20),
        a_process(9, mib=66, sm=60),
        pods=[a_pod("client"), a_pod("other")],
        owners={1: "uid-client", 2: "uid-other"},
        gpu_percent=80,
    )

    assert shares(use) == [("client", 2566.0, None), ("other", 100.0, 20.0)]
    assert use.degraded
    assert use.unattributed_mib == 66


@pytest.mark.parametrize(("gpu_percent", "part"), [(None, None), (0.0, 0.0)])
def test_a_client_of_mps_is_idle_only_where_its_card_is_known_to_be(
    gpu_percent: float | None, part: float | None
) -> None:
    use = use_of(
        a_process(1, sm=None),
        a_process(2, sm=0),
        pods=[a_pod("client"), a_pod("other")],
        owners={1: "uid-client", 2: "uid-other"},
        gpu_percent=gpu_percent,
    )

    assert shares(use) == [("client", 100.0, part), ("other", 100.0, 0.0)]
    assert use.degraded is (part is None)


def test_what_a_process_of_unknown_time_may_have_used_is_not_given_to_the_others() -> None:
    use = use_of(
        a_process(1, sm=None),
        a_process(2, sm=5.0),
        pods=[a_pod("rocm"), a_pod("video")],
        owners={1: "uid-rocm", 2: "uid-video"},
        gpu_percent=85.0,
    )

    assert [part for _, _, part in shares(use)] == [None, 5.0]
    assert use.degraded


def test_a_process_whose_memory_the_driver_does_not_tell_makes_the_pods_unknown() -> None:
    use = use_of(
        a_process(1, mib=None),
        a_process(2, mib=100),
        pods=[a_pod("one")],
        owners={1: "uid-one", 2: "uid-one"},
        gpu_percent=0,
    )

    assert shares(use) == [("one", None, 0.0)]


def test_foreign_processes_are_counted_and_given_to_nobody() -> None:
    use = use_of(
        a_process(1, mib=300),
        a_process(2, mib=70),
        a_process(3, mib=None),
        pods=[a_pod("one")],
        owners={1: "uid-one", 2: "uid-of-another-card"},
        gpu_percent=0,
    )

    assert use.unattributed_processes == 2
    assert use.unattributed_mib == 70
    assert shares(use) == [("one", 300.0, 0.0)]


def test_what_a_foreign_process_uses_is_not_given_to_the_pods() -> None:
    use = use_of(
        a_process(1, sm=20),
        a_process(2, sm=60),
        pods=[a_pod("one")],
        owners={1: "uid-one"},
        gpu_percent=80,
    )

    assert shares(use) == [("one", 100.0, 20.0)]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_ended_pod_holds_nothing(phase: str) -> None:
    use = use_of(pods=[a_pod("one", phase=phase)], owners={}, gpu_percent=0)

    assert (use.pods, use.allocated_mib) == ((), 0)


def test_without_a_process_list_use_is_unknown_and_limits_are_not() -> None:
    use = use_of(pods=[a_pod("one")], owners={}, known=False)

    assert shares(use) == [("one", None, None)]
    assert use.allocated_mib == 1000


def test_two_containers_of_one_pod_on_one_card_count_its_use_once() -> None:
    pod = a_pod(
        "one",
        assigned={"eval": [("GPU-a", 500)], "train": [("GPU-a", 1000)]},
        containers=[a_container("eval", mib=500), a_container("train", mib=1000)],
    )

    use = use_of(a_process(1, mib=300, sm=50), pods=[pod], owners={1: "uid-one"})

    total = [(pod.container, pod.mib, pod.used_mib, pod.sm_percent) for pod in use.pods]
    assert total == [("eval", 500, 300.0, 50.0), ("train", 1000, 0.0, 0.0)]


def test_a_card_that_could_not_be_read_has_no_reading_and_keeps_its_pods() -> None:
    snapshot = build_usage_snapshot(
        taken_at_s=1.0,
        inventory=an_inventory(a_card("GPU-a")),
        samples=CardSamples(errors={A: "lost"}),
        owners={},
        pods=[a_pod("one")],
    )

    (use,) = snapshot.cards
    assert use.sample is None
    assert [pod.pod for pod in use.pods] == ["one"]
    assert isinstance(use.pods[0], PodCardUsage)
    assert snapshot.troubles == {A: "lost"}


def test_a_busy_card_whose_processes_are_all_idle_or_unknown_is_degraded() -> None:
    pods, owners = [a_pod("one")], {1: "uid-one"}

    nobody_admits_it = use_of(a_process(1, sm=0), pods=pods, owners=owners)
    nobody_lists_them = use_of(pods=pods, owners={}, known=False)
    idle = use_of(a_process(1, sm=0), pods=pods, owners=owners, gpu_percent=0)
    clear = use_of(a_process(1, sm=20), pods=pods, owners=owners)

    found = [use.degraded for use in (nobody_admits_it, nobody_lists_them, idle, clear)]
    assert found == [True, True, False, False]


def test_processes_of_two_containers_are_told_apart_by_the_runtimes_ids() -> None:
    pod = a_pod(
        "one",
        assigned={"eval": [("GPU-a", 500)], "train": [("GPU-a", 1000)]},
        containers=[a_container("eval", mib=500), a_container("train", mib=1000)],
    )
    ids = {"eval": "e" * 64, "train": "c" * 64, "logs": "d" * 64}
    owned = {1: ids["eval"], 2: ids["train"], 3: ids["train"], 4: ids["logs"], 5: "unknown"}
    processes = tuple(a_process(pid, mib=100 * pid, sm=10) for pid in owned)
    snapshot = build_usage_snapshot(
        taken_at_s=1.0,
        inventory=an_inventory(a_card("GPU-a")),
        samples=CardSamples(
            samples={A: CardSample(figures=CardMetrics(gpu_percent=50), processes=processes)}
        ),
        owners={
            pid: Owner(pod_uid="uid-one", container_id=container_id)
            for pid, container_id in owned.items()
        },
        pods=[replace(pod, container_ids=ids)],
    )

    (use,) = snapshot.cards
    observed = [(pod.container, pod.used_mib, pod.sm_percent) for pod in use.pods]
    # A container without a slice or a status yet: its use counts for the pod's first container.
    assert observed == [("eval", 100 + 400 + 500, 30.0), ("train", 200 + 300, 20.0)]
    assert use.unattributed_processes == 0
