"""The dashboard of pods: where they are, what they use, what they were assigned."""

from typing import Final

from tools.dashboards.panels import Dashboard, Kind, Panel, Query, Row, graph, stat
from tools.dashboards.series import OF_PODS, POD, with_card

_NAME: Final = "{{namespace}}/{{pod}} {{container}} on {{node}}/{{gpu}}"
_BY: Final = "cluster, namespace, pod, container, node, UUID"
_USED: Final = f"fracgpu_pod_gpu_memory_used_mib{POD}"
_LIMIT: Final = f"fracgpu_pod_gpu_memory_limit_mib{POD}"
_KEPT: Final = f"fracgpu_enforcement_guaranteed_mib{POD}"
_LIMITED: Final = f"fracgpu_enforcement_limit_mib{POD}"
_OVERUSED: Final = f"fracgpu_pod_gpu_memory_overused_mib{POD}"
_BUSY: Final = f"fracgpu_pod_sm_util{POD}"


def _of(series: str) -> str:
    """Return a series for each container and card, with the card's index and model."""
    return with_card(f"max by ({_BY}) ({series})")


_SUMMARY: Final = Row(
    title="Now",
    panels=(
        stat(
            "Pods on cards",
            f"count(group by (cluster, namespace, pod) ({_of(f'fracgpu_pod_card_info{POD}')}))",
        ),
        stat("Cards used", f"sum({_of(_BUSY)}) / 100", description="If each were used fully."),
        stat("Memory assigned", f"sum({_of(_LIMIT)})", unit="mbytes"),
        stat(
            "Memory used of what is assigned",
            f"sum({_of(_USED)}) / sum({_of(_LIMIT)})",
            unit="percentunit",
        ),
        stat(
            "Pods over their memory",
            f"count({_OVERUSED}) or vector(0)",
            description="For 5 minutes they have used 5 % and 256 MiB more than they are assigned.",
        ),
        stat(
            "Pods that use nothing",
            f"count(max by (cluster, namespace, pod) (max_over_time({_BUSY}[1h])) == 0)"
            " or vector(0)",
            description="No time of their card in the last hour.",
        ),
    ),
)

_USE: Final = Row(
    title="Use",
    panels=(
        graph(
            "Share of the card's time",
            (_of(_BUSY), _NAME),
            unit="percent",
            kind=Kind.STACKED,
            width=12,
        ),
        graph("Memory used", (_of(_USED), _NAME), unit="mbytes", width=12),
        graph(
            "Memory used of what is assigned",
            (f"100 * {_of(f'({_USED} / {_LIMIT})')}", _NAME),
            unit="percent",
            width=12,
        ),
        graph(
            "By namespace: share of cards' time",
            (f"sum by (namespace) ({_of(_BUSY)})", "{{namespace}}"),
            unit="percent",
            kind=Kind.STACKED,
            description="100 % is one card.",
            width=12,
        ),
        Panel(
            title="Pods",
            kind=Kind.TABLE,
            queries=(
                Query(expr=_of(_BUSY), legend="busy", unit="percent"),
                Query(
                    expr=_of(f"quantile_over_time(0.9, {_BUSY}[1h])"),
                    legend="busy, p90 of 1 h",
                    unit="percent",
                ),
                Query(expr=_of(_USED), legend="used", unit="mbytes"),
                Query(expr=_of(_LIMIT), legend="assigned", unit="mbytes"),
                Query(expr=_of(_KEPT), legend="kept for it", unit="mbytes"),
                Query(expr=_of(_LIMITED), legend="limited to", unit="mbytes"),
            ),
            card_links=True,
            width=24,
            height=12,
        ),
    ),
)

POD_DASHBOARD: Final = Dashboard(
    uid="fracgpu-pod",
    title="FracGPU / Pods",
    description="Where pods are, and what they use of what they were assigned.",
    variables=OF_PODS,
    rows=(_SUMMARY, _USE),
)
