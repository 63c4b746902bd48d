"""Use of cards by pods: limits from assignments, use from processes, the rest is foreign."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from deviceplugin.cards.interface import (
    CardMetrics,
    CardProcess,
    CardSample,
    CardSamples,
    GroupLimits,
)
from deviceplugin.exporter.attribution import Owner
from deviceplugin.exporter.usage import CardUse, Counted, build_usage_snapshot
from fracgpu.cards.card import CardUuid
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.deviceplugin.builders import (
    a_card,
    a_container,
    a_pod,
    a_usage_snapshot,
    an_inventory,
)

A = CardUuid("GPU-a")


def a_process(pid: int, *, mib: int | None = 100, sm: float | None = 0.0) -> CardProcess:
    return CardProcess(pid=pid, used_mib=None if mib is None else Mib(mib), sm_percent=sm)


def use_of(
    *processes: CardProcess,
    pods: Sequence[PodInfo],
    owners: Mapping[int, str | Owner],
    gpu_percent: float | None = 50.0,
    known: bool = True,
    counted: Counted | None = None,
) -> CardUse:
    sample = CardSample(
        figures=CardMetrics(gpu_percent=gpu_percent), processes=processes, processes_known=known
    )
    return a_usage_snapshot(sample, *pods, owners=owners, counted=counted).cards[0]


def shares(use: CardUse) -> list[tuple[str, float | None, float | None]]:
    return [(pod.pod, pod.used_mib, pod.sm_percent) for pod in use.pods]


ONE, TWO = a_pod("one"), a_pod("two")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Processes by the pod that owns them, ``""`` for nobody here, and what the pods use then."""

    processes: Sequence[tuple[str, CardProcess]]
    gpu_percent: float | None
    used: Sequence[tuple[str, float | None, float | None]]
    foreign: tuple[int, float] = (0, 0.0)
    degraded: bool = False


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                processes=[
                    ("one", a_process(1, mib=300, sm=30)),
                    ("two", a_process(2, mib=200, sm=10)),
                    ("two", a_process(3, mib=100, sm=10)),
                ],
                gpu_percent=50,
                used=[("one", 300, 30), ("two", 300, 20)],
            ),
            id="each-pod-has-its-memory-and-its-part-of-the-time",
        ),
        pytest.param(
            Case(
                processes=[("one", a_process(1, sm=80)), ("two", a_process(2, sm=80))],
                gpu_percent=90,
                used=[("one", 100, 45), ("two", 100, 45)],
            ),
            id="the-parts-add-up-to-the-cards-own-figure",
        ),
        pytest.param(
            Case(processes=[], gpu_percent=0, used=[("one", 0, 0), ("two", 0, 0)]),
            id="an-idle-pod-uses-nothing",
        ),
        pytest.param(
            Case(
                processes=[("one", a_process(1)), ("two", a_process(2))],
                gpu_percent=60,
                used=[("one", 100, None), ("two", 100, None)],
                degraded=True,
            ),
            id="a-busy-card-with-no-busy-process-is-a-riddle-not-a-zero",
        ),
        pytest.param(
            Case(
                processes=[
                    ("one", a_process(1, mib=2566, sm=None)),
                    ("two", a_process(2, sm=20)),
                    ("", a_process(9, mib=66, sm=60)),
                ],
                gpu_percent=80,
                used=[("one", 2566, None), ("two", 100, 20)],
                foreign=(1, 66),
                degraded=True,
            ),
            id="a-client-of-mps-has-no-part-of-the-time-that-its-server-is-said-to-use",
        ),
        pytest.param(
            Case(
                processes=[("one", a_process(1, sm=None)), ("two", a_process(2))],
                gpu_percent=None,
                used=[("one", 100, None), ("two", 100, 0)],
                degraded=True,
            ),
            id="a-client-of-mps-is-not-idle-on-a-card-of-which-nothing-is-known",
        ),
        pytest.param(
            Case(
                processes=[("one", a_process(1, sm=None)), ("two", a_process(2))],
                gpu_percent=0,
                used=[("one", 100, 0), ("two", 100, 0)],
            ),
            id="a-client-of-mps-is-idle-on-an-idle-card",
        ),
        pytest.param(
            Case(
                processes=[("one", a_process(1, sm=None)), ("two", a_process(2, sm=5))],
                gpu_percent=85,
                used=[("one", 100, None), ("two", 100, 5)],
                degraded=True,
            ),
            id="what-a-process-of-unknown-time-may-have-used-is-not-given-to-the-others",
        ),
        pytest.param(
            Case(
                processes=[("one", a_process(1, mib=None)), ("one", a_process(2))],
                gpu_percent=0,
                used=[("one", None, 0), ("two", 0, 0)],
            ),
            id="a-process-of-unknown-memory-makes-its-pods-unknown",
        ),
        pytest.param(
            Case(
                processes=[
                    ("one", a_process(1, mib=300, sm=20)),
                    ("of-another-card", a_process(2, mib=70, sm=60)),
                    ("", a_process(3, mib=None)),
                ],
                gpu_percent=80,
                used=[("one", 300, 20), ("two", 0, 0)],
                foreign=(2, 70),
            ),
            id="what-foreign-processes-use-is-counted-and-given-to-nobody",
        ),
    ],
)
def test_memory_and_time_are_those_of_a_pods_processes(case: Case) -> None:
    use = use_of(
        *(process for _, process in case.processes),
        pods=[ONE, TWO],
        owners={process.pid: f"uid-{owner}" for owner, process in case.processes if owner},
        gpu_percent=case.gpu_percent,
    )

    assert shares(use) == case.used
    assert (use.unattributed_processes, use.unattributed_mib) == case.foreign
    assert use.degraded is case.degraded
    assert ([pod.mib for pod in use.pods], use.allocated_mib) == ([1000, 1000], 2000)


