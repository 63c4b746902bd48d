"""The metric families of cards: ours, and NVIDIA's as three versions of its exporter name them.

Names, types and units are interfaces, so that dashboards made for dcgm-exporter keep working; the
help texts are ours. What a card does not measure is left out, never 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from deviceplugin.cards.interface import CardMetrics
from deviceplugin.exporter.usage import PodCardUsage
from fracgpu import names


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFamily:
    """A gauge of what any vendor's card measures."""

    name: str
    text: str
    value: Callable[[CardMetrics], float | None]


def _active_percent(card: CardMetrics) -> float | None:
    """Return how much of the card did work: its multiprocessors, or else its engines.

    After some driver errors one of the two stays at 0 although the card is busy
    (NVIDIA/dcgm-exporter#662).
    """
    measured = [
        ratio for ratio in (card.sm_active_ratio, card.gr_engine_ratio) if ratio is not None
    ]
    return 100 * next(filter(None, measured), 0.0) if measured else None


CARD_FAMILIES: Final = (
    CardFamily(
        name=names.METRIC_BUSY,
        text="Share of the period with a kernel running (%).",
        value=lambda card: card.gpu_percent,
    ),
    CardFamily(
        name=names.METRIC_ACTIVE,
        text="How much of the card did work (%).",
        value=_active_percent,
    ),
    CardFamily(
        name="fracgpu_card_memory_total_mib",
        text="Memory of the card (MiB).",
        value=lambda card: card.total_mib,
    ),
    CardFamily(
        name="fracgpu_card_memory_used_mib",
        text="Memory that programs hold (MiB).",
        value=lambda card: card.used_mib,
    ),
    CardFamily(
        name=names.METRIC_FREE,
        text="Memory that is free (MiB).",
        value=lambda card: card.free_mib,
    ),
    CardFamily(
        name="fracgpu_card_temperature_celsius",
        text="Temperature of the card (C).",
        value=lambda card: card.temperature_c,
    ),
    CardFamily(name=names.METRIC_POWER, text="Power drawn (W).", value=lambda card: card.power_w),
)


class DcgmNaming(Enum):
    """The version of dcgm-exporter whose names are used.

    ``CLASSIC`` is up to 4.8.2. 4.8.3 writes the label ``hostname`` in lower case. 4.9 can also
    write DCGM's newer names, in base units; from its notes, not compared with a running one.
    """

    CLASSIC = "classic"
    CLASSIC_4_8_3 = "classic-4.8.3"
    DCGM_4_9 = "dcgm-4.9"


DIALECTS: Final = tuple(naming.value for naming in DcgmNaming)
_HOST_LABEL: Final = {
    DcgmNaming.CLASSIC: "Hostname",
    DcgmNaming.CLASSIC_4_8_3: "hostname",
    DcgmNaming.DCGM_4_9: "hostname",
}


