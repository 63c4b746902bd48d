"""Watches namespaces: their labels enable dialects, and an AdmissionReview lacks them."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import structlog

from fracgpu.k8s.scheduling.objects import read_namespace_labels
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.informer import Informer
from kube.kinds import NAMESPACES
from process.clock import Clock

log = structlog.get_logger()

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_MOST_AT_ONCE: Final = 4
_UNKNOWN_FOR_S: Final = 1.0
_MOST_UNKNOWN: Final = 1000


class NamespaceUnreadError(Exception):
    """Whether a namespace exists, and with which labels, is not known; ``str()`` says why."""


class NamespaceLabels:
    """The labels of each namespace."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._informer = Informer(client, NAMESPACES, decode=read_namespace_labels)
        self._asking = asyncio.Semaphore(_MOST_AT_ONCE)
        self._unknown: dict[str, float] = {}

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loop that keeps the labels current."""
        return {"follow_namespaces": self._informer.run}

    def problem(self) -> str | None:
        """Return why the labels are not known yet, or None."""
        return self._informer.problem

    def of(self, namespace: str) -> Mapping[str, str] | None:
        """Return a namespace's labels; None for one that has not been observed yet."""
        return self._informer.get("", namespace)

    async def fetch(self, namespace: str) -> Mapping[str, str] | None:
        """Return a namespace's labels from the API server; None if there is no such namespace.

        One ``kubectl apply`` may create a pod a moment after its namespace, before the watch
        shows the namespace. Anybody who reaches the webhook may name namespaces, so only a few
        questions are asked at once, and none again within a second after it was answered with
        no.

        Raises:
            NamespaceUnreadError: the API server did not answer, or refused.
        """
        if not namespace:
            return {}  # a workload kind of the administrator's may be cluster-scoped
        if not _NAME.fullmatch(namespace):
            return None
        async with self._asking:
            if self._is_unknown(namespace):
                return None
            try:
                return read_namespace_labels(await self._client.get(NAMESPACES, namespace))
            except NotFound:
                self._note_unknown(namespace)
                return None
            except (KubeError, ValueError) as error:
                log.warning("namespace_not_read", namespace=namespace, error=str(error))
                raise NamespaceUnreadError(f"namespace {namespace}: {error}") from error

    def _is_unknown(self, namespace: str) -> bool:
        until = self._unknown.get(namespace)
        return until is not None and self._clock.monotonic() < until

    def _note_unknown(self, namespace: str) -> None:
        self._unknown.pop(namespace, None)
        if len(self._unknown) >= _MOST_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]  # the oldest
        self._unknown[namespace] = self._clock.monotonic() + _UNKNOWN_FOR_S
