"""The exporter's output against a table written by hand: names, types, units, values, versions."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.cards.interface import CardMetrics
from deviceplugin.cards.xid import xid_meaning
from deviceplugin.exporter.collector import CardCollector
from deviceplugin.exporter.families import (
    CARD_FAMILIES,
    DIALECTS,
    FAMILIES,
    CardFamily,
    DcgmNaming,
)
from deviceplugin.metrics import DevicePluginMetrics
from fracgpu import names
from tests.deviceplugin.builders import NODE
from tests.deviceplugin.exporter.test_collector import TAKEN_AT_S, a_snapshot

MIB = 1024 * 1024
DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


@dataclass(frozen=True)
class Row:
    """One family: a metric with a value, and how each version writes that."""

    figure: str
    value: float
    kind: str
    classic: str
    classic_unit: str
    newer: str
    newer_unit: str
    newer_value: float


# figure, its value, type; classic name, unit; name of 4.9, unit, value.
# Sources: etc/default-counters.csv of dcgm-exporter 4.8.2, and for 4.9 DCGM's own list of fields.
# fmt: off
TABLE = tuple(Row(*row) for row in (
    ("sm_clock_mhz", 1410, "gauge",
     "DCGM_FI_DEV_SM_CLOCK", "MHz", "DCGM_FI_DEV_SM_CLOCK_HERTZ", "Hz", 1.41e9),
    ("memory_clock_mhz", 1593, "gauge",
     "DCGM_FI_DEV_MEM_CLOCK", "MHz", "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", "Hz", 1.593e9),
    ("memory_temperature_c", 51, "gauge",
     "DCGM_FI_DEV_MEMORY_TEMP", "C", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "C", 51),
    ("temperature_c", 48, "gauge",
     "DCGM_FI_DEV_GPU_TEMP", "C", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "C", 48),
    ("power_w", 150.5, "gauge",
     "DCGM_FI_DEV_POWER_USAGE", "W", "DCGM_FI_DEV_BOARD_POWER_WATTS", "W", 150.5),
    ("energy_mj", 123_000, "counter",
     "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "mJ", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "J", 123),
    ("pcie_replays", 3, "counter",
     "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "", 3),
    ("gpu_percent", 40, "gauge",
     "DCGM_FI_DEV_GPU_UTIL", "%", "DCGM_FI_DEV_GPU_UTIL_RATIO", "0 to 1", 0.4),
    ("memory_copy_percent", 10, "gauge",
     "DCGM_FI_DEV_MEM_COPY_UTIL", "%", "DCGM_FI_DEV_MEMORY_UTIL_RATIO", "0 to 1", 0.1),
    ("encoder_percent", 5, "gauge",
     "DCGM_FI_DEV_ENC_UTIL", "%", "DCGM_FI_DEV_ENC_UTIL_RATIO", "0 to 1", 0.05),
    ("decoder_percent", 6, "gauge",
     "DCGM_FI_DEV_DEC_UTIL", "%", "DCGM_FI_DEV_DEC_UTIL_RATIO", "0 to 1", 0.06),
    ("total_mib", 8000, "gauge",
     "DCGM_FI_DEV_FB_TOTAL", "MiB", "DCGM_FI_DEV_FB_CAPACITY_BYTES", "bytes", 8000 * MIB),
    ("free_mib", 7200, "gauge",
     "DCGM_FI_DEV_FB_FREE", "MiB", "DCGM_FI_DEV_FB_FREE_BYTES", "bytes", 7200 * MIB),
    ("used_mib", 300, "gauge",
     "DCGM_FI_DEV_FB_USED", "MiB", "DCGM_FI_DEV_FB_USED_BYTES", "bytes", 300 * MIB),
    ("reserved_mib", 500, "gauge",
     "DCGM_FI_DEV_FB_RESERVED", "MiB", "DCGM_FI_DEV_FB_RESERVED_BYTES", "bytes", 500 * MIB),
    ("remapped_rows_uncorrectable", 2, "counter",
     "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "",
     "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", "", 2),
    ("remapped_rows_correctable", 1, "counter",
     "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "",
     "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", "", 1),
    ("row_remap_failed", 0, "gauge",
     "DCGM_FI_DEV_ROW_REMAP_FAILURE", "", "DCGM_FI_DEV_ROW_REMAP_FAILED", "", 0),
    ("power_violation_ns", 1111, "counter",
     "DCGM_FI_DEV_POWER_VIOLATION", "ns", "DCGM_FI_DEV_POWER_VIOLATION", "ns", 1111),
    ("thermal_violation_ns", 2222, "counter",
     "DCGM_FI_DEV_THERMAL_VIOLATION", "ns", "DCGM_FI_DEV_THERMAL_VIOLATION", "ns", 2222),
    ("vgpu_license", 0, "gauge",
     "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "", "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "", 0),
    ("gr_engine_ratio", 0.5, "gauge",
     "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0 to 1", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", "0 to 1", 0.5),
    ("sm_active_ratio", 0.6, "gauge",
     "DCGM_FI_PROF_SM_ACTIVE", "0 to 1", "DCGM_FI_PROF_SM_UTIL_RATIO", "0 to 1", 0.6),
    ("sm_occupancy_ratio", 0.7, "gauge",
     "DCGM_FI_PROF_SM_OCCUPANCY", "0 to 1", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO", "0 to 1", 0.7),
    ("tensor_ratio", 0.8, "gauge",
     "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0 to 1", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", "0 to 1", 0.8),
    ("dram_ratio", 0.9, "gauge",
     "DCGM_FI_PROF_DRAM_ACTIVE", "0 to 1", "DCGM_FI_PROF_DRAM_UTIL_RATIO", "0 to 1", 0.9),
    ("fp64_ratio", 0.11, "gauge",
     "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "0 to 1", "DCGM_FI_PROF_FP64_UTIL_RATIO", "0 to 1", 0.11),
    ("fp32_ratio", 0.12, "gauge",
     "DCGM_FI_PROF_PIPE_FP32_ACTIVE", "0 to 1", "DCGM_FI_PROF_FP32_UTIL_RATIO", "0 to 1", 0.12),
    ("fp16_ratio", 0.13, "gauge",
     "DCGM_FI_PROF_PIPE_FP16_ACTIVE", "0 to 1", "DCGM_FI_PROF_FP16_UTIL_RATIO", "0 to 1", 0.13),
    ("pcie_tx_bytes_per_s", 1e9, "gauge",
     "DCGM_FI_PROF_PCIE_TX_BYTES", "bytes per second",
     "DCGM_FI_PROF_PCIE_TX_BYTES", "bytes per second", 1e9),
    ("pcie_rx_bytes_per_s", 2e9, "gauge",
     "DCGM_FI_PROF_PCIE_RX_BYTES", "bytes per second",
     "DCGM_FI_PROF_PCIE_RX_BYTES", "bytes per second", 2e9),
    ("xid", 79, "gauge",
     "DCGM_FI_DEV_XID_ERRORS", "", "DCGM_FI_DEV_XID_ERROR", "", 79),
))
# fmt: on
XIDS_TOTAL = "DCGM_EXP_XID_ERRORS_TOTAL"
# Read for the card's health alone; NVIDIA's default set has no such family.
NOT_EXPORTED = {"ecc_uncorrected"}

EVERYTHING = CardMetrics(**{row.figure: row.value for row in TABLE})


def exposition(dialect: DcgmNaming, figures: CardMetrics = EVERYTHING) -> str:
    snapshot = a_snapshot(figures)
    (use,) = snapshot.cards
    assert use.sample is not None
    reading = replace(use.sample, xids={79: 2, 31: 5})
    snapshot = replace(snapshot, cards=(replace(use, sample=reading),))
    registry = CollectorRegistry()
    registry.register(
        CardCollector(
            node=NODE,
            latest=lambda: snapshot,
            now_s=lambda: TAKEN_AT_S,
            period_s=5.0,
            dialect=dialect,
        )
    )
    DevicePluginMetrics(registry)
    return generate_latest(registry).decode()


@dataclass(frozen=True)
class Written:
    kind: str
    text: str
    samples: tuple[tuple[Mapping[str, str], float], ...]

    def of_card(self) -> float:
        """The value on the line of the card as a whole."""
        (value,) = [value for labels, value in self.samples if not labels["pod"]]
        return value


def written(dialect: DcgmNaming) -> dict[str, Written]:
    """Return NVIDIA's families, parsed from the text."""
    text = exposition(dialect)
    kinds = dict(re.findall(r"^# TYPE (DCGM_\S+) (\S+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (DCGM_\S+) (.+)$", text, re.MULTILINE))
    lines: dict[str, list[tuple[Mapping[str, str], float]]] = {name: [] for name in kinds}
    # This parser appends "_total" to a counter's name; without a type it leaves names alone.
    untyped = re.sub(r"^# TYPE .*\n", "", text, flags=re.MULTILINE)
    for family in text_string_to_metric_families(untyped):
        for sample in family.samples:
            if sample.name.startswith("DCGM_"):
                lines[sample.name].append((sample.labels, sample.value))
    return {
        name: Written(kind=kinds[name], text=helps[name], samples=tuple(lines[name]))
        for name in kinds
    }