def host_label(dialect: DcgmNaming) -> str:
    """Return the label that holds the node's name."""
    return _HOST_LABEL[dialect]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricName:
    """A family's name and unit in one version; values are ours times *factor*."""

    name: str
    unit: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family.

    Attributes:
        value: returns the value from a card's metrics.
        pod: returns one pod's part from its usage; None where pods have no part. Only two
            families have one: copied to each pod, a card's temperature would be summed up.
    """

    kind: str
    text: str
    value: Callable[[CardMetrics], float | None]
    classic: MetricName
    newer: MetricName
    pod: Callable[[PodCardUsage], float | None] | None = None

    def spelled(self, dialect: DcgmNaming) -> MetricName:
        return self.newer if dialect is DcgmNaming.DCGM_4_9 else self.classic

    def help(self, dialect: DcgmNaming) -> str:
        """Return the help text, with the unit."""
        unit = self.spelled(dialect).unit
        return f"{self.text} ({unit})." if unit else f"{self.text}."


def _family(  # noqa: PLR0913 - one row of a table
    name: str,
    unit: str,
    text: str,
    value: Callable[[CardMetrics], float | None],
    newer: tuple[str, str, float] | None = None,
    *,
    kind: str = "gauge",
    pod: Callable[[PodCardUsage], float | None] | None = None,
) -> Family:
    classic = MetricName(name=f"DCGM_FI_{name}", unit=unit)
    if newer is None:
        return Family(kind=kind, text=text, value=value, classic=classic, newer=classic, pod=pod)
    new_name, new_unit, factor = newer
    newer_name = MetricName(name=f"DCGM_FI_{new_name}", unit=new_unit, factor=factor)
    return Family(kind=kind, text=text, value=value, classic=classic, newer=newer_name, pod=pod)


_COUNTER: Final = "counter"
_MIB: Final = 1024.0 * 1024.0
_MHZ: Final = 1e6
_PERCENT: Final = 0.01
_MJ: Final = 0.001

# fmt: off
FAMILIES: Final[tuple[Family, ...]] = (
    _family("DEV_SM_CLOCK", "MHz", "Clock of the SMs", lambda card: card.sm_clock_mhz,
            ("DEV_SM_CLOCK_HERTZ", "Hz", _MHZ)),
    _family("DEV_MEM_CLOCK", "MHz", "Clock of the memory", lambda card: card.memory_clock_mhz,
            ("DEV_MEMORY_CLOCK_HERTZ", "Hz", _MHZ)),
    _family("DEV_MEMORY_TEMP", "C", "Temperature of the memory",
            lambda card: card.memory_temperature_c, ("DEV_MEMORY_TEMP_CELSIUS", "C", 1.0)),
    _family("DEV_GPU_TEMP", "C", "Temperature of the card", lambda card: card.temperature_c,
            ("DEV_GPU_TEMP_CELSIUS", "C", 1.0)),
    _family("DEV_POWER_USAGE", "W", "Power drawn", lambda card: card.power_w,
            ("DEV_BOARD_POWER_WATTS", "W", 1.0)),
    _family("DEV_TOTAL_ENERGY_CONSUMPTION", "mJ", "Energy drawn since the driver was loaded",
            lambda card: card.energy_mj, ("DEV_GPU_ENERGY_JOULES_TOTAL", "J", _MJ), kind=_COUNTER),
    _family("DEV_PCIE_REPLAY_COUNTER", "", "PCIe packets sent again",
            lambda card: card.pcie_replays, ("DEV_PCIE_REPLAY_TOTAL", "", 1.0), kind=_COUNTER),
    _family("DEV_GPU_UTIL", "%", "Share of the period with a kernel running",
            lambda card: card.gpu_percent, ("DEV_GPU_UTIL_RATIO", "0 to 1", _PERCENT),
            pod=lambda pod: pod.sm_percent),
    _family("DEV_MEM_COPY_UTIL", "%", "Share of the period with memory being read or written",
            lambda card: card.memory_copy_percent, ("DEV_MEMORY_UTIL_RATIO", "0 to 1", _PERCENT)),
    _family("DEV_ENC_UTIL", "%", "Use of the video encoder", lambda card: card.encoder_percent,
            ("DEV_ENC_UTIL_RATIO", "0 to 1", _PERCENT)),
    _family("DEV_DEC_UTIL", "%", "Use of the video decoder", lambda card: card.decoder_percent,
            ("DEV_DEC_UTIL_RATIO", "0 to 1", _PERCENT)),
    _family("DEV_FB_TOTAL", "MiB", "Memory of the card", lambda card: card.total_mib,
            ("DEV_FB_CAPACITY_BYTES", "bytes", _MIB)),
    _family("DEV_FB_FREE", "MiB", "Memory that is free", lambda card: card.free_mib,
            ("DEV_FB_FREE_BYTES", "bytes", _MIB)),
    _family("DEV_FB_USED", "MiB", "Memory in use", lambda card: card.used_mib,
            ("DEV_FB_USED_BYTES", "bytes", _MIB), pod=lambda pod: pod.used_mib),
    _family("DEV_FB_RESERVED", "MiB", "Memory that the driver keeps",
            lambda card: card.reserved_mib, ("DEV_FB_RESERVED_BYTES", "bytes", _MIB)),
    _family("DEV_UNCORRECTABLE_REMAPPED_ROWS", "",
            "Memory rows remapped for errors that could not be corrected",
            lambda card: card.remapped_rows_uncorrectable,
            ("DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", "", 1.0), kind=_COUNTER),
    _family("DEV_CORRECTABLE_REMAPPED_ROWS", "",
            "Memory rows remapped for errors that could be corrected",
            lambda card: card.remapped_rows_correctable,
            ("DEV_ROW_REMAP_CORRECTABLE_TOTAL", "", 1.0), kind=_COUNTER),
    _family("DEV_ROW_REMAP_FAILURE", "", "1 if remapping a memory row failed",
            lambda card: card.row_remap_failed, ("DEV_ROW_REMAP_FAILED", "", 1.0)),
    _family("DEV_POWER_VIOLATION", "ns", "Time slowed down to keep to the power limit",
            lambda card: card.power_violation_ns, kind=_COUNTER),
    _family("DEV_THERMAL_VIOLATION", "ns", "Time slowed down to stay cool",
            lambda card: card.thermal_violation_ns, kind=_COUNTER),
    _family("DEV_VGPU_LICENSE_STATUS", "", "1 if a virtual card has its license",
            lambda card: card.vgpu_license),
    _family("PROF_GR_ENGINE_ACTIVE", "0 to 1",
            "Share of time with the graphics or compute engine busy",
            lambda card: card.gr_engine_ratio, ("PROF_GR_ENGINE_UTIL_RATIO", "0 to 1", 1.0)),
    _family("PROF_SM_ACTIVE", "0 to 1", "Share of SM cycles with a warp assigned",
            lambda card: card.sm_active_ratio, ("PROF_SM_UTIL_RATIO", "0 to 1", 1.0)),
    _family("PROF_SM_OCCUPANCY", "0 to 1", "Warps resident, of those that would have room",
            lambda card: card.sm_occupancy_ratio, ("PROF_SM_OCCUPANCY_RATIO", "0 to 1", 1.0)),
    _family("PROF_PIPE_TENSOR_ACTIVE", "0 to 1", "Share of cycles with a tensor pipe busy",
            lambda card: card.tensor_ratio, ("PROF_TENSOR_UTIL_RATIO", "0 to 1", 1.0)),
    _family("PROF_DRAM_ACTIVE", "0 to 1", "Share of the memory's bandwidth in use",
            lambda card: card.dram_ratio, ("PROF_DRAM_UTIL_RATIO", "0 to 1", 1.0)),
    _family("PROF_PIPE_FP64_ACTIVE", "0 to 1", "Share of cycles with an FP64 pipe busy",
            lambda card: card.fp64_ratio, ("PROF_FP64_UTIL_RATIO", "0 to 1", 1.0)),
    _family("PROF_PIPE_FP32_ACTIVE", "0 to 1", "Share of cycles with an FP32 pipe busy",
            lambda card: card.fp32_ratio, ("PROF_FP32_UTIL_RATIO", "0 to 1", 1.0)),
    _family("PROF_PIPE_FP16_ACTIVE", "0 to 1", "Share of cycles with an FP16 pipe busy",
            lambda card: card.fp16_ratio, ("PROF_FP16_UTIL_RATIO", "0 to 1", 1.0)),
    _family("PROF_PCIE_TX_BYTES", "bytes per second", "Sent over PCIe, headers included",
            lambda card: card.pcie_tx_bytes_per_s),
    _family("PROF_PCIE_RX_BYTES", "bytes per second", "Received over PCIe, headers included",
            lambda card: card.pcie_rx_bytes_per_s),
)
# fmt: on

# The family of XID errors has two more labels, so it is not a row of the table.
XID_TEXT: Final = "Code of the last XID error, 0 if there was none."
XIDS_TEXT: Final = "XID errors seen since the agent started, by code."
XIDS_NAME: Final = "DCGM_EXP_XID_ERRORS_TOTAL"
_XID_NAME: Final = {
    DcgmNaming.CLASSIC: "DCGM_FI_DEV_XID_ERRORS",
    DcgmNaming.CLASSIC_4_8_3: "DCGM_FI_DEV_XID_ERRORS",
    DcgmNaming.DCGM_4_9: "DCGM_FI_DEV_XID_ERROR",
}


def xid_name(dialect: DcgmNaming) -> str:
    """Return the name of the family of the last XID error."""
    return _XID_NAME[dialect]
