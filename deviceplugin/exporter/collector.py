"""Writes metrics of cards and pods: ours for all, and NVIDIA's own names for its cards."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.cards.xid import xid_meaning
from deviceplugin.exporter.families import (
    CARD_FAMILIES,
    FAMILIES,
    XID_TEXT,
    XIDS_NAME,
    XIDS_TEXT,
    DcgmNaming,
    Family,
    host_label,
    xid_name,
)
from deviceplugin.exporter.overuse import Overuse
from deviceplugin.exporter.usage import CardUse, PodCardUsage, UsageSnapshot
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.cards.card_class import Vendor

# A snapshot that is older than this many periods is not served any more.
_PERIODS_UNTIL_STALE: Final = 3

# Present though empty: a scraper that honours labels would otherwise add the agent's own pod.
_NO_POD: Final[Mapping[str, str]] = {"container": "", "namespace": "", "pod": ""}

Labels = dict[str, str]


class _PlainCounter(str):
    """The type "counter" for a name without ``_total``, which the library would append.

    NVIDIA's counters have no such suffix, and every dashboard queries them without it.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class AgeCollector(Collector):
    """Serves when the cards were last read, however long ago: alerts depend on it.

    Args:
        latest: the latest snapshot, or None before the first.
        now_s: seconds since the epoch.
    """

    def __init__(
        self, *, latest: Callable[[], UsageSnapshot | None], now_s: Callable[[], float]
    ) -> None:
        self._latest = latest
        self._now_s = now_s

    def collect(self) -> Iterator[Metric]:
        """Yield the time and the age of the latest snapshot."""
        snapshot = self._latest()
        if snapshot is None:
            return
        yield GaugeMetricFamily(
            names.METRIC_COLLECTED,
            "When the cards were last read, in seconds since the epoch.",
            value=snapshot.taken_at_s,
        )
        yield GaugeMetricFamily(
            "fracgpu_deviceplugin_collect_age_seconds",
            "Age of the figures of the cards.",
            value=self._now_s() - snapshot.taken_at_s,
        )