def expected(dialect: DcgmNaming) -> Iterator[tuple[str, str, str, float]]:
    """Return name, type, unit and value of each family of the table."""
    for row in TABLE:
        if dialect is DcgmNaming.DCGM_4_9:
            yield row.newer, row.kind, row.newer_unit, row.newer_value
        else:
            yield row.classic, row.kind, row.classic_unit, row.value


@pytest.mark.parametrize("dialect", list(DcgmNaming))
def test_every_family_of_the_table_is_written_and_no_other(dialect: DcgmNaming) -> None:
    found = written(dialect)

    assert set(found) == {name for name, *_ in expected(dialect)} | {XIDS_TOTAL}
    for name, kind, unit, value in expected(dialect):
        assert found[name].kind == kind, name
        assert found[name].of_card() == pytest.approx(value), name
        if unit:
            assert found[name].text.endswith(f" ({unit})."), name
        else:
            assert "(" not in found[name].text, name


def test_every_figure_of_a_card_is_in_the_table_or_known_to_stay_inside() -> None:
    assert {row.figure for row in TABLE} | NOT_EXPORTED == {
        member.name for member in fields(CardMetrics)
    }
    assert len(FAMILIES) == len(TABLE) - 1  # XID errors have labels of their own


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.figure)
def test_a_figure_that_a_card_lacks_takes_its_family_away(row: Row) -> None:
    text = exposition(DcgmNaming.CLASSIC, replace(EVERYTHING, **{row.figure: None}))

    assert f"{row.classic}{{" not in text
    assert f"# TYPE {row.classic} " not in text


