"""The administrator's rules, followed live; a bad edit keeps the last good ones and is told."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from fracgpu import names
from kube.client import KubeClient
from kube.events import EventLevel, EventRecorder, Regarding
from kube.follow import ConfigFollower
from kube.kinds import CONFIGMAPS
from webhook.config import KEY, parse_admission
from webhook.metrics import WebhookMetrics
from webhook.rules import Rules

_REASON: Final = "ConfigRefused"


class AdministratorsRules:
    """The rules as the ConfigMap's key ``admission`` has them, over those of the command line.

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
        base: Rules,
        on_change: Callable[[], None],
    ) -> None:
        self._events = events
        self._metrics = metrics
        self._namespace = namespace
        self._refused: asyncio.Queue[str] = asyncio.Queue()
        self._config: ConfigFollower[Rules] = ConfigFollower(
            client,
            name=names.CONFIG_MAP,
            namespace=namespace,
            key=KEY,
            parse=partial(parse_admission, base=base),
            default=base,
            on_change=lambda _: on_change(),
            on_refused=self._take_refusal,
        )
        metrics.watch_config(lambda: bool(self._config.problem))

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loops that keep this current, and tell of edits that were refused."""
        return {"follow_config": self._config.run, "tell_refused_config": self._tell}

    @property
    def current(self) -> Rules:
        """The last good rules."""
        return self._config.value

    def problem(self) -> str | None:
        """Say why the rules are not known yet, or None; a bad edit is no reason not to serve."""
        return None if self._config.synced else "the API server has not told the ConfigMap yet"

    def _take_refusal(self, reason: str) -> None:
        self._metrics.config_refused()
        self._refused.put_nowait(reason)

    async def _tell(self) -> None:
        regarding = Regarding(kind=CONFIGMAPS, name=names.CONFIG_MAP, namespace=self._namespace)
        while True:
            reason = await self._refused.get()
            await self._events.emit(
                regarding,
                reason=_REASON,
                note=f"key {KEY} is not in use, the last good one is: {reason}",
                level=EventLevel.WARNING,
            )
