"""The dashboard of single cards: who uses them, and how the hardware is."""

from typing import Final

from tools.dashboards.cluster import cards_kept_off, states_of_cards
from tools.dashboards.panels import (
    GOOD_IF_ONE,
    GOOD_IF_ZERO,
    GREEN,
    HEAT,
    RED,
    YELLOW,
    Dashboard,
    Kind,
    Panel,
    Query,
    Row,
    graph,
    stat,
)
from tools.dashboards.series import (
    CARD,
    NODE_AND_INDEX,
    OF_CARDS,
    RATE,
    by_card,
    with_card,
)

_POD: Final = f"{NODE_AND_INDEX} {{{{namespace}}}}/{{{{pod}}}} {{{{container}}}}"
# The line of a card as a whole; some families have one for each pod as well.
_LINE: Final = CARD.replace("}", ',pod=""}')
_BY: Final = "cluster, node, UUID, gpu, modelName"


def _either(classic: str, newer: str) -> str:
    """Return the rate of a counter that has two names."""
    return f"max by ({_BY}) (rate({classic}{_LINE}[{RATE}]) or rate({newer}{_LINE}[{RATE}]))"


def _slowed_down(nanoseconds: str) -> str:
    """Return the share of time, of a counter of nanoseconds."""
    return f"max by ({_BY}) (rate({nanoseconds}{_LINE}[{RATE}])) / 1e9"


_USE: Final = Row(
    title="Use",
    panels=(
        graph(
            "Busy",
            (f"card:gpu_busy:percent{CARD}", NODE_AND_INDEX),
            unit="percent",
            maximum=100,
            steps=HEAT,
            description="Share of time in which a kernel was running, however small.",
            width=12,
        ),
        graph(
            "Active",
            (f"card:gpu_active:percent{CARD}", NODE_AND_INDEX),
            unit="percent",
            maximum=100,
            description="How much of the card did work. NVIDIA's cards since Hopper have it.",
            width=12,
        ),
        states_of_cards(12),
        cards_kept_off(12),
        graph(
            "Memory",
            (f"card:gpu_memory_used:mib{CARD}", f"{NODE_AND_INDEX} used"),
            (f"card:gpu_memory_allocated:mib{CARD}", f"{NODE_AND_INDEX} allocated"),
            (f"card:gpu_memory_shareable:mib{CARD}", f"{NODE_AND_INDEX} shareable"),
            unit="mbytes",
            width=24,
        ),
    ),
)

_WHO: Final = Row(
    title="Who uses it",
    panels=(
        graph(
            "Busy, by pod",
            (with_card("fracgpu_pod_sm_util"), _POD),
            unit="percent",
            kind=Kind.STACKED,
            width=12,
        ),
        graph(
            "Memory, by pod",
            (with_card("fracgpu_pod_gpu_memory_used_mib"), _POD),
            unit="mbytes",
            kind=Kind.STACKED,
            width=12,
        ),
        graph(
            "Attributed to pods",
            (
                f"100 * card:gpu_attributed:ratio{CARD} and card:gpu_busy:percent{CARD} > 5",
                NODE_AND_INDEX,
            ),
            unit="percent",
            maximum=100,
            description="Share of a busy card's use that belongs to its pods.",
        ),
        graph(
            "Memory of no known pod",
            (by_card("fracgpu_unattributed_memory_mib"), NODE_AND_INDEX),
            unit="mbytes",
        ),
        graph(
            "Processes of no known pod",
            (by_card("fracgpu_unattributed_processes"), NODE_AND_INDEX),
        ),
    ),
)

_HARDWARE: Final = Row(
    title="Hardware",
    panels=(
        stat(
            "Takes new pods",
            f"min({by_card('fracgpu_card_healthy')})",
            steps=GOOD_IF_ONE,
            description="0: at least one of the selected cards does not.",
        ),
        stat(
            "Row remapping failed",
            f"sum(card:gpu_row_remap_failed:max{CARD})",
            steps=GOOD_IF_ZERO,
            description="Cards that need to be replaced.",
        ),
        Panel(
            title="XID errors since the agent started",
            kind=Kind.TABLE,
            queries=(
                Query(
                    expr=f"max by (node, gpu, UUID, xid) (DCGM_EXP_XID_ERRORS_TOTAL{_LINE})",
                    legend="errors",
                ),
                Query(
                    expr=f"max by (node, gpu, UUID, xid) (increase("
                    f"DCGM_EXP_XID_ERRORS_TOTAL{_LINE}[1h]))",
                    legend="in the last hour",
                ),
            ),
            no_value="none",
            width=16,
            height=4,
        ),
        graph(
            "Temperature",
            (f"card:gpu_temperature:celsius{CARD}", NODE_AND_INDEX),
            unit="celsius",
            steps=((None, GREEN), (80.0, YELLOW), (90.0, RED)),
        ),
        graph("Power", (f"card:gpu_power:watts{CARD}", NODE_AND_INDEX), unit="watt"),
        graph(
            "Slowed down",
            (
                _slowed_down("DCGM_FI_DEV_THERMAL_VIOLATION"),
                f"{NODE_AND_INDEX} to stay cool",
            ),
            (
                _slowed_down("DCGM_FI_DEV_POWER_VIOLATION"),
                f"{NODE_AND_INDEX} for its power limit",
            ),
            unit="percentunit",
            description="Share of time.",
        ),
        graph(
            "Rows of memory remapped",
            (
                f"max by ({_BY}) (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{_LINE}"
                f" or DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL{_LINE})",
                f"{NODE_AND_INDEX} uncorrectable",
            ),
            (
                f"max by ({_BY}) (DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS{_LINE}"
                f" or DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL{_LINE})",
                f"{NODE_AND_INDEX} correctable",
            ),
        ),
        graph(
            "PCIe packets sent again",
            (
                _either("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL"),
                NODE_AND_INDEX,
            ),
            unit="pps",
        ),
        graph(
            "Clock of the multiprocessors",
            (
                f"max by ({_BY}) (DCGM_FI_DEV_SM_CLOCK{_LINE} * 1e6"
                f" or DCGM_FI_DEV_SM_CLOCK_HERTZ{_LINE})",
                NODE_AND_INDEX,
            ),
            unit="hertz",
        ),
    ),
)

CARD_DASHBOARD: Final = Dashboard(
    uid="fracgpu-card",
    title="FracGPU / Card",
    description="Who uses a card, and how its hardware is.",
    variables=OF_CARDS,
    rows=(_USE, _WHO, _HARDWARE),
)
