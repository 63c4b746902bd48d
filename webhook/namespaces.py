"""The labels of namespaces, followed: they turn dialects on, and a review does not carry them."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from kube.client import KubeClient
from kube.informer import Informer
from kube.kinds import NAMESPACES


class _Meta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Namespace(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_decoder: Final = msgspec.json.Decoder(_Namespace)


class NamespaceLabels:
    """What each namespace is labelled."""

    def __init__(self, client: KubeClient) -> None:
        self._informer = Informer(client, NAMESPACES, decode=_labels)

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The loop that keeps this current."""
        return {"follow_namespaces": self._informer.run}

    def problem(self) -> str | None:
        """Say why the labels are not known yet, or None."""
        return None if self._informer.synced else "the API server has not listed namespaces yet"

    def of(self, namespace: str) -> Mapping[str, str]:
        """Give a namespace's labels; one that we have not seen yet has none."""
        return self._informer.get("", namespace) or {}


def _labels(body: bytes) -> Mapping[str, str]:
    return _decoder.decode(body).metadata.labels or {}
