import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fracgpu.cards.card_class import CardClass
from fracgpu.request.grant_note import Seal
from tests.webhook.builders import (
    A30S,
    CLASSES,
    H100S,
    RULES,
    Json,
    a_container,
    a_pod,
    judged,
    parsed,
    stored,
)
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import admit_create, judge_create
from webhook.admission.verdict import AdmissionResult, Granted, Patched
from webhook.admission_config import AdmissionConfig
from webhook.recent_decisions import RecentDecisions

NOW: Final = datetime(2026, 11, 22, 12, 0, 0, 250_000, tzinfo=UTC)
SEAL: Final = Seal(key=b"k", scope="ml", now=NOW)
LABELS: Final[Mapping[str, str]] = {}
KAI: Final = {"fracgpu.io/dialects": "kai"}

PLAIN: Final = a_container(resources={"limits": {"fracgpu.io/gpu-mem": "8"}})
PODS: Final[tuple[Json, ...]] = (
    a_pod(),
    a_pod(fraction="0.5"),
    a_pod(fraction="0.25"),
    a_pod(fraction="2"),
    a_pod(a_container(env=[{"name": "A", "value": "1"}]), fraction="0.5"),
    a_pod(a_container("eval"), fraction="0.5"),
    {**a_pod(fraction="0.5"), "metadata": {"annotations": {"gpu-fraction": "0.5"}}},
    {"spec": a_pod(PLAIN)["spec"]},
    {"spec": a_pod(PLAIN)["spec"], "metadata": {}},
    {"spec": a_pod(PLAIN)["spec"], "metadata": {"annotations": {}}},
    {**a_pod(fraction="0.5"), "metadata": {"labels": {"fracgpu.io/fraction": "0.5"}}},
    a_pod(a_container(resources={"limits": {"fracgpu.io/gpu-mem": 10**30}})),
    a_pod(a_container(resources={"limits": {"fracgpu.io/gpu-mem": 8}})),
    a_pod(a_container(resources={"limits": {"fracgpu.io/gpu-mem": "8"}})),
    a_pod(a_container(resources={"limits": {"fracgpu.io/gpu-mem": 8.0}})),
    stored(a_pod(fraction="0.5"), judged(a_pod(fraction="0.5"))),
    stored(a_pod(fraction="0.25"), judged(a_pod(fraction="0.25"), [A30S])),
)

WORLDS: Final[tuple[tuple[CardClass, ...] | None, ...]] = (None, (), CLASSES, (A30S, H100S))
CONFIGS: Final = (RULES, replace(RULES, scheduler_name=""), replace(RULES, void_others=False))


def decided(
    recent: RecentDecisions,
    pod: Json,
    *,
    labels: Mapping[str, str] = LABELS,
    seal: Seal = SEAL,
) -> AdmissionResult:
    return decided_in(recent, pod, CLASSES, RULES, labels, seal)


def decided_in(
    recent: RecentDecisions,
    pod: Json,
    classes: Sequence[CardClass] | None,
    config: AdmissionConfig,
    labels: Mapping[str, str],
    seal: Seal,
) -> AdmissionResult:
    found = judge_create(
        parsed(pod),
        DecisionContext(classes=classes, config=config, namespace_labels=labels, seal=seal),
        decide=recent.decide,
    )
    assert not isinstance(found, Granted)
    return found


@given(
    st.lists(
        st.tuples(
            st.sampled_from(PODS),
            st.sampled_from(WORLDS),
            st.sampled_from(CONFIGS),
            st.sampled_from((LABELS, KAI)),
            st.builds(
                Seal,
                key=st.sampled_from((b"k", b"other")),
                scope=st.sampled_from(("ml", "web")),
                now=st.sampled_from((0, 0.5, 1, 3600)).map(lambda s: NOW + timedelta(seconds=s)),
            ),
        ),
        max_size=30,
    )
)
def test_whatever_was_decided_before_the_decision_is_that_of_admit_create(
    asked: list[
        tuple[Json, tuple[CardClass, ...] | None, AdmissionConfig, Mapping[str, str], Seal]
    ],
) -> None:
    recent = RecentDecisions()

    for pod, classes, config, labels, seal in asked:
        found = decided_in(recent, pod, classes, config, labels, seal)

        assert found == admit_create(
            parsed(pod),
            DecisionContext(classes=classes, config=config, namespace_labels=labels, seal=seal),
        )


