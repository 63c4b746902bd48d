"""The dashboard of the rebalancer: its moves, their effect, its brakes and its health."""

from typing import Final

from tools.dashboards.cluster import ENDED, HELD, states_of_cards
from tools.dashboards.panels import (
    GOOD_IF_ONE,
    GOOD_IF_ZERO,
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
    increase,
    quantile,
    rate,
    rebalancer,
)

_RELIEVED: Final = 'state=~"relieving|settling"'
_BY_CARD: Final = "(cluster, node, UUID)"
_SOURCES: Final = f"and on {_BY_CARD} max by {_BY_CARD} ({rebalancer('card_heat', _RELIEVED)})"
_DONE: Final = increase(
    rebalancer("moves_total", 'mode!="dryRun"', result="done"), window="$__range"
)
_JUDGED: Final = increase(
    rebalancer("dry_run_outcomes_total", 'source!="unknown"', 'target!="unknown"'),
    window="$__range",
)
_RIGHT: Final = increase(
    rebalancer("dry_run_outcomes_total", source="hot", target="cool"), window="$__range"
)


def _counted(name: str) -> str:
    return increase(rebalancer(name), window="$__range")


_MOVES: Final = Row(
    title="Heat, decision, effect",
    panels=(
        graph(
            "Heat: hot cards by node",
            (rate(rebalancer("hot_card_seconds_total"), by="node"), "{{node}}"),
            kind=Kind.STACKED,
        ),
        HELD,
        ENDED,
        states_of_cards(12),
        graph(
            "Effect: cards that were relieved, now and before",
            (f"card:gpu_busy:percent{CARD} {_SOURCES}", f"{NODE_AND_INDEX} now"),
            (
                f"max_over_time(card:gpu_busy:percent{CARD}[30m]) {_SOURCES}",
                f"{NODE_AND_INDEX} most in 30 minutes",
            ),
            unit="percent",
            maximum=100,
            description="The cards from which a pod was moved, until they count as cool.",
            width=12,
        ),
    ),
)

_RESULTS: Final = Row(
    title="Results in the chosen time",
    panels=(
        stat("Moves carried out", _DONE, width=3),
        stat(
            "Relieved, points of a card",
            _counted("relief_points_total"),
            description="Load that verified moves took off their source, in percent of a card.",
            width=3,
        ),
        stat("Relieved nothing", _counted("ineffective_moves_total"), steps=GOOD_IF_ZERO, width=3),
        stat("Moved back", _counted("ping_pongs_total"), steps=GOOD_IF_ZERO, width=3),
        stat("Lost pods", _counted("lost_pods_total"), steps=GOOD_IF_ZERO, width=3),
        stat("Rolled back", _counted("reverts_total"), width=3),
        stat("On another card than planned", _counted("misplaced_total"), width=3),
        stat(
            "Dry run: share that was right",
            f"{_RIGHT} / ({_JUDGED} > 0) or vector(0)",
            unit="percentunit",
            description="Of the moves only shown that could be judged later; 0 if there were none.",
            width=3,
        ),
        graph(
            "Time until a hot card was relieved",
            (quantile(0.5, "fracgpu_rebalancer_hot_seconds", window="6h"), "median"),
            (quantile(0.95, "fracgpu_rebalancer_hot_seconds", window="6h"), "95th percentile"),
            unit="s",
            description="Of the six hours before; or its load ended by itself.",
            width=6,
        ),
        graph(
            "Time in each phase, 95th percentile",
            (
                quantile(0.95, "fracgpu_rebalancer_move_phase_seconds", by="phase", window="1h"),
                "{{phase}}",
            ),
            unit="s",
            width=6,
        ),
        graph(
            "Pods unavailable, 95th percentile",
            (quantile(0.95, "fracgpu_rebalancer_pod_unavailable_seconds", window="1h"), "seconds"),
            unit="s",
            description="From an eviction until the replacement is ready; a surge has none.",
            width=6,
        ),
        graph(
            "Answers to evictions",
            (increase(rebalancer("evictions_total"), by="code"), "{{code}}"),
            (increase(rebalancer("rehearsals_total"), by="code"), "dry run: {{code}}"),
            kind=Kind.BARS,
            width=6,
        ),
    ),
)

_BRAKES: Final = Row(
    title="Brakes",
    panels=(
        stat(
            "Budget left",
            f"max by (scope) ({rebalancer('budget_remaining')})",
            legend="{{scope}}",
            width=4,
        ),
        stat(
            "Open circuit breakers",
            f"sum(max by (name) ({rebalancer('breaker_open')}))",
            steps=GOOD_IF_ZERO,
        ),
        stat("Closed cards", f"max({rebalancer('cordoned_cards')})"),
        stat("Avoided cards", f"max({rebalancer('avoided_cards')})"),
        stat("Replicas that lead", f"sum({rebalancer('leader')})", steps=GOOD_IF_ONE),
        stat(
            "Configuration in use",
            f"min({rebalancer('config_valid')})",
            steps=GOOD_IF_ONE,
            description="0: an edit was refused, and the last good one is in use.",
        ),
        Panel(
            title="Circuit breakers",
            kind=Kind.STATES,
            queries=(
                Query(expr=f"max by (name) ({rebalancer('breaker_open')})", legend="{{name}}"),
            ),
            states={"0": ("closed", "green"), "1": ("open", "red")},
            width=12,
        ),
        Panel(
            title="Blind, and why",
            kind=Kind.STATES,
            queries=(Query(expr=f"max by (reason) ({rebalancer('blind')})", legend="{{reason}}"),),
            states={"0": ("sees", "green"), "1": ("blind", "red")},
            width=12,
        ),
    ),
)

_HEALTH: Final = Row(
    title="Health",
    panels=(
        graph(
            "Cards by trust in their readings",
            (f"max by (trust) ({rebalancer('card_trust')})", "{{trust}}"),
            kind=Kind.STACKED,
        ),
        graph(
            "Age of the data", (f"max({rebalancer('data_age_seconds')})", "newest sample"), unit="s"
        ),
        graph(
            "Cycles and queries, 95th percentile",
            (quantile(0.95, "fracgpu_rebalancer_cycle_seconds"), "cycle"),
            (quantile(0.95, "fracgpu_rebalancer_prometheus_query_seconds"), "queries"),
            unit="s",
        ),
        graph(
            "Errors of queries",
            (increase(rebalancer("prometheus_query_errors_total"), by="reason"), "{{reason}}"),
            kind=Kind.BARS,
        ),
        graph(
            "Cycles cut short by the API server",
            (increase(rebalancer("api_errors_total")), "cycles"),
            kind=Kind.BARS,
        ),
        graph(
            "Cards that no node reports",
            (f"max({rebalancer('unknown_cards')})", "cards"),
        ),
    ),
)

REBALANCER_DASHBOARD: Final = Dashboard(
    uid="fracgpu-rebalancer",
    title="FracGPU / Rebalancer",
    description="What the rebalancer sees, decides and achieves, and what holds it back.",
    variables=OF_CARDS,
    rows=(_MOVES, _RESULTS, _BRAKES, _HEALTH),
)
