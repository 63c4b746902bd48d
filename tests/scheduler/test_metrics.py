"""Metrics of the extender."""

from prometheus_client import CollectorRegistry

from fracgpu.placement.policies.least_waste.fill.compiled_fill import CompiledFill
from fracgpu.state.reservation_index import ReservationState
from scheduler.metrics import BindOutcome, RequestOutcome, SchedulerMetrics, Verb


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


def test_it_tells_whether_compiled_code_fills_nodes() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry)

    assert CompiledFill.problem is None
    assert registry.get_sample_value("fracgpu_scheduler_fill_compiled") == 1


def test_lapses_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)

    metrics.lapsed()

    assert registry.get_sample_value("fracgpu_scheduler_assumptions_lapsed_total") == 1
