"""This node's pods, for readers in any thread."""

from collections.abc import Callable, Mapping

from fracgpu.state.pod_info import PodInfo
from kube.informer import Change, ChangeType


class NodePods:
    """The informer's pods by UID: each change makes a new mapping, and none is ever changed.

    Args:
        on_change: called after each change.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._by_uid: Mapping[str, PodInfo] = {}

    @property
    def by_uid(self) -> Mapping[str, PodInfo]:
        return self._by_uid

    def observe(self, change: Change[PodInfo]) -> None:
        """Take a change of the informer."""
        by_uid = {uid: pod for uid, pod in self._by_uid.items() if uid != change.uid}
        if change.type is not ChangeType.DELETED:
            by_uid[change.uid] = change.object
        self._by_uid = by_uid
        self._on_change()