@pytest.mark.parametrize("pods", [PODS, PODS[::-1]], ids=["in order", "backwards"])
def test_no_pod_gets_the_decision_on_another(pods: tuple[Json, ...]) -> None:
    recent = RecentDecisions()

    for pod in (*pods, *pods):
        assert decided(recent, pod) == admit_create(
            parsed(pod),
            DecisionContext(classes=CLASSES, config=RULES, namespace_labels=LABELS, seal=SEAL),
        )


def test_pods_that_are_alike_are_sealed_once_in_a_second() -> None:
    recent = RecentDecisions()

    first = decided(recent, a_pod(fraction="0.5"))
    twin = decided(
        recent, a_pod(fraction="0.5"), seal=structs.replace(SEAL, now=NOW.replace(microsecond=1))
    )
    later = decided(
        recent, a_pod(fraction="0.5"), seal=structs.replace(SEAL, now=NOW + timedelta(seconds=1))
    )

    assert twin is first
    assert isinstance(later, Patched)
    assert later != first  # its seal has another time


@pytest.mark.parametrize("text", ["", "x"])
def test_what_admission_does_not_read_makes_no_difference(text: str) -> None:
    recent = RecentDecisions()
    train = a_container(
        image="app:2", args=[text], env=[{"name": "A", "value": text}], resources={"limits": {}}
    )
    other = a_container(env=[], resources={"limits": {"cpu": "1", "memory": "1Gi"}})
    pod = a_pod(train, fraction="0.5", spec={"hostname": text})
    pod["metadata"]["generateName"] = f"job-{text}"
    pod["metadata"]["labels"] = {"pod-template-hash": text}
    pod["metadata"]["annotations"][f"checksum/{text}"] = text
    like = a_pod(other, fraction="0.5")
    like["metadata"]["labels"] = {}

    assert decided(recent, pod) is decided(recent, like)
    assert decided(recent, pod) == admit_create(
        parsed(like),
        DecisionContext(classes=CLASSES, config=RULES, namespace_labels=LABELS, seal=SEAL),
    )


@given(st.sampled_from(PODS), st.sampled_from(WORLDS), st.sampled_from((LABELS, KAI)))
def test_a_decision_holds_for_longer_than_its_seal(
    pod: Json, classes: tuple[CardClass, ...] | None, labels: Mapping[str, str]
) -> None:
    recent, hour = RecentDecisions(), structs.replace(SEAL, now=NOW + timedelta(hours=1))

    decided_in(recent, pod, classes, RULES, labels, SEAL)

    assert decided_in(recent, pod, classes, RULES, labels, hour) == admit_create(
        parsed(pod),
        DecisionContext(classes=classes, config=RULES, namespace_labels=labels, seal=hour),
    )


@pytest.mark.parametrize("text", ["", "x"])
def test_one_namespace_is_like_another_that_enables_the_same_dialects(text: str) -> None:
    recent = RecentDecisions()
    pod = a_pod(fraction="2")

    assert decided(recent, pod, labels={"team": text}) is decided(recent, pod)


def test_a_pod_with_a_grant_is_decided_by_itself() -> None:
    recent = RecentDecisions()
    granted = stored(a_pod(fraction="0.5"), decided(recent, a_pod(fraction="0.5")))

    first, second = decided(recent, granted), decided(recent, granted)

    assert first == second
    assert first is not second


def test_what_is_remembered_takes_little_memory() -> None:
    recent = RecentDecisions()
    many = [a_container(f"container-{number}") for number in range(60)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(250):
            asked = ", ".join(f"container-{each}=0.{number + 1:05}" for each in range(60))
            decided(recent, a_pod(*many, fraction=asked))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert 2**20 < held < 6 * 2**20


def test_nothing_is_remembered_of_a_long_pod() -> None:
    recent = RecentDecisions()
    long = a_pod(fraction="0.5", also={"model": "x" * 10_000})

    assert decided(recent, long) is not decided(recent, long)
