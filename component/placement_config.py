"""The key ``placement`` of the ConfigMap: how a card is chosen among several that fit."""

from collections.abc import Callable
from typing import Final

from component.config_keys import PLACEMENT, read_strategy
from component.config_watcher import ConfigWatcher, strict_mapping
from component.metrics import ConfigMetrics
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from kube.client import KubeClient

KEY: Final = PLACEMENT


def parse_strategy(text: str) -> Strategy:
    """Parse the cluster's default strategy from a text such as ``strategy: least-waste``.

    The scheduler and the rebalancer share this parser, so that a move is simulated with the
    strategy that will place its pod. The scheduler reports mistakes to the administrator.

    Raises:
        ValueError: the text is invalid; the message says what was wanted.
    """
    return read_strategy(strict_mapping(text))


def watch_strategy(
    client: KubeClient,
    *,
    name: str,
    namespace: str,
    metrics: ConfigMetrics,
    on_refused: Callable[[str], None] | None = None,
) -> ConfigWatcher[Strategy]:
    """Return the watcher of the key in a ConfigMap; without the key the strategy is the default."""
    return ConfigWatcher(
        client,
        name=name,
        namespace=namespace,
        key=KEY,
        parse=parse_strategy,
        default=DEFAULT_STRATEGY,
        on_refused=on_refused,
        metrics=metrics,
    )
