"""Disagreements of assignment, kubelet, device files and processes are found and counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from deviceplugin.cards.interface import CardProcess, CardSample
from deviceplugin.claims import SlotHolder
from deviceplugin.exporter.attribution import Attribution, Owner
from deviceplugin.exporter.consistency import (
    ConsistencyCheck,
    Disagreement,
    Evidence,
    Finding,
    compare,
)
from deviceplugin.exporter.visible_devices import VisibleDevices
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.metrics import DevicePluginMetrics
from fracgpu.cards.card import CardUuid
from fracgpu.state.pod_info import PodInfo
from tests.deviceplugin.builders import a_container, a_holder, a_pod
from tests.fakes.clock import VirtualClock


def running(**fields: object) -> PodInfo:
    return a_pod(**{"phase": "Running", **fields})  # type: ignore[arg-type]


def evidence(
    *pods: PodInfo,
    holders: tuple[SlotHolder, ...] = (a_holder(),),
    processes: dict[str, int] | None = None,
    owner: str = "uid-train-0",
) -> Evidence:
    """Return evidence that agrees by default; *processes* is card → pid."""
    readings = {
        CardUuid(card): CardSample(processes=(CardProcess(pid=pid),))
        for card, pid in (processes or {}).items()
    }
    here = pods or (running(),)
    return Evidence(
        pods={(pod.record.namespace, pod.record.name): pod for pod in here},
        holders=holders,
        readings=readings,
        owners={pid: Owner(pod_uid=owner) for pid in (processes or {}).values()},
    )


def test_a_healthy_node_has_no_disagreement() -> None:
    assert compare(evidence(processes={"GPU-a": 7})) == frozenset()


@pytest.mark.parametrize(
    ("case", "kind", "subject"),
    [
        (evidence(holders=()), Disagreement.KUBELET_LACKS, "ml/train-0/train"),
        (evidence(running(assigned={})), Disagreement.KUBELET_HAS, "ml/train-0/train"),
        (evidence(processes={"GPU-b": 7}), Disagreement.PROCESS_ELSEWHERE, "ml/train-0 on GPU-b"),
    ],
    ids=["no slots", "no assignment", "process"],
)
def test_each_source_is_found_when_it_differs(
    case: Evidence, kind: Disagreement, subject: str
) -> None:
    assert compare(case) == {Finding(kind=kind, subject=subject)}


def test_a_pod_that_was_given_no_card_and_uses_one_is_found() -> None:
    thief = running(name="thief", assigned={}, containers=[{"name": "x"}])

    found = compare(evidence(running(), thief, processes={"GPU-a": 7}, owner="uid-thief"))

    assert {finding.subject for finding in found} == {"ml/thief on GPU-a"}


def test_pods_on_their_way_in_or_out_are_left_alone() -> None:
    for pod in (a_pod(), running(terminating=True), a_pod(phase="Succeeded")):
        assert compare(evidence(pod, holders=())) == frozenset()


@pytest.mark.parametrize(
    ("has", "kinds"),
    [
        ({"GPU-a"}, set()),
        (set(), {Disagreement.CARD_MISSING}),
        ({"GPU-a", "GPU-b"}, {Disagreement.CARD_TOO_MANY}),
        ({"GPU-b"}, {Disagreement.CARD_MISSING, Disagreement.CARD_TOO_MANY}),
    ],
    ids=["its card", "no card", "one too many", "another card"],
)
def test_the_audit_looks_at_what_a_container_really_has(
    has: set[str], kinds: set[Disagreement]
) -> None:
    pod = replace(running(), container_ids={"train": "c1"})
    case = replace(
        evidence(pod),
        devices={"c1": frozenset(map(CardUuid, has))},
        findable=frozenset(map(CardUuid, ("GPU-a", "GPU-b"))),
    )

    assert compare(case) == {Finding(kind=kind, subject="ml/train-0/train") for kind in kinds}


def test_a_card_whose_files_nobody_could_recognise_is_not_missed() -> None:
    pod = replace(running(), container_ids={"train": "c1"})

    assert compare(replace(evidence(pod), devices={"c1": frozenset()})) == frozenset()


def test_for_a_container_with_a_claim_kubelet_lists_all_cards_of_the_claim() -> None:
    assigned = running()
    pod = replace(running(assigned={}), record=assigned.record)

    assert compare(evidence(pod, holders=(a_holder(ids="gpu-a,gpu-b"),))) == frozenset()
    assert compare(evidence(pod, holders=())) == {
        Finding(kind=Disagreement.KUBELET_LACKS, subject="ml/train-0/train")
    }


def test_an_init_container_is_not_missed_in_kubelets_list() -> None:
    pod = running(
        assigned={"prepare": [("GPU-a", 1000)], "train": [("GPU-a", 1000)]},
        inits=[a_container("prepare", mib=1000)],
    )

    assert compare(evidence(pod)) == frozenset()


def test_a_process_of_no_pod_here_contradicts_no_assignment() -> None:
    assert compare(evidence(processes={"GPU-b": 7}, owner="uid-elsewhere")) == frozenset()


@dataclass(slots=True)
class FakeMetrics(DevicePluginMetrics):
    rounds: list[tuple[Mapping[str, int], Mapping[str, int]]] = field(default_factory=list)
    failed: int = 0
    unchecked: int = 0

    def consistency_checked(self, *, now: Mapping[str, int], new: Mapping[str, int]) -> None:
        self.rounds.append((now, new))

    def containers_not_checked(self, containers: int) -> None:
        self.unchecked = containers

    def consistency_check_failed(self) -> None:
        self.failed += 1

    def counts(self, kind: Disagreement) -> list[tuple[int, int]]:
        return [(now[kind.value], new[kind.value]) for now, new in self.rounds]


class FakeKubelet(PodResources):
    def __init__(self) -> None:
        self.answer: tuple[SlotHolder, ...] | PodResourcesError = (a_holder(),)

    async def holders(self) -> tuple[SlotHolder, ...]:
        if isinstance(self.answer, PodResourcesError):
            raise self.answer
        return self.answer


def an_audit(folder: Path, kubelet: FakeKubelet, metrics: FakeMetrics) -> ConsistencyCheck:
    pod = running()
    return ConsistencyCheck(
        pods=lambda: {("ml", "train-0"): pod},
        pod_resources=kubelet,
        attribution=Attribution(folder),
        visible_devices=VisibleDevices(folder),
        cards=tuple,
        clock=VirtualClock(),
        period_s=60,
        metrics=metrics,
    )


async def test_what_two_audits_find_is_counted_once_and_its_end_is_seen(tmp_path: Path) -> None:
    kubelet, metrics = FakeKubelet(), FakeMetrics()
    kubelet.answer = ()
    audit = an_audit(tmp_path, kubelet, metrics)

    for _ in range(3):
        await audit.audit()
    kubelet.answer = (a_holder(),)
    await audit.audit()

    assert metrics.counts(Disagreement.KUBELET_LACKS) == [(0, 0), (1, 1), (1, 0), (0, 0)]


async def test_without_kubelet_there_is_nothing_to_compare_and_that_is_told(
    tmp_path: Path,
) -> None:
    kubelet, metrics = FakeKubelet(), FakeMetrics()
    kubelet.answer = PodResourcesError("gone")
    audit = an_audit(tmp_path, kubelet, metrics)
    audit.observe({})

    await audit.audit()

    assert (metrics.failed, metrics.rounds) == (1, [])
