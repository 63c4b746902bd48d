"""Watches namespaces: their labels enable dialects, and an AdmissionReview lacks them."""

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import structlog

from fracgpu.k8s.scheduling.objects import read_namespace_labels
from kube.client import KubeClient
from kube.errors import KubeError
from kube.informer import Informer
from kube.kinds import NAMESPACES

log = structlog.get_logger()

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


class NamespaceLabels:
    """The labels of each namespace."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._informer = Informer(client, NAMESPACES, decode=read_namespace_labels)

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loop that keeps the labels current."""
        return {"follow_namespaces": self._informer.run}

    def problem(self) -> str | None:
        """Return why the labels are not known yet, or None."""
        return None if self._informer.synced else "the API server has not listed namespaces yet"

    def of(self, namespace: str) -> Mapping[str, str] | None:
        """Return a namespace's labels; None for one that has not been seen yet."""
        return self._informer.get("", namespace)

    async def fetch(self, namespace: str) -> Mapping[str, str]:
        """Get a namespace's labels from the API server; no labels if that fails.

        One ``kubectl apply`` may create a pod a moment after its namespace, before the watch
        shows the namespace.
        """
        if not _NAME.fullmatch(namespace):
            return {}
        try:
            return read_namespace_labels(await self._client.get(NAMESPACES, namespace))
        except (KubeError, ValueError) as error:
            log.warning("namespace_unknown", namespace=namespace, error=str(error))
            return {}
