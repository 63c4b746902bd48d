"""The administrator's rules, followed live; a bad edit keeps the last good ones and is told."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from component.config_keys import refuse_unknown_keys
from component.config_watcher import ConfigWatcher
from component.refused_edits import RefusedConfigReporter
from fracgpu import names
from kube.client import KubeClient
from kube.events import EventRecorder
from webhook.admission_config import KEY, AdmissionConfig, parse_admission
from webhook.metrics import WebhookMetrics


class AdmissionConfigWatcher:
    """The rules as the ConfigMap's key ``admission`` has them, over those of the command line.

    Keys that no role reads are told here as well: nobody else would.

    Args:
        client: where the ConfigMap is.
        events: where a refused edit is told.
        metrics: where it is counted.
        namespace: of the ConfigMap.
        base: what holds where the ConfigMap says nothing.
        on_change: called after the rules have changed.
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
        """The loops that keep this current, and tell of edits that were refused."""
        return {
            "follow_config": self._config.run,
            "follow_config_keys": self._keys.run,
            "tell_refused_config": self._refused.run,
        }

    @property
    def current(self) -> AdmissionConfig:
        """The last good rules."""
        return self._config.value

    def problem(self) -> str | None:
        """Say why the rules are not known yet, or None; a bad edit is no reason not to serve."""
        return None if self._config.synced else "the API server has not told the ConfigMap yet"

    def _take_refusal(self, reason: str) -> None:
        self._metrics.config_refused()
        self._refused.key(KEY, reason)

    def _take_unknown_keys(self, reason: str) -> None:
        self._metrics.config_refused()
        self._refused.note(reason)
