"""The exposition, read back as Prometheus reads it."""

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.cards.interface import (
    CardMetrics,
    CardProcess,
    CardSample,
    GroupLimits,
)
from deviceplugin.exporter.collector import AgeCollector, CardCollector
from deviceplugin.exporter.usage import UsageSnapshot
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from tests.deviceplugin.builders import NODE, a_pod, a_usage_snapshot

TAKEN_AT_S = 1_700_000_000.0
FULL = CardMetrics(
    gpu_percent=40,
    memory_copy_percent=10,
    encoder_percent=0,
    decoder_percent=0,
    used_mib=300,
    free_mib=7200,
    reserved_mib=500,
    temperature_c=48,
    memory_temperature_c=51,
    power_w=150.5,
    energy_mj=123_456,
    sm_clock_mhz=1410,
    memory_clock_mhz=1593,
    pcie_replays=3,
    xid=0,
    remapped_rows_correctable=1,
    remapped_rows_uncorrectable=2,
    row_remap_failed=0,
)


def a_snapshot(figures: CardMetrics = FULL, *, processes_known: bool = True) -> UsageSnapshot:
    """One card with a busy pod, an idle pod and a foreign process."""
    processes = (
        CardProcess(pid=1, used_mib=Mib(200), sm_percent=30),
        CardProcess(pid=2, used_mib=Mib(100), sm_percent=10),
    )
    reading = CardSample(
        figures=figures,
        processes=processes if processes_known else (),
        processes_known=processes_known,
    )
    return a_usage_snapshot(
        reading,
        *(a_pod("busy"), a_pod("idle")),
        owners={1: "uid-busy"},
        taken_at_s=TAKEN_AT_S,
        driver="580.65.06",
    )


def exposition(snapshot: UsageSnapshot | None, *, age_s: float = 1.0) -> str:
    registry = CollectorRegistry()
    registry.register(
        CardCollector(
            node=NODE, latest=lambda: snapshot, now_s=lambda: TAKEN_AT_S + age_s, period_s=5.0
        )
    )
    registry.register(AgeCollector(latest=lambda: snapshot, now_s=lambda: TAKEN_AT_S + age_s))
    return generate_latest(registry).decode()


def samples(text: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]


def one(text: str, name: str, **labels: str) -> float:
    (value,) = [
        value
        for found, value in samples(text, name)
        if all(found.get(key) == value for key, value in labels.items())
    ]
    return value


def types(lines: list[str]) -> dict[str, str]:
    return dict(line.split()[2:4] for line in lines if line.startswith("# TYPE DCGM_"))


def test_the_newer_exposition_keeps_the_names_and_types() -> None:
    registry = CollectorRegistry()
    registry.register(
        CardCollector(node=NODE, latest=a_snapshot, now_s=lambda: TAKEN_AT_S, period_s=5.0)
    )

    lines = generate_openmetrics(registry).decode().splitlines()  # type: ignore[no-untyped-call]

    assert types(lines) == types(exposition(a_snapshot()).splitlines()) != {}


def test_a_card_line_carries_the_classic_labels_and_an_empty_pod() -> None:
    ((labels, value),) = samples(exposition(a_snapshot()), "DCGM_FI_DEV_GPU_TEMP")

    assert value == 48
    assert labels == {
        "gpu": "0",
        "UUID": "GPU-a",
        "pci_bus_id": "00000000:00:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA A30",
        "Hostname": NODE,
        "DCGM_FI_DRIVER_VERSION": "580.65.06",
        "node": NODE,
        "container": "",
        "namespace": "",
        "pod": "",
    }


