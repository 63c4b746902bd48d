"""The node agent's metrics of its own work, for Prometheus."""

from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from fracgpu import names
from process.telemetry import Registry


class DevicePluginMetrics:
    """Counters and gauges of the agent's own work."""

    def __init__(self, registry: Registry) -> None:
        self._starts = Counter(
            "fracgpu_deviceplugin_starts_total",
            "Container starts that were decided, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._start_s = Histogram(
            "fracgpu_deviceplugin_start_seconds",
            "Time of one answer about a container start, to kubelet or to the runtime.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self._registrations = Counter(
            "fracgpu_deviceplugin_registrations_total",
            "Registrations with kubelet, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._node_writes = Counter(
            "fracgpu_deviceplugin_node_writes_total",
            "Writes of capacity, labels and inventory to the node, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._disagreements = Counter(
            "fracgpu_deviceplugin_disagreements_total",
            "Disagreements found between assignment, kubelet, device files and processes, by kind.",
            ["kind"],
            registry=registry,
        )
        self._disagreeing = Gauge(
            "fracgpu_deviceplugin_disagreements_now",
            "Disagreements that the last consistency check confirmed, by kind.",
            ["kind"],
            registry=registry,
        )
        self._last_check = Gauge(
            "fracgpu_deviceplugin_last_consistency_check_success",
            "1 if the last consistency check could read kubelet's list, else 0.",
            registry=registry,
        )
        self._identity = Gauge(
            "fracgpu_deviceplugin_identity",
            "1 for how it is known whose container starts: nri, listed, claims, or none while the "
            "runtime has not been asked.",
            ["by"],
            registry=registry,
        )
        self._not_checked = Gauge(
            "fracgpu_deviceplugin_containers_not_checked",
            "Running containers with a card whose device files the last check could not see.",
            registry=registry,
        )
        self._promised = Gauge(
            "fracgpu_enforcement_promised",
            "Limits that running containers were promised, one for each card.",
            registry=registry,
        )
        self._unproven = Gauge(
            "fracgpu_enforcement_unproven",
            "Promised limits that did not stand at the last audit and could not be set again.",
            registry=registry,
        )
        self._repairs = Counter(
            "fracgpu_enforcement_repairs_total",
            "What audits put right: limits, or reservations of the cgroups above containers.",
            ["what"],
            registry=registry,
        )
        self._last_list = Gauge(
            "fracgpu_deviceplugin_last_card_list_success",
            "1 if the driver could list the cards the last time, else 0.",
            registry=registry,
        )
        self._last_collect = Gauge(
            "fracgpu_last_collect_success",
            "1 if the last reading of the cards succeeded, else 0.",
            registry=registry,
        )

    def started(self, outcome: str) -> None:
        """Count one container start: ``wired``, or why it was rejected."""
        self._starts.labels(outcome).inc()

    def start_took(self, duration_s: float) -> None:
        self._start_s.observe(duration_s)

    def registered(self, outcome: str) -> None:
        self._registrations.labels(outcome).inc()

    def node_written(self, outcome: str) -> None:
        self._node_writes.labels(outcome).inc()

    def consistency_checked(self, *, now: Mapping[str, int], new: Mapping[str, int]) -> None:
        """Record the disagreements of the last check: all of them, and the new ones, by kind."""
        self._last_check.set(1)
        for kind, count in now.items():
            self._disagreeing.labels(kind).set(count)
        for kind, count in new.items():
            self._disagreements.labels(kind).inc(count)

    def containers_not_checked(self, containers: int) -> None:
        """Record how many running containers could not be looked into."""
        self._not_checked.set(containers)

    def limits_audited(self, *, promised: int, unproven: int, restored: int, drifted: int) -> None:
        """Record the last audit of limits, and count what it put right."""
        self._promised.set(promised)
        self._unproven.set(unproven)
        self._repairs.labels("limit").inc(restored)
        self._repairs.labels("reservation").inc(drifted)

    def identity_is(self, way: str) -> None:
        """Record how it is known whose container starts, or ``none``."""
        for label in (names.IDENTITY_NRI, names.IDENTITY_LISTED, names.IDENTITY_CLAIMS, "none"):
            self._identity.labels(label).set(label == way)

    def consistency_check_failed(self) -> None:
        self._last_check.set(0)

    def cards_listed(self, success: bool) -> None:  # noqa: FBT001 - called back
        """Record whether the cards could be listed the last time."""
        self._last_list.set(1 if success else 0)

    def collected(self, *, success: bool) -> None:
        self._last_collect.set(1 if success else 0)