class CardCollector(Collector):
    """Serves the latest snapshot of cards and pods, and nothing once it is stale.

    Args:
        node: this node's name.
        latest: the latest snapshot, or None before the first.
        now_s: seconds since the epoch.
        period_s: time between two snapshots.
        dialect: how NVIDIA's families are named.
        overuse: the pods that have used too much memory, as last found.
    """

    def __init__(
        self,
        *,
        node: str,
        latest: Callable[[], UsageSnapshot | None],
        now_s: Callable[[], float],
        period_s: float,
        dialect: DcgmNaming = DcgmNaming.CLASSIC,
        overuse: Callable[[], Iterable[Overuse]] = tuple,
    ) -> None:
        self._node = node
        self._latest = latest
        self._now_s = now_s
        self._period_s = period_s
        self._dialect = dialect
        self._overuse = overuse

    def describe(self) -> Iterable[Metric]:
        """Return nothing: which families there are depends on the cards."""
        return ()

    def holds(self) -> Callable[[], bool]:
        """Return a function that reports whether :meth:`collect` still yields the same."""
        snapshot = self._fresh()
        return lambda: self._fresh() is snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield every family that has a value."""
        snapshot = self._fresh()
        if snapshot is not None:
            yield from self._nvidia_families(snapshot)
            yield from self._card_families(snapshot)
            yield from self._pod_families(snapshot)
            yield from self._enforcement_families(snapshot)
            yield self._overuse_family()

    def _fresh(self) -> UsageSnapshot | None:
        snapshot = self._latest()
        if snapshot is None:
            return None
        age_s = abs(self._now_s() - snapshot.taken_at_s)  # the clock may have been set back since
        return snapshot if age_s <= _PERIODS_UNTIL_STALE * self._period_s else None

    def _nvidia_families(self, snapshot: UsageSnapshot) -> Iterator[Metric]:
        of_nvidia = [use for use in snapshot.cards if use.hardware.vendor is Vendor.NVIDIA]
        labels = {use.hardware.card.uuid: self._nvidia_labels(use) for use in of_nvidia}
        pods = {
            (use.hardware.card.uuid, position): {
                **labels[use.hardware.card.uuid],
                **_pod_labels(pod),
            }
            for use in of_nvidia
            for position, pod in enumerate(use.pods)
        }
        for family in FAMILIES:
            yield from self._nvidia_family(family, of_nvidia, labels, pods)
        yield from self._xid_families(of_nvidia, labels)

    def _nvidia_family(
        self,
        family: Family,
        uses: Sequence[CardUse],
        labels: Mapping[CardUuid, Labels],
        pods: Mapping[tuple[CardUuid, int], Labels],
    ) -> Iterator[Metric]:
        naming = family.spelled(self._dialect)
        metric = _metric(naming.name, family.kind, family.help(self._dialect))
        for use in uses:
            uuid = use.hardware.card.uuid
            figure = family.value(use.sample.figures) if use.sample is not None else None
            if figure is None:  # a metric that the card does not have is left out, never 0
                continue
            metric.add_sample(metric.name, labels[uuid], figure * naming.factor)
            if family.pod is None:
                continue
            for position, pod in enumerate(use.pods):
                part = family.pod(pod)
                if part is not None:
                    metric.add_sample(metric.name, pods[uuid, position], part * naming.factor)
        if metric.samples:
            yield metric

    def _xid_families(
        self, uses: Sequence[CardUse], labels: Mapping[CardUuid, Labels]
    ) -> Iterator[Metric]:
        last = _metric(xid_name(self._dialect), "gauge", XID_TEXT)
        # Its name has the suffix for counters in capitals, which the library does not recognise.
        total = _metric(XIDS_NAME, "counter", XIDS_TEXT)
        for use in uses:
            if use.sample is None or use.sample.figures.xid is None:
                continue
            card_labels = labels[use.hardware.card.uuid]
            code = int(use.sample.figures.xid)
            error_labels = {"err_code": str(code), "err_msg": xid_meaning(code)}
            last.add_sample(last.name, {**card_labels, **error_labels}, code)
            for xid, count in sorted(use.sample.xids.items()):
                total.add_sample(total.name, {**card_labels, "xid": str(xid)}, count)
        yield from (family for family in (last, total) if family.samples)

    def _card_families(self, snapshot: UsageSnapshot) -> Iterator[Metric]:
        allocated = _metric(
            "fracgpu_card_memory_allocated_mib", "gauge", "MiB of the card assigned to live pods."
        )
        shareable = _metric(
            names.METRIC_SHAREABLE, "gauge", "MiB of the card that can be assigned."
        )
        healthy = _metric("fracgpu_card_healthy", "gauge", "1 if the card takes new pods, else 0.")
        processes = _metric(
            "fracgpu_unattributed_processes",
            "gauge",
            "Processes on the card that belong to no pod with a slice of it.",
        )
        memory = _metric(
            "fracgpu_unattributed_memory_mib",
            "gauge",
            "MiB held by processes that belong to no pod with a slice of the card.",
        )
        degraded = _metric(
            "fracgpu_deviceplugin_attribution_degraded",
            "gauge",
            "1 if it is unknown which processes keep the card busy, else 0.",
        )
        for use in snapshot.cards:
            card = use.hardware.card
            labels = self._card_labels(card)
            allocated.add_sample(allocated.name, labels, use.allocated_mib)
            shareable.add_sample(shareable.name, labels, card.capacity_mib)
            healthy.add_sample(healthy.name, labels, 1 if card.health is Health.HEALTHY else 0)
            if use.sample is not None and use.sample.processes_known:
                processes.add_sample(processes.name, labels, use.unattributed_processes)
                memory.add_sample(memory.name, labels, use.unattributed_mib)
            if use.sample is not None:
                degraded.add_sample(degraded.name, labels, 1 if use.degraded else 0)
        yield from (allocated, shareable, healthy, processes, memory, degraded)
        for measured in CARD_FAMILIES:
            family = _metric(measured.name, "gauge", measured.text)
            for use in snapshot.cards:
                value = measured.value(use.sample.figures) if use.sample is not None else None
                if value is not None:
                    family.add_sample(family.name, self._card_labels(use.hardware.card), value)
            if family.samples:
                yield family

    def _pod_families(self, snapshot: UsageSnapshot) -> Iterator[Metric]:
        util = _metric(names.METRIC_POD_BUSY, "gauge", "The pod's part of the card's time (%).")
        used = _metric(
            "fracgpu_pod_gpu_memory_used_mib",
            "gauge",
            "MiB of the card that the pod's processes hold.",
        )
        limit = _metric(
            "fracgpu_pod_gpu_memory_limit_mib", "gauge", "MiB of the card assigned to the pod."
        )
        info = _metric(
            "fracgpu_pod_card_info", "gauge", "1 for each pod and each card assigned to it."
        )
        for use in snapshot.cards:
            for pod in use.pods:
                labels = self._labels(use, pod)
                info.add_sample(info.name, labels, 1)
                limit.add_sample(limit.name, labels, pod.mib)
                if pod.sm_percent is not None:
                    util.add_sample(util.name, labels, pod.sm_percent)
                if pod.used_mib is not None:
                    used.add_sample(used.name, labels, pod.used_mib)
        yield from (util, used, limit, info)

    def _enforcement_families(self, snapshot: UsageSnapshot) -> Iterator[Metric]:
        limit = _metric(
            "fracgpu_enforcement_limit_mib",
            "gauge",
            "The container's limit on the card, in MiB, as driver or kernel have it.",
        )
        guaranteed = _metric(
            "fracgpu_enforcement_guaranteed_mib",
            "gauge",
            "MiB of the card that driver or kernel keep for the container.",
        )
        used = _metric(
            "fracgpu_enforcement_used_mib",
            "gauge",
            "MiB of the card that the container uses, by the count of driver or kernel.",
        )
        for use in snapshot.cards:
            for pod in use.pods:
                if pod.counted is None:
                    continue
                labels = self._labels(use, pod)
                if pod.counted.limit_mib is not None:
                    limit.add_sample(limit.name, labels, pod.counted.limit_mib)
                guaranteed.add_sample(guaranteed.name, labels, pod.counted.guaranteed_mib)
                used.add_sample(used.name, labels, pod.counted.used_mib)
        yield from (family for family in (limit, guaranteed, used) if family.samples)

    def _overuse_family(self) -> Metric:
        beyond = _metric(
            names.METRIC_POD_OVERUSE,
            "gauge",
            "MiB that the pod has used beyond its share of the card for 5 minutes.",
        )
        for each in self._overuse():
            labels = {
                "container": "",
                "namespace": each.namespace,
                "pod": each.pod,
                "pod_uid": each.pod_uid,
                "UUID": each.card,
                "node": self._node,
            }
            beyond.add_sample(beyond.name, labels, each.beyond_mib)
        return beyond

    def _labels(self, use: CardUse, pod: PodCardUsage) -> Labels:
        return {
            **_pod_labels(pod),
            "pod_uid": pod.pod_uid,
            "UUID": use.hardware.card.uuid,
            "node": self._node,
        }

    def _card_labels(self, card: Card) -> Labels:
        return {
            "gpu": str(card.index),
            "UUID": card.uuid,
            "modelName": card.model,
            "node": self._node,
        }

    def _nvidia_labels(self, use: CardUse) -> Labels:
        card = use.hardware.card
        return {
            **self._card_labels(card),
            "pci_bus_id": use.hardware.pci_bus_id,
            "device": f"nvidia{card.index}",
            host_label(self._dialect): self._node,
            "DCGM_FI_DRIVER_VERSION": use.hardware.driver,
            **_NO_POD,
        }


def _pod_labels(pod: PodCardUsage) -> Labels:
    return {"container": pod.container, "namespace": pod.namespace, "pod": pod.pod}


def _metric(name: str, kind: str, text: str) -> Metric:
    family = Metric(name, text, kind)
    if kind == "counter":
        family.type = _PlainCounter(kind)
    return family
