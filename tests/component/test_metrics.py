"""The metrics that roles have in common."""

import math
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from component.metrics import CertificateMetrics, ConfigMetrics
from rebalancer.metrics import RebalancerMetrics
from scheduler.metrics import SchedulerMetrics
from tests.fakes.clock import VirtualClock
from webhook.metrics import WebhookMetrics


def test_a_configuration_is_valid_while_every_part_of_it_is() -> None:
    registry = CollectorRegistry()
    metrics = ConfigMetrics("webhook", registry)
    problems = ["", ""]

    metrics.watch(lambda: problems[0])
    metrics.watch(lambda: problems[1])

    def valid() -> float | None:
        return registry.get_sample_value("fracgpu_webhook_config_valid")

    assert valid() == 1
    problems[1] = "placement: strategy is tightest; want pack"
    assert valid() == 0
    problems[1] = ""
    assert valid() == 1


@pytest.mark.parametrize(
    ("role", "metrics"),
    [
        ("webhook", WebhookMetrics),
        ("scheduler", SchedulerMetrics),
        ("rebalancer", RebalancerMetrics),
    ],
)
def test_each_role_with_a_configuration_counts_refused_edits_from_nought(
    role: str, metrics: type[WebhookMetrics | SchedulerMetrics | RebalancerMetrics]
) -> None:
    registry = CollectorRegistry()
    name = f"fracgpu_{role}_config_refused_total"

    config = metrics(registry).config

    assert registry.get_sample_value(name) == 0
    config.refused()
    assert registry.get_sample_value(name) == 1


def test_certificates_are_counted_taken_or_refused() -> None:
    registry = CollectorRegistry()
    metrics = CertificateMetrics("scheduler", registry, VirtualClock())

    metrics.taken()
    metrics.refused()
    metrics.refused()

    name = "fracgpu_scheduler_certificates_total"
    assert registry.get_sample_value(name, {"outcome": "taken"}) == 1
    assert registry.get_sample_value(name, {"outcome": "refused"}) == 2


async def test_the_end_of_the_certificate_is_unknown_until_there_is_one_and_then_nears() -> None:
    registry = CollectorRegistry()
    clock = VirtualClock()
    metrics = CertificateMetrics("scheduler", registry, clock)
    name = "fracgpu_scheduler_certificate_expiry_seconds"

    assert math.isnan(registry.get_sample_value(name) or 0)
    metrics.expires(clock.now() + timedelta(minutes=2))
    assert registry.get_sample_value(name) == 120
    await clock.advance(30)
    assert registry.get_sample_value(name) == 90
