"""What the agent tells Prometheus: NVIDIA's own names for cards, ours for pods and for itself."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.cards import Figures
from deviceplugin.usage import CardUse, PodUse, UsagePicture
from fracgpu.card import Health
from process.telemetry import Registry

# After as many collecting periods a picture is not served as if it were fresh.
_PERIODS_UNTIL_STALE: Final = 3

_NO_POD: Final[Mapping[str, str]] = {"container": "", "namespace": "", "pod": ""}


class DevicePluginMetrics:
    """Counters and gauges of the agent's own work."""

    def __init__(self, registry: Registry) -> None:
        self._starts = Counter(
            "fracgpu_deviceplugin_starts_total",
            "Container starts asked for, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self._start_s = Histogram(
            "fracgpu_deviceplugin_start_seconds",
            "Time to resolve one container start.",
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
        self._last_collect = Gauge(
            "fracgpu_last_collect_success",
            "1 if the last reading of the cards succeeded, else 0.",
            registry=registry,
        )

    def started(self, outcome: str) -> None:
        """Count one container start: ``wired``, or the kind of doubt."""
        self._starts.labels(outcome).inc()

    def start_took(self, duration_s: float) -> None:
        self._start_s.observe(duration_s)

    def registered(self, outcome: str) -> None:
        self._registrations.labels(outcome).inc()

    def node_written(self, outcome: str) -> None:
        self._node_writes.labels(outcome).inc()

    def collected(self, *, success: bool) -> None:
        self._last_collect.set(1 if success else 0)


# NVIDIA's families: name behind "DCGM_FI_", type, help, and the figure that is its value. Names,
# types and units are those of dcgm-exporter's classic dialect, so that dashboards keep working.
_FAMILIES: Final[tuple[tuple[str, str, str, Callable[[Figures], float | None]], ...]] = (
    ("DEV_SM_CLOCK", "gauge", "Clock of the SMs (MHz).", lambda it: it.sm_clock_mhz),
    ("DEV_MEM_CLOCK", "gauge", "Clock of the memory (MHz).", lambda it: it.memory_clock_mhz),
    (
        "DEV_MEMORY_TEMP",
        "gauge",
        "Temperature of the memory (degrees C).",
        lambda it: it.memory_temperature_c,
    ),
    ("DEV_GPU_TEMP", "gauge", "Temperature of the card (degrees C).", lambda it: it.temperature_c),
    ("DEV_POWER_USAGE", "gauge", "Power drawn (W).", lambda it: it.power_w),
    (
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Energy drawn since the driver was loaded (mJ).",
        lambda it: it.energy_mj,
    ),
    ("DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe packets sent again.", lambda it: it.pcie_replays),
    (
        "DEV_GPU_UTIL",
        "gauge",
        "Share of the period with a kernel running (%).",
        lambda it: it.gpu_percent,
    ),
    (
        "DEV_MEM_COPY_UTIL",
        "gauge",
        "Share of the period with memory being read or written (%).",
        lambda it: it.memory_copy_percent,
    ),
    ("DEV_ENC_UTIL", "gauge", "Use of the video encoder (%).", lambda it: it.encoder_percent),
    ("DEV_DEC_UTIL", "gauge", "Use of the video decoder (%).", lambda it: it.decoder_percent),
    ("DEV_FB_FREE", "gauge", "Memory that is free (MiB).", lambda it: it.free_mib),
    ("DEV_FB_USED", "gauge", "Memory in use (MiB).", lambda it: it.used_mib),
    ("DEV_FB_RESERVED", "gauge", "Memory that the driver keeps (MiB).", lambda it: it.reserved_mib),
    ("DEV_XID_ERRORS", "gauge", "Code of the last XID error.", lambda it: it.xid),
    (
        "DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Memory rows remapped for errors that could not be corrected.",
        lambda it: it.remapped_rows_uncorrectable,
    ),
    (
        "DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Memory rows remapped for errors that could be corrected.",
        lambda it: it.remapped_rows_correctable,
    ),
    (
        "DEV_ROW_REMAP_FAILURE",
        "gauge",
        "1 if remapping a memory row failed.",
        lambda it: it.row_remap_failed,
    ),
)


class _PlainCounter(str):
    """The type "counter" for a name without ``_total``: the library would write that behind it.

    NVIDIA's counters have no such ending, and every dashboard asks for them without it.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class CardCollector(Collector):
    """Serves the last picture of cards and pods, and nothing once it is too old to be true.

    Args:
        node: this node's name.
        picture: the last picture, or None before the first.
        now_s: seconds since the epoch.
        period_s: time between two pictures.
    """

    def __init__(
        self,
        *,
        node: str,
        picture: Callable[[], UsagePicture | None],
        now_s: Callable[[], float],
        period_s: float,
    ) -> None:
        self._node = node
        self._picture = picture
        self._now_s = now_s
        self._period_s = period_s

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: which families there are depends on the cards."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Write every family that has a value."""
        picture = self._picture()
        if picture is None:
            return
        # The time stays, however old: alerts tell a stale exporter by it.
        yield GaugeMetricFamily(
            "fracgpu_collect_timestamp_seconds",
            "When the cards were last read, in seconds since the epoch.",
            value=picture.taken_at_s,
        )
        age_s = self._now_s() - picture.taken_at_s
        yield GaugeMetricFamily(
            "fracgpu_collect_age_seconds", "Age of the figures of the cards.", value=age_s
        )
        if age_s > _PERIODS_UNTIL_STALE * self._period_s:
            return
        yield from self._nvidia_families(picture)
        yield from self._card_families(picture)
        yield from self._pod_families(picture)

    def _nvidia_families(self, picture: UsagePicture) -> Iterator[Metric]:
        for name, kind, text, value in _FAMILIES:
            family = _family(f"DCGM_FI_{name}", kind, text)
            for use in picture.cards:
                figure = value(use.reading.figures) if use.reading is not None else None
                if figure is None:  # a figure the card does not have is left out, never 0
                    continue
                labels = self._card_labels(use, picture)
                family.add_sample(family.name, {**labels, **_NO_POD}, figure)
                for pod, part in _pod_lines(name, use):
                    family.add_sample(family.name, {**labels, **_pod_labels(pod)}, part)
            if family.samples:
                yield family

    def _card_families(self, picture: UsagePicture) -> Iterator[Metric]:
        allocated = _family(
            "fracgpu_card_memory_allocated_mib", "gauge", "MiB of the card promised to live pods."
        )
        shareable = _family(
            "fracgpu_card_memory_shareable_mib", "gauge", "MiB of the card that may be promised."
        )
        healthy = _family("fracgpu_card_healthy", "gauge", "1 if the card takes new pods, else 0.")
        processes = _family(
            "fracgpu_unattributed_processes", "gauge", "Processes on the card of no pod here."
        )
        memory = _family(
            "fracgpu_unattributed_memory_mib", "gauge", "MiB held by processes of no pod here."
        )
        for use in picture.cards:
            card = use.facts.card
            labels = {"UUID": card.uuid, "node": self._node}
            allocated.add_sample(allocated.name, labels, use.allocated_mib)
            shareable.add_sample(shareable.name, labels, card.capacity_mib)
            healthy.add_sample(healthy.name, labels, 1 if card.health is Health.HEALTHY else 0)
            if use.reading is not None and use.reading.processes_known:
                processes.add_sample(processes.name, labels, use.unattributed_processes)
                memory.add_sample(memory.name, labels, use.unattributed_mib)
        yield from (allocated, shareable, healthy, processes, memory)

    def _pod_families(self, picture: UsagePicture) -> Iterator[Metric]:
        util = _family("fracgpu_pod_sm_util", "gauge", "The pod's part of the card's time (%).")
        used = _family(
            "fracgpu_pod_gpu_memory_used_mib", "gauge", "MiB of the card the pod's processes hold."
        )
        limit = _family(
            "fracgpu_pod_gpu_memory_limit_mib", "gauge", "MiB of the card promised to the pod."
        )
        info = _family("fracgpu_pod_card_info", "gauge", "1 for each pod and card it was given.")
        for use in picture.cards:
            for pod in use.pods:
                labels = {
                    **_pod_labels(pod),
                    "pod_uid": pod.pod_uid,
                    "UUID": use.facts.card.uuid,
                    "node": self._node,
                }
                info.add_sample(info.name, labels, 1)
                limit.add_sample(limit.name, labels, pod.limit_mib)
                if pod.sm_percent is not None:
                    util.add_sample(util.name, labels, pod.sm_percent)
                if pod.used_mib is not None:
                    used.add_sample(used.name, labels, pod.used_mib)
        yield from (util, used, limit, info)

    def _card_labels(self, use: CardUse, picture: UsagePicture) -> dict[str, str]:
        card = use.facts.card
        return {
            "gpu": str(card.index),
            "UUID": card.uuid,
            "pci_bus_id": use.facts.pci_bus_id,
            "device": f"nvidia{card.index}",
            "modelName": card.model,
            "Hostname": self._node,
            "DCGM_FI_DRIVER_VERSION": picture.driver,
            "node": self._node,
        }


def _pod_lines(name: str, use: CardUse) -> Iterator[tuple[PodUse, float]]:
    """Give the values of the two families that have a line for each pod, idle pods at 0.

    The others have none: copied to each pod, a card's temperature would be summed.
    """
    for pod in use.pods:
        part = {"DEV_GPU_UTIL": pod.sm_percent, "DEV_FB_USED": pod.used_mib}.get(name)
        if part is not None:
            yield pod, part


def _pod_labels(pod: PodUse) -> dict[str, str]:
    return {"container": pod.container, "namespace": pod.namespace, "pod": pod.pod}


def _family(name: str, kind: str, text: str) -> Metric:
    family = Metric(name, text, kind)
    if kind == "counter":
        family.type = _PlainCounter(kind)
    return family
