"""Watches the configuration of admission; an invalid edit is reported and not used."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from component.config_keys import refuse_unknown_keys
from component.config_watcher import ConfigWatcher
from component.metrics import ConfigMetrics
from component.refused_config import RefusedConfigReporter
from fracgpu import names
from kube.client import KubeClient
from kube.events import EventRecorder
from webhook.admission_config import KEY, AdmissionConfig, parse_admission


class AdmissionConfigWatcher:
    """The configuration in the ConfigMap's key ``admission``, on top of the command line's.

    Keys of the ConfigMap that no role reads are reported here, on behalf of all roles.

    Attributes:
        config: its value is the last valid configuration.

    Args:
        client: reads the ConfigMap.
        events: records an Event for each refused edit.
        metrics: count refused edits.
        namespace: of the ConfigMap.
        base: applies where the ConfigMap says nothing.
        on_change: called after the configuration has changed.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        events: EventRecorder,
        metrics: ConfigMetrics,
        namespace: str,
        base: AdmissionConfig,
        on_change: Callable[[], None],
    ) -> None:
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
            "follow_config_keys": self._keys.run,
            "tell_refused_config": self._refused.run,
        }

    def problem(self) -> str | None:
        """Return why the configuration is not known yet, or None; invalid edits do not count."""
        return None if self.config.synced else "the ConfigMap has not been read yet"
