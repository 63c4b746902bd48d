"""Watches the configuration of admission; an invalid edit is reported and not used."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from component.config_keys import refuse_unknown_keys
from component.config_watcher import ConfigWatcher
from component.refused_config import RefusedConfigReporter
from fracgpu import names
from kube.client import KubeClient
from kube.events import EventRecorder
from webhook.admission_config import KEY, AdmissionConfig, parse_admission
from webhook.metrics import WebhookMetrics


class AdmissionConfigWatcher:
    """The configuration in the ConfigMap's key ``admission``, on top of the command line's.

    Keys of the ConfigMap that no role reads are reported here, on behalf of all roles.

    Args:
        client: reads the ConfigMap.
        events: records an Event for each refused edit.
        metrics: counts refused edits.
        namespace: of the ConfigMap.
        base: applies where the ConfigMap says nothing.
        on_change: called after the configuration has changed.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        events: EventRecorder,
        metrics: WebhookMetrics,
        namespace: str,
        base: AdmissionConfig,
        on_change: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._refused = RefusedConfigReporter(events, name=names.CONFIG_MAP, namespace=namespace)
        self._config: ConfigWatcher[AdmissionConfig] = ConfigWatcher(
            client,
            name=names.CONFIG_MAP,
            namespace=namespace,
            key=KEY,
            parse=partial(parse_admission, base=base),
            default=base,
            on_change=lambda _: on_change(),
            on_refused=self._take_refusal,
        )
        self._keys: ConfigWatcher[None] = ConfigWatcher(
            client,
            name=names.CONFIG_MAP,
            namespace=namespace,
            key=None,
            parse=lambda keys: refuse_unknown_keys(keys.splitlines()),
            default=None,
            on_refused=self._take_unknown_keys,
        )
        metrics.watch_config(lambda: not (self._config.problem or self._keys.problem))

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that keep the configuration current and report refused edits."""
        return {
            "follow_config": self._config.run,
            "follow_config_keys": self._keys.run,
            "tell_refused_config": self._refused.run,
        }

    @property
    def current(self) -> AdmissionConfig:
        """The last valid configuration."""
        return self._config.value

    def problem(self) -> str | None:
        """Return why the configuration is not known yet, or None; invalid edits do not count."""
        return None if self._config.synced else "the ConfigMap has not been read yet"

    def _take_refusal(self, reason: str) -> None:
        self._metrics.config_refused()
        self._refused.key(KEY, reason)

    def _take_unknown_keys(self, reason: str) -> None:
        self._metrics.config_refused()
        self._refused.note(reason)
