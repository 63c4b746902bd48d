"""The names of every series that the roles can serve, read from their own registries."""

from prometheus_client import CollectorRegistry, generate_latest

from certs.metrics import CertsMetrics
from component.metrics import CertificateMetrics
from deviceplugin.exporter.families import DcgmNaming
from rebalancer.metrics import RebalancerMetrics
from scheduler.metrics import SchedulerMetrics
from tests.deviceplugin.exporter.test_collector import a_snapshot, a_snapshot_with_limits
from tests.deviceplugin.exporter.test_collector import exposition as cards_and_age
from tests.deviceplugin.exporter.test_families import exposition as cards_and_agent
from tests.fakes.clock import VirtualClock
from webhook.metrics import WebhookMetrics


def exposition() -> str:
    """Return what the roles serve before anything has happened, and an agent with cards."""
    registry = CollectorRegistry()
    SchedulerMetrics(registry)
    WebhookMetrics(registry)
    RebalancerMetrics(registry)
    CertsMetrics(registry, VirtualClock())
    for role in ("webhook", "scheduler"):
        CertificateMetrics(role, registry, VirtualClock())
    texts = [
        generate_latest(registry).decode(),
        cards_and_age(a_snapshot()),
        cards_and_age(a_snapshot_with_limits()),
        *(cards_and_agent(dialect) for dialect in DcgmNaming),
    ]
    return "".join(texts)


def exported() -> set[str]:
    """Return the names, also of metrics whose labels have no value yet."""
    names: set[str] = set()
    for line in exposition().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            endings = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
            names |= {f"{name}{ending}" for ending in endings}
    return names
