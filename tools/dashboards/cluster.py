"""The dashboard of the whole cluster: heat, what was decided about it, and what came of it."""

from typing import Final

from fracgpu.cards.card import CordonEffect
from tools.dashboards.panels import (
    BLUE,
    FULLNESS,
    GOOD_IF_ONE,
    GOOD_IF_ZERO,
    GREEN,
    HEAT,
    ORANGE,
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
    CLUSTER,
    NODE_AND_INDEX,
    OF_CARDS,
    by_card,
    increase,
    quantile,
    rate,
    rebalancer,
    with_card,
)

_BUSY: Final = f"card:gpu_busy:percent{CARD}"
_WEEK_S: Final = 7 * 86400
_DAYS_S: Final = ((None, RED), (float(_WEEK_S), GREEN))


def _column(series: str) -> str:
    """Return *series* without its name, by which the rows of two columns would differ."""
    return f"max by (cluster, node, UUID, gpu, modelName) ({series})"


_NOW: Final = Row(
    title="Now",
    panels=(
        stat("Cards", f"count(card:gpu:info{CARD})"),
        stat(
            "Hot cards",
            f"max by (relievable) ({rebalancer('hot_cards')})",
            legend="relievable: {{relievable}}",
            steps=GOOD_IF_ZERO,
            description="false: moving a pod off the card would not help.",
        ),
        stat(
            "Share of card time spent hot",
            f"{rate(rebalancer('hot_card_seconds_total'))}"
            f' / count(card:gpu:info{{cluster=~"$cluster"}})',
            unit="percentunit",
        ),
        stat(
            "Imbalance",
            f"stddev({_BUSY})",
            unit="percent",
            description="Standard deviation of how busy the cards are.",
        ),
        stat("Moves under way", f"max({rebalancer('moves_in_flight')})"),
        stat(
            "Alerts of FracGPU",
            'count(ALERTS{alertstate="firing",alertname=~"FracGPU.*"}) or vector(0)',
            steps=GOOD_IF_ZERO,
        ),
        stat(
            "The rebalancer",
            f"max by (mode, hash) ({rebalancer('config_info')})",
            legend="{{mode}} ({{hash}})",
            description="Its mode, and the hash of the configuration in use.",
            width=8,
        ),
        stat("Age of its data", f"max({rebalancer('data_age_seconds')})", unit="s"),
        stat(
            "Cards measured",
            f"max({rebalancer('coverage_ratio')})",
            unit="percentunit",
            steps=((None, RED), (0.8, YELLOW), (1.0, GREEN)),
        ),
        stat(
            "Memory allocated",
            f"sum(card:gpu_memory_allocated:mib{CARD}) / sum(card:gpu_memory_shareable:mib{CARD})",
            unit="percentunit",
        ),
        stat(
            "Memory used",
            f"sum(card:gpu_memory_used:mib{CARD}) / "
            f"sum(card:gpu_memory_used:mib{CARD} + card:gpu_memory_free:mib{CARD})",
            unit="percentunit",
        ),
    ),
)

# The numbers are only for the colours; the rebalancer has the words.
_COOL: Final = "0"
HEAT_STATES: Final = {
    "1": ("warming", YELLOW),
    "2": ("hot", RED),
    "3": ("relieving", ORANGE),
    "4": ("settling", BLUE),
}


def _heat() -> str:
    """Return the number of the heat of each card that is not cool."""
    numbered = " or ".join(
        f"{number} * {rebalancer('card_heat', state=word)}"
        for number, (word, _) in HEAT_STATES.items()
    )
    return with_card(f"max by (cluster, node, UUID) ({numbered})")


def states_of_cards(width: int) -> Panel:
    """Return the panel of the cards that are not cool, with their heat over time."""
    return Panel(
        title="Heat: cards that are not cool",
        kind=Kind.STATES,
        queries=(Query(expr=_heat(), legend=NODE_AND_INDEX),),
        states=HEAT_STATES,
        description="As the rebalancer judges them. Cool cards are not shown.",
        no_value="every card is cool",
        width=width,
    )


CORDON_STATES: Final = {"1": ("closed", RED), "2": ("avoided", YELLOW)}


