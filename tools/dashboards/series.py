"""The variables of the dashboards, and the series that they select."""

from typing import Final

from tools.dashboards.panels import Variable

# The variable "All" is .*, which a series without that label matches as well.
CARD: Final = '{cluster=~"$cluster",modelName=~"$pool",node=~"$node",UUID=~"$card"}'
CLUSTER: Final = '{cluster=~"$cluster"}'
POD: Final = '{cluster=~"$cluster",namespace=~"$namespace",pod=~"$pod",node=~"$node",UUID=~"$card"}'
RATE: Final = "$__rate_interval"
# A card as in our logs and Events.
NODE_AND_INDEX: Final = "{{node}}/{{gpu}}"

_CARD_INFO: Final = "card:gpu:info"

CLUSTERS: Final = Variable(name="cluster", title="Cluster", series=_CARD_INFO, label="cluster")
POOLS: Final = Variable(
    name="pool", title="Model", series=f"{_CARD_INFO}{CLUSTER}", label="modelName"
)
NODES: Final = Variable(
    name="node",
    title="Node",
    series=f'{_CARD_INFO}{{cluster=~"$cluster",modelName=~"$pool"}}',
    label="node",
)
CARDS: Final = Variable(
    name="card",
    title="Card",
    series=f'{_CARD_INFO}{{cluster=~"$cluster",modelName=~"$pool",node=~"$node"}}',
    label="UUID",
)
NAMESPACES: Final = Variable(
    name="namespace",
    title="Namespace",
    series=f"fracgpu_pod_card_info{CLUSTER}",
    label="namespace",
)
PODS: Final = Variable(
    name="pod",
    title="Pod",
    series='fracgpu_pod_card_info{cluster=~"$cluster",namespace=~"$namespace"}',
    label="pod",
)
OF_CARDS: Final = (CLUSTERS, POOLS, NODES, CARDS)
OF_PODS: Final = (*OF_CARDS, NAMESPACES, PODS)


def with_card(expr: str) -> str:
    """Return *expr*, of series by node and UUID, for the selected cards, with index and model."""
    join = f"on (cluster, node, UUID) group_left (gpu, modelName) {_CARD_INFO}{CARD}"
    return f"{expr} * {join}"


def by_card(expr: str) -> str:
    """Return the sum of *expr* for each card, with index and model."""
    return with_card(f"sum by (cluster, node, UUID) ({expr})")


def rate(series: str, *, by: str = "", window: str = RATE) -> str:
    """Return the sum of a counter's rate per second, by some labels."""
    return f"sum{_by(by)} (rate({series}[{window}]))"


def increase(series: str, *, by: str = "", window: str = RATE) -> str:
    """Return by how much a counter has grown within the window, by some labels."""
    return f"sum{_by(by)} (increase({series}[{window}]))"


def quantile(of: float, histogram: str, *, by: str = "", window: str = RATE) -> str:
    """Return a quantile of a histogram's observations within the window, by some labels."""
    buckets = rate(f"{histogram}_bucket{CLUSTER}", by=f"le, {by}" if by else "le", window=window)
    return f"histogram_quantile({of}, {buckets})"


def rebalancer(name: str, *conditions: str, **equal: str) -> str:
    """Return a series of the rebalancer, with more conditions on its labels."""
    same = (f'{label}="{value}"' for label, value in equal.items())
    matchers = ",".join(('cluster=~"$cluster"', *conditions, *same))
    return f"fracgpu_rebalancer_{name}{{{matchers}}}"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