def test_what_driver_or_kernel_count_is_what_a_container_uses() -> None:
    stands = GroupLimits(guaranteed_mib=Mib(1000), limit_mib=Mib(1000), used_mib=Mib(640))

    one, two = use_of(
        *(a_process(1, mib=300), a_process(2, mib=200)),
        pods=[ONE, TWO],
        owners={1: "uid-one", 2: "uid-two"},
        counted={("uid-one", "train", A): stands},
    ).pods

    assert (one.used_mib, one.processes_mib, one.counted) == (640, 300, stands)
    assert (two.used_mib, two.processes_mib, two.counted) == (200, 200, None)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_ended_pod_holds_nothing(phase: str) -> None:
    use = use_of(pods=[a_pod("one", phase=phase)], owners={}, gpu_percent=0)

    assert (use.pods, use.allocated_mib) == ((), 0)


def test_without_a_process_list_use_is_unknown_and_limits_are_not() -> None:
    use = use_of(pods=[ONE], owners={}, known=False)

    assert shares(use) == [("one", None, None)]
    assert (use.allocated_mib, use.degraded) == (1000, True)


BOTH_CONTAINERS = a_pod(
    "one",
    assigned={"eval": [("GPU-a", 500)], "train": [("GPU-a", 1000)]},
    containers=[a_container("eval", mib=500), a_container("train", mib=1000)],
)


def test_two_containers_of_one_pod_on_one_card_count_its_use_once() -> None:
    use = use_of(a_process(1, mib=300, sm=50), pods=[BOTH_CONTAINERS], owners={1: "uid-one"})

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
    assert snapshot.troubles == {A: "lost"}


def test_processes_of_two_containers_are_told_apart_by_the_runtimes_ids() -> None:
    ids = {"eval": "e" * 64, "train": "c" * 64, "logs": "d" * 64}
    owned = {1: ids["eval"], 2: ids["train"], 3: ids["train"], 4: ids["logs"], 5: "unknown"}

    use = use_of(
        *(a_process(pid, mib=100 * pid, sm=10) for pid in owned),
        pods=[replace(BOTH_CONTAINERS, container_ids=ids)],
        owners={pid: Owner(pod_uid="uid-one", container_id=its) for pid, its in owned.items()},
    )

    observed = [(pod.container, pod.used_mib, pod.sm_percent) for pod in use.pods]
    # A container without a slice or a status yet: its use counts for the pod's first container.
    assert observed == [("eval", 100 + 400 + 500, 30.0), ("train", 200 + 300, 20.0)]
    assert use.unattributed_processes == 0