def _kept_off() -> str:
    """Return the number of the effect on each card that new slices are kept off."""
    closed = rebalancer("card_cordon", effect=CordonEffect.NO_SCHEDULE.value)
    avoided = rebalancer("card_cordon", effect=CordonEffect.PREFER_NO_SCHEDULE.value)
    return with_card(f"max by (cluster, node, UUID) (1 * {closed} or 2 * {avoided})")


def cards_kept_off(width: int) -> Panel:
    """Return the panel of the cards that new pods are kept off, over time."""
    return Panel(
        title="Decision: cards that new pods are kept off",
        kind=Kind.STATES,
        queries=(Query(expr=_kept_off(), legend=NODE_AND_INDEX),),
        states=CORDON_STATES,
        description="Avoided: taken where no other card fits. Closed: not taken. As the nodes' "
        "annotations say, whoever wrote them; dry runs write none.",
        no_value="every card takes new pods",
        width=width,
    )


HELD: Final = graph(
    "Decision: why no pod was moved",
    (f"{increase(rebalancer('decisions_total', outcome='held'), by='reason')} > 0", "{{reason}}"),
    kind=Kind.STACKED,
    description="How often each rule held something back. docs/moves.md has the rules.",
)
ENDED: Final = graph(
    "Effect: moves that ended",
    (
        f"{increase(rebalancer('moves_total'), by='mode, result, reason')} > 0",
        "{{mode}} {{result}}: {{reason}}",
    ),
    kind=Kind.BARS,
)

_LOOP: Final = Row(
    title="Heat, decision, effect",
    panels=(
        graph(
            "Heat: the ten busiest cards",
            (f"topk(10, {_BUSY})", NODE_AND_INDEX),
            unit="percent",
            maximum=100,
            steps=HEAT,
            description="Dashed: where a card is calm, and hot, as shipped. Purple: a move ended.",
        ),
        states_of_cards(8),
        cards_kept_off(8),
        HELD,
        ENDED,
        graph(
            "Effect: spread of the cards",
            (f"quantile(0.95, {_BUSY})", "95th percentile"),
            (f"quantile(0.5, {_BUSY})", "median"),
            (f"max({_BUSY})", "busiest"),
            unit="percent",
            maximum=100,
        ),
    ),
)

_MAP: Final = Row(
    title="Every card",
    panels=(
        Panel(
            title="Busy",
            kind=Kind.HISTORY,
            queries=(Query(expr=_BUSY, legend=NODE_AND_INDEX),),
            unit="percent",
            steps=HEAT,
            maximum=100,
            width=12,
            height=10,
        ),
        Panel(
            title="Memory in use",
            kind=Kind.HISTORY,
            queries=(Query(expr=f"100 * card:gpu_memory_used:ratio{CARD}", legend=NODE_AND_INDEX),),
            unit="percent",
            steps=FULLNESS,
            maximum=100,
            width=12,
            height=10,
        ),
        Panel(
            title="Cards",
            kind=Kind.TABLE,
            queries=(
                Query(expr=_column(_BUSY), legend="busy", unit="percent"),
                Query(
                    expr=f"quantile_over_time(0.9, {_BUSY}[1h])",
                    legend="busy, p90 of 1 h",
                    unit="percent",
                ),
                Query(
                    expr=_column(f"card:gpu_memory_allocated:mib{CARD}"),
                    legend="allocated",
                    unit="mbytes",
                ),
                Query(
                    expr=_column(f"card:gpu_memory_used:mib{CARD}"), legend="used", unit="mbytes"
                ),
                Query(
                    expr=by_card(
                        f"group by (cluster, node, UUID, pod, namespace) "
                        f"(fracgpu_pod_card_info{CLUSTER})"
                    ),
                    legend="pods",
                ),
                Query(expr=by_card(f"fracgpu_card_healthy{CLUSTER}"), legend="healthy"),
                Query(
                    expr=_column(f"{_heat()} or 0 * card:gpu:info{CARD}"),
                    legend="heat",
                    states={_COOL: ("cool", GREEN), **HEAT_STATES},
                ),
                Query(
                    expr=_column(f"{_kept_off()} or 0 * card:gpu:info{CARD}"),
                    legend="new pods",
                    states={"0": ("taken", GREEN), **CORDON_STATES},
                ),
            ),
            card_links=True,
            width=24,
            height=10,
        ),
    ),
)

