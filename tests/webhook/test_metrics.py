from prometheus_client import CollectorRegistry

from webhook.metrics import Decision, WebhookMetrics


def test_every_outcome_is_there_from_the_start_and_counts_by_itself() -> None:
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry)

    metrics.decided(Decision.GRANTED, duration_s=0.004)

    name = "fracgpu_webhook_decisions_total"
    counts = {it.value: registry.get_sample_value(name, {"outcome": it.value}) for it in Decision}
    assert counts == {"granted": 1, "untouched": 0, "refused": 0, "malformed": 0, "too_large": 0}
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