def test_our_own_series_name_the_pod_uniquely() -> None:
    text = exposition(a_snapshot())

    ((labels, value), _) = samples(text, "fracgpu_pod_sm_util")
    assert value == 30
    assert labels == {
        "container": "train",
        "namespace": "ml",
        "pod": "busy",
        "pod_uid": "uid-busy",
        "UUID": "GPU-a",
        "node": NODE,
    }
    assert one(text, "fracgpu_pod_gpu_memory_used_mib", pod="busy") == 200
    assert one(text, "fracgpu_pod_gpu_memory_limit_mib", pod="idle") == 1000
    assert one(text, "fracgpu_pod_card_info", pod="idle", UUID="GPU-a") == 1
    assert one(text, "fracgpu_card_memory_allocated_mib", UUID="GPU-a", node=NODE) == 2000
    assert one(text, "fracgpu_unattributed_processes", UUID="GPU-a") == 1
    assert one(text, "fracgpu_unattributed_memory_mib", UUID="GPU-a") == 100
    assert one(text, "fracgpu_collect_timestamp_seconds") == TAKEN_AT_S


def a_snapshot_with_limits() -> UsageSnapshot:
    """One card with a pod whose limit stands, one without a limit, and one not counted."""
    stands = GroupLimits(guaranteed_mib=Mib(1000), limit_mib=Mib(1200), used_mib=Mib(640))
    none = GroupLimits(guaranteed_mib=Mib(0), limit_mib=None, used_mib=Mib(10))
    counted = {
        ("uid-one", "train", CardUuid("GPU-a")): stands,
        ("uid-two", "train", CardUuid("GPU-a")): none,
    }
    pods = [a_pod(name) for name in ("one", "two", "three")]
    return a_usage_snapshot(None, *pods, counted=counted, taken_at_s=TAKEN_AT_S)


def test_limit_guarantee_and_use_are_written_where_driver_or_kernel_count() -> None:
    text = exposition(a_snapshot_with_limits())

    assert one(text, "fracgpu_enforcement_limit_mib", pod="one") == 1200
    assert one(text, "fracgpu_enforcement_guaranteed_mib", pod="one") == 1000
    assert one(text, "fracgpu_enforcement_used_mib", pod="one", UUID="GPU-a") == 640
    assert one(text, "fracgpu_pod_gpu_memory_used_mib", pod="one") == 640
    # A limit that does not stand is none, and never 0.
    assert [labels["pod"] for labels, _ in samples(text, "fracgpu_enforcement_limit_mib")] == [
        "one"
    ]
    assert {labels["pod"] for labels, _ in samples(text, "fracgpu_enforcement_used_mib")} == {
        "one",
        "two",
    }


def test_unknown_processes_leave_the_pods_use_out_and_keep_their_limits() -> None:
    text = exposition(a_snapshot(processes_known=False))

    assert len(samples(text, "DCGM_FI_DEV_GPU_UTIL")) == 1
    assert not samples(text, "fracgpu_pod_sm_util")
    assert not samples(text, "fracgpu_unattributed_processes")
    assert len(samples(text, "fracgpu_pod_gpu_memory_limit_mib")) == 2


@pytest.mark.parametrize("sign", [1, -1])  # the clock may be set back
def test_an_old_snapshot_is_not_served_as_fresh_but_its_time_is_told(sign: int) -> None:
    fresh = exposition(a_snapshot(), age_s=sign * 15)
    stale = exposition(a_snapshot(), age_s=sign * 15.1)

    assert "DCGM_" in fresh
    assert "DCGM_" not in stale
    assert "fracgpu_pod_card_info" not in stale
    assert one(stale, "fracgpu_collect_timestamp_seconds") == TAKEN_AT_S
    assert one(stale, "fracgpu_deviceplugin_collect_age_seconds") == pytest.approx(sign * 15.1)


def test_what_was_written_holds_until_there_is_another_snapshot_or_it_is_too_old() -> None:
    snapshot, now_s = a_snapshot(), TAKEN_AT_S
    collector = CardCollector(node=NODE, latest=lambda: snapshot, now_s=lambda: now_s, period_s=5.0)
    first = collector.holds()
    observed = [first()]
    now_s += 15.1
    observed += [first(), collector.holds()()]
    snapshot, now_s = a_snapshot(), TAKEN_AT_S
    observed += [first(), collector.holds()()]

    assert observed == [True, False, True, False, True]


def test_before_the_first_reading_there_is_nothing() -> None:
    assert exposition(None) == ""