_HEALTH: Final = Row(
    title="FracGPU itself",
    panels=(
        stat(
            "Schedulers that lead",
            f"sum(fracgpu_scheduler_leader{CLUSTER})",
            steps=GOOD_IF_ONE,
        ),
        stat(
            "Overbooked cards",
            f"max(fracgpu_scheduler_overbooked_cards{CLUSTER})",
            steps=GOOD_IF_ZERO,
        ),
        stat(
            "Unreadable annotations and Moves",
            f"max(sum by (instance) (fracgpu_scheduler_unreadable_objects{CLUSTER}))"
            ' + max(fracgpu_scheduler_reservations{cluster=~"$cluster",state="unreadable"})',
            steps=GOOD_IF_ZERO,
        ),
        stat(
            "Disagreements on nodes",
            f"sum(fracgpu_deviceplugin_disagreements_now{CLUSTER}) or vector(0)",
            steps=GOOD_IF_ZERO,
            description="Between assignments and what containers really have.",
        ),
        stat(
            "Certificates end in",
            f"min(fracgpu_certs_expiry_seconds{CLUSTER}"
            f" or fracgpu_webhook_certificate_expiry_seconds{CLUSTER}"
            f" or fracgpu_scheduler_certificate_expiry_seconds{CLUSTER})",
            unit="s",
            steps=_DAYS_S,
        ),
        stat(
            "Oldest reading of a node",
            f"max(time() - fracgpu_collect_timestamp_seconds{CLUSTER})",
            unit="s",
            steps=((None, GREEN), (120.0, RED)),
        ),
        graph(
            "Admission",
            (
                rate(f"fracgpu_webhook_decisions_total{CLUSTER}", by="outcome"),
                "{{outcome}}",
            ),
            unit="reqps",
            kind=Kind.STACKED,
        ),
        graph(
            "Bindings",
            (rate(f"fracgpu_scheduler_binds_total{CLUSTER}", by="outcome"), "{{outcome}}"),
            unit="ops",
            kind=Kind.STACKED,
        ),
        graph(
            "Pods that wait, by reason",
            (f"sum by (reason) (fracgpu_scheduler_waiting_pods{CLUSTER})", "{{reason}}"),
            kind=Kind.STACKED,
            description="Pods that ask for a card and have no node; docs/runbooks.md explains the "
            "reasons (FracGPUPodsWait).",
        ),
        graph(
            "Longest wait for a node",
            (
                f"max by (reason) (fracgpu_scheduler_longest_wait_seconds{CLUSTER})",
                "{{reason}}",
            ),
            unit="s",
        ),
        graph(
            "99th percentile of our answers",
            (quantile(0.99, "fracgpu_webhook_review_duration_seconds"), "webhook"),
            (quantile(0.99, "fracgpu_scheduler_request_seconds", by="verb"), "scheduler: {{verb}}"),
            unit="s",
        ),
        graph(
            "Longest pause of the extender",
            (f"fracgpu_scheduler_event_loop_longest_pause_seconds{CLUSTER}", "{{instance}}"),
            unit="s",
            description="The longest time in the last two minutes without a look at a request.",
        ),
        graph(
            "Container starts",
            (
                rate(f"fracgpu_deviceplugin_starts_total{CLUSTER}", by="outcome"),
                "{{outcome}}",
            ),
            unit="ops",
            kind=Kind.STACKED,
        ),
        graph(
            "Time to resolve a container start",
            (quantile(0.5, "fracgpu_deviceplugin_start_seconds"), "median"),
            (quantile(0.99, "fracgpu_deviceplugin_start_seconds"), "99th percentile"),
            unit="s",
        ),
        graph(
            "Reservations of Moves",
            (f"max by (state) (fracgpu_scheduler_reservations{CLUSTER})", "{{state}}"),
        ),
    ),
)

CLUSTER_DASHBOARD: Final = Dashboard(
    uid="fracgpu-cluster",
    title="FracGPU / Cluster",
    description="Which cards are hot, what the rebalancer decides about it, and what comes of it.",
    variables=OF_CARDS,
    rows=(_NOW, _LOOP, _MAP, _HEALTH),
)