@pytest.mark.parametrize("dialect", list(DcgmNaming))
def test_pods_have_lines_in_two_families_and_every_line_names_the_card(dialect: DcgmNaming) -> None:
    newer = dialect is DcgmNaming.DCGM_4_9
    busy, memory = (
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_FB_USED_BYTES")
        if newer
        else ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")
    )
    pods = {
        name: {labels["pod"]: value for labels, value in family.samples if labels["pod"]}
        for name, family in written(dialect).items()
    }

    assert {name for name, lines in pods.items() if lines} == {busy, memory}
    assert pods[busy] == pytest.approx({"busy": 0.3 if newer else 30, "idle": 0})
    assert pods[memory] == {"busy": 200 * (MIB if newer else 1), "idle": 0}
    host = "Hostname" if dialect is DcgmNaming.CLASSIC else "hostname"
    common = {
        "gpu", "UUID", "pci_bus_id", "device", "modelName", host, "DCGM_FI_DRIVER_VERSION",
        "node", "pod", "namespace", "container",
    }  # fmt: skip
    more = {"err_code", "err_msg", "xid"}
    for family in written(dialect).values():
        for labels, _ in family.samples:
            assert set(labels) - more == common


def test_the_last_xid_error_is_explained_and_each_code_is_counted() -> None:
    found = written(DcgmNaming.CLASSIC)

    ((labels, value),) = found["DCGM_FI_DEV_XID_ERRORS"].samples
    assert (value, labels["err_code"], labels["err_msg"]) == (79, "79", xid_meaning(79))
    counts = {labels["xid"]: value for labels, value in found[XIDS_TOTAL].samples}
    assert counts == {"79": 2, "31": 5}
    assert found[XIDS_TOTAL].kind == "counter"
    assert xid_meaning(0) == "no error"
    assert xid_meaning(99_999) == "unknown error"


