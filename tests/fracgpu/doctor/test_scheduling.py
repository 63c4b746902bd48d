"""Faults of scheduling, planted one by one."""

from datetime import timedelta
from typing import Any

import pytest

from fracgpu.doctor.facts import Facts
from fracgpu.doctor.finding import Verdict
from tests.support.examined import (
    LEADER,
    NOON,
    a_lease,
    a_slice,
    found_by,
    healthy,
    profile,
    result_of,
)
from tests.support.gpu import a_gpu_pod


def with_profile(configuration: dict[str, Any]) -> Facts:
    return healthy(scheduler_configurations={"ConfigMap p, key profile.yaml": configuration})


def test_a_profile_without_the_extender_is_found() -> None:
    finding = found_by("scheduler-profile", with_profile({**profile(), "extenders": []}))

    assert "no extender for fracgpu.io/gpu-mem" in finding.seen
    assert "kubectl apply --server-side" in finding.cure


@pytest.mark.parametrize("percent", [None, 50, 0])
def test_a_profile_that_does_not_score_every_node_is_found(percent: int | None) -> None:
    changed = profile()
    changed["profiles"][0]["percentageOfNodesToScore"] = percent
    if percent is None:
        del changed["profiles"][0]["percentageOfNodesToScore"]

    finding = found_by("scheduler-profile", with_profile(changed))

    assert "percentageOfNodesToScore" in finding.seen
    assert "set it to 100" in finding.cure


def test_a_percentage_for_all_profiles_will_do() -> None:
    changed = profile()
    del changed["profiles"][0]["percentageOfNodesToScore"]
    changed["percentageOfNodesToScore"] = 100

    assert result_of("scheduler-profile", with_profile(changed)).verdict is Verdict.FINE


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("ignorable", True, "is ignorable"), ("bindVerb", "", "has no bindVerb")],
)
def test_an_extender_that_can_be_passed_is_found(key: str, value: object, words: str) -> None:
    changed = profile()
    changed["extenders"][0][key] = value

    assert words in found_by("scheduler-profile", with_profile(changed)).seen


def test_a_missing_profile_is_found_and_an_unseen_configuration_is_not_checked() -> None:
    changed = profile()
    changed["profiles"][0]["schedulerName"] = "another"

    assert (
        "no profile fracgpu-scheduler" in found_by("scheduler-profile", with_profile(changed)).seen
    )

    unseen = result_of("scheduler-profile", healthy(scheduler_configurations={}))
    assert unseen.verdict is Verdict.NOT_CHECKED


def test_a_waiting_pod_of_a_scheduler_that_asks_nobody_is_found() -> None:
    ours, other = a_gpu_pod("ours"), a_gpu_pod("other", schedulerName="default-scheduler")

    finding = found_by("scheduler-names", healthy(waiting=(ours, other)))

    assert "1 waiting pod with schedulerName default-scheduler" in finding.seen
    assert "default/other" in finding.seen
    assert "docs/webhook.md" in finding.cure
    assert result_of("scheduler-names", healthy(waiting=(ours,))).verdict is Verdict.FINE
    unseen = healthy(waiting=(other,), scheduler_configurations={})
    assert result_of("scheduler-names", unseen).verdict is Verdict.NOT_CHECKED


def test_an_extender_without_a_leader_is_found() -> None:
    rebalancer = a_lease("fracgpu-rebalancer", "r")
    for lease in ((), (a_lease("fracgpu-scheduler-extender", ""),)):
        finding = found_by("extender-leads", healthy(leases=(*lease, rebalancer)))

        assert "Lease fracgpu-scheduler-extender has no holder" in finding.seen
        assert "logs deployment/fracgpu-scheduler" in finding.cure


def test_a_leader_that_does_not_renew_is_found() -> None:
    stale = a_lease("fracgpu-scheduler-extender", LEADER, renewed=NOON - timedelta(minutes=5))

    finding = found_by("extender-leads", healthy(leases=(stale,)))

    assert f"holder {LEADER} has not renewed it since 2026-11-20 11:55:00 UTC" in finding.seen


def test_an_endpoint_slice_that_leads_to_another_is_found() -> None:
    webhook = a_slice("w", "10.1.0.3", service="fracgpu-webhook")
    for slice_, words in (
        (a_slice("fracgpu-scheduler-leader", "10.1.0.66"), "has 10.1.0.66, but the leader"),
        (a_slice("fracgpu-scheduler-leader"), "has no endpoint"),
        (a_slice("another", "10.1.0.7"), "is missing"),
    ):
        finding = found_by("extender-leads", healthy(slices=(webhook, slice_)))

        assert words in finding.seen
        assert "logs -l app.kubernetes.io/name=fracgpu-scheduler" in finding.cure


def test_a_rebalancer_that_nobody_leads_is_found() -> None:
    extender = a_lease("fracgpu-scheduler-extender", LEADER)

    assert "hot cards" in found_by("rebalancer-leads", healthy(leases=(extender,))).seen
