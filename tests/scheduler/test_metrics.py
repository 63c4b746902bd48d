"""Metrics of the extender."""

import pytest
from prometheus_client import CollectorRegistry

from fracgpu.placement.policies.least_waste.library import LIBRARY
from fracgpu.state.ledger import ReservationState
from scheduler.metrics import (
    BindOutcome,
    RequestOutcome,
    SchedulerMetrics,
    Verb,
    Waiting,
    WaitReason,
)


def test_every_verb_and_outcome_is_there_from_the_start() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry)

    for verb in Verb:
        labels = {"verb": verb.value, "outcome": RequestOutcome.ANSWERED.value}
        assert registry.get_sample_value("fracgpu_scheduler_requests_total", labels) == 0
        # Without it the first requests would have no rate, and the dashboard no quantile of them.
        only = {"verb": verb.value}
        assert registry.get_sample_value("fracgpu_scheduler_request_seconds_count", only) == 0
    for outcome in BindOutcome:
        labels = {"outcome": outcome.value}
        assert registry.get_sample_value("fracgpu_scheduler_binds_total", labels) == 0


def test_a_request_is_counted_and_timed() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)

    metrics.request(Verb.FILTER, RequestOutcome.MALFORMED, took_s=0.003)

    labels = {"verb": "filter", "outcome": "malformed"}
    assert registry.get_sample_value("fracgpu_scheduler_requests_total", labels) == 1
    took_s = registry.get_sample_value("fracgpu_scheduler_request_seconds_sum", {"verb": "filter"})
    assert took_s == 0.003


def test_states_are_read_at_each_scrape() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)
    assumed = 3
    metrics.watch(
        assumed=lambda: assumed,
        leads=lambda: True,
        moves_served=lambda: False,
        reservations=lambda: dict.fromkeys(ReservationState, 2),
        longest_pause_s=lambda: assumed / 100,
        waiting=dict,
    )
    pause = "fracgpu_scheduler_event_loop_longest_pause_seconds"
    assert registry.get_sample_value(pause) == 0.03
    assert registry.get_sample_value("fracgpu_scheduler_assumptions") == 3

    assumed = 4
    assert registry.get_sample_value("fracgpu_scheduler_assumptions") == 4
    assert registry.get_sample_value("fracgpu_scheduler_leader") == 1
    assert registry.get_sample_value("fracgpu_scheduler_moves_served") == 0
    for state in ("held", "consumed", "lapsed", "unreadable"):
        labels = {"state": state}
        assert registry.get_sample_value("fracgpu_scheduler_reservations", labels) == 2


@pytest.mark.parametrize(("leads", "pods", "longest_s"), [(True, 3, 700.0), (False, 0, 0.0)])
def test_only_the_leader_counts_waiting_pods(*, leads: bool, pods: int, longest_s: float) -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry).watch(
        assumed=lambda: 0,
        leads=lambda: leads,
        moves_served=lambda: True,
        reservations=lambda: dict.fromkeys(ReservationState, 0),
        longest_pause_s=lambda: 0.0,
        waiting=lambda: {WaitReason.MEMORY: Waiting(pods=3, longest_s=700.0)},
    )

    def value(name: str, reason: str) -> float | None:
        return registry.get_sample_value(f"fracgpu_scheduler_{name}", {"reason": reason})

    assert value("waiting_pods", "memory") == pods
    assert value("longest_wait_seconds", "memory") == longest_s
    assert value("waiting_pods", "no_cards") == value("longest_wait_seconds", "no_cards") == 0


def test_it_tells_whether_the_library_of_least_waste_is_loaded() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry)

    assert LIBRARY.problem is None
    assert registry.get_sample_value("fracgpu_scheduler_fill_compiled") == 1