# What promtool says against NVIDIA's own names, which are not ours to change: nothing else.
LINT = {
    "label names should be written in 'snake_case' not 'camelCase'",  # modelName
    'counter metrics should have "_total" suffix',  # none of theirs has, or in capitals
    "metric name should not include type 'counter'",  # DCGM_FI_DEV_PCIE_REPLAY_COUNTER
}


@pytest.mark.parametrize("dialect", list(DcgmNaming))
def test_promtool_has_nothing_against_our_names_and_three_things_against_theirs(
    dialect: DcgmNaming,
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no program 'promtool' in PATH; it comes with Prometheus")

    answer = subprocess.run(  # noqa: S603 - found in PATH
        [promtool, "check", "metrics"],
        input=exposition(dialect),
        capture_output=True,
        text=True,
        check=False,
    )

    said = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
    remarks = {tuple(line.split(" ", 1)) for line in said}
    # The label modelName is NVIDIA's, by which dashboards choose cards.
    ours = {remark for name, remark in remarks if not name.startswith("DCGM_")}
    assert ours <= {"label names should be written in 'snake_case' not 'camelCase'"}
    assert {remark for _, remark in remarks} <= LINT
    kinds = {name: kind for name, kind, *_ in expected(dialect)} | {XIDS_TOTAL: "counter"}
    without_total = {name for name, remark in remarks if "_total" in remark}
    assert without_total == {name for name, kind in kinds.items() if kind == "counter"}
    assert {name for name, remark in remarks if "type 'counter'" in remark} <= {
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    }


def test_the_setting_offers_every_dialect() -> None:
    assert DIALECTS == ("classic", "classic-4.8.3", "dcgm-4.9")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.figure)
def test_every_family_stands_in_the_documentation_with_its_type_and_unit(row: Row) -> None:
    classic, newer = (name.removeprefix("DCGM_FI_") for name in (row.classic, row.newer))
    other = "the same" if newer == classic else f"`{newer}`"
    unit = row.classic_unit or "1"

    assert f"| `{classic}` | {row.kind} | {unit} | {other}" in DOCUMENT.read_text()


@pytest.mark.parametrize(
    ("sm", "engine", "percent"),
    [
        (0.3, 0.9, 30),
        (0.0, 0.9, 90),  # stuck
        (0.0, 0.0, 0),
        (None, 0.4, 40),
        (0.0, None, 0),
        (None, None, None),
    ],
)
def test_how_much_of_a_card_did_work_is_told_by_what_is_not_stuck(
    sm: float | None, engine: float | None, percent: float | None
) -> None:
    (family,) = (each for each in CARD_FAMILIES if each.name == names.METRIC_ACTIVE)
    figures = CardMetrics(sm_active_ratio=sm, gr_engine_ratio=engine)

    assert family.value(figures) == percent


def test_what_others_ask_for_is_exported_by_the_names_that_they_use() -> None:
    asked_for = {names.METRIC_BUSY, names.METRIC_ACTIVE, names.METRIC_FREE, names.METRIC_POWER}

    assert asked_for <= {family.name for family in CARD_FAMILIES}


@pytest.mark.parametrize("family", CARD_FAMILIES, ids=lambda family: family.name)
def test_every_family_of_our_own_stands_in_the_documentation(family: CardFamily) -> None:
    assert f"`{family.name}`" in DOCUMENT.read_text()
