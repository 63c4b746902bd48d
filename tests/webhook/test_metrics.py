import math

from prometheus_client import CollectorRegistry

from webhook.metrics import Decision, WebhookMetrics


def test_every_outcome_is_there_from_the_start_and_counts_by_itself() -> None:
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry)

    metrics.decided(Decision.GRANTED, duration_s=0.004, dialect="kai")

    name = "fracgpu_webhook_decisions_total"
    counts = {
        decision.value: registry.get_sample_value(
            name, {"outcome": decision.value, "dialect": "none"}
        )
        for decision in Decision
    }
    assert counts == {decision.value: 0 for decision in Decision}
    kai = {"outcome": "granted", "dialect": "kai"}
    assert registry.get_sample_value(name, kai) == 1
    assert registry.get_sample_value("fracgpu_webhook_review_duration_seconds_sum") == 0.004


def test_the_age_of_the_inventory_is_asked_for_at_each_scrape() -> None:
    registry = CollectorRegistry()
    ages = iter([1.5, 2.5])
    WebhookMetrics(registry).watch_age(lambda: next(ages))

    name = "fracgpu_webhook_inventory_age_seconds"
    assert [registry.get_sample_value(name) for _ in range(2)] == [1.5, 2.5]


def test_certificates_are_counted_taken_or_refused() -> None:
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry)

    metrics.certificate(taken=True)
    metrics.certificate(taken=False)
    metrics.certificate(taken=False)

    name = "fracgpu_webhook_certificates_total"
    assert registry.get_sample_value(name, {"outcome": "taken"}) == 1
    assert registry.get_sample_value(name, {"outcome": "refused"}) == 2


def test_a_bad_configuration_is_counted_and_shown_as_long_as_it_stands() -> None:
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry)
    states = iter([False, True])

    metrics.config_refused()
    metrics.watch_config(lambda: next(states))

    assert registry.get_sample_value("fracgpu_webhook_config_refused_total") == 1
    valid = [registry.get_sample_value("fracgpu_webhook_config_valid") for _ in range(2)]
    assert valid == [0, 1]


def test_the_end_of_the_certificate_is_unknown_until_there_is_one() -> None:
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry)
    name = "fracgpu_webhook_certificate_expiry_seconds"

    assert math.isnan(registry.get_sample_value(name) or 0)
    metrics.watch_expiry(lambda: 60.0)
    assert registry.get_sample_value(name) == 60
