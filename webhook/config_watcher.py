"""Watches the configuration of admission; an invalid edit is reported and not used."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from component.config_keys import POOLS, refuse_unknown_keys
from component.config_watcher import ConfigWatcher
from component.metrics import ConfigMetrics
from component.pool_config import parse_pools, watch_pools
from component.refused_config import RefusedConfigReporter
from fracgpu import names
from fracgpu.cards.pool_catalogue import PoolCatalogue
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.events import EventRecorder
from webhook.admission_config import KEY, AdmissionConfig, parse_admission


class AdmissionConfigWatcher:
    """The configuration in the ConfigMap's key ``admission``, on top of the command line's.

    The key ``pools`` is read as well: what the node agents read of it is reported here.

    Keys of the ConfigMap that no role reads are reported here, on behalf of all roles.

    Attributes:
        config: its value is the last valid configuration.
        pools: its value is the last valid pool catalogue.

    Args:
        client: reads the ConfigMap.
        events: records an Event for each refused edit.
        metrics: count refused edits.
        namespace: of the ConfigMap.
        base: applies where the ConfigMap says nothing.
        on_change: called after the configuration, or the pool catalogue, has changed.
        measured: by model, the smallest shareable MiB of a card; None while unknown.
    """

    def __init__(  # noqa: PLR0913 - its parts, nearly all by keyword; made once, in service.py
        self,
        client: KubeClient,
        *,
        events: EventRecorder,
        metrics: ConfigMetrics,
        namespace: str,
        base: AdmissionConfig,
        on_change: Callable[[], None],
        measured: Callable[[], Mapping[str, Mib] | None] = lambda: None,
    ) -> None:
        self._measured = measured
        self._too_large = ""
        metrics.watch(lambda: self._too_large)
        self._refused = RefusedConfigReporter(events, name=names.CONFIG_MAP, namespace=namespace)
        self.config: Final[ConfigWatcher[AdmissionConfig]] = ConfigWatcher(
            client,
            name=names.CONFIG_MAP,
            namespace=namespace,
            key=KEY,
            parse=partial(parse_admission, base=base),
            default=base,
            on_change=lambda _: on_change(),
            on_refused=partial(self._refused.key, KEY),
            metrics=metrics,
        )
        self.pools: Final[ConfigWatcher[PoolCatalogue]] = watch_pools(
            client,
            name=names.CONFIG_MAP,
            namespace=namespace,
            parse=self._parse_pools,
            on_change=lambda _: on_change(),
            on_refused=partial(self._refused.key, POOLS),
            metrics=metrics,
        )
        self._keys: ConfigWatcher[None] = ConfigWatcher(
            client,
            name=names.CONFIG_MAP,
            namespace=namespace,
            key=None,
            parse=lambda keys: refuse_unknown_keys(keys.splitlines()),
            default=None,
            on_refused=self._refused.note,
            metrics=metrics,
        )

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that keep the configuration current and report refused edits."""
        return {
            "follow_config": self.config.run,
            "follow_pools": self.pools.run,
            "follow_config_keys": self._keys.run,
            "tell_refused_config": self._refused.run,
        }

    def problem(self) -> str | None:
        """Return why the configuration is not known yet, or None; invalid edits do not count."""
        return self.config.unread or self.pools.unread

    def compare_pools(self) -> None:
        """Report that a card was measured which has less than the catalogue in use promises.

        Its class is granted by what it has from now on. Pods that were granted more before may
        wait for another node of the class.
        """
        found = "; ".join(self.pools.value.above_measured(self._measured() or {}))
        if found and found != self._too_large:
            self._refused.note(f"key {POOLS} is in use, but {found}")
        self._too_large = found

    def _parse_pools(self, text: str) -> PoolCatalogue:
        # What is in the ConfigMap at the start is compared once the cards are counted: whether a
        # webhook uses it must not depend on what it happens to read first.
        return parse_pools(text, measured=self._measured() if self.pools.synced else None)
