"""The key ``placement`` of the ConfigMap: how a card is chosen among several that fit."""

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from component.config_keys import NO_OVERCOMMIT, PLACEMENT, read_overcommit, read_strategy
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


def parse_overcommit(text: str) -> Fraction:
    """Parse how many times a card's capacity the limits of its containers may add up to.

    The node agents read it; the scheduler reports mistakes to the administrator.

    Raises:
        ValueError: the text is invalid.
    """
    return read_overcommit(strict_mapping(text))


def watch_overcommit(
    client: KubeClient, *, name: str, namespace: str, on_change: Callable[[Fraction], None]
) -> ConfigWatcher[Fraction]:
    """Return the watcher of the same key for :func:`parse_overcommit`."""
    return ConfigWatcher(
        client,
        name=name,
        namespace=namespace,
        key=KEY,
        parse=parse_overcommit,
        default=NO_OVERCOMMIT,
        on_change=on_change,
    )


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
