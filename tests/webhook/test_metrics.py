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
