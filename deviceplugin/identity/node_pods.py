"""This node's pods, for readers in any thread."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fracgpu.state.allocation import Assignment
from fracgpu.state.pod_info import PodInfo
from kube.informer import Change, ChangeType


class NodePods:
    """The informer's pods by UID: each change makes a new mapping, and none is ever changed.

    Args:
        on_change: called after each change.
        claimed: which cards a pod's claims were allocated, where the pod itself does not say it.
    """

    def __init__(
        self,
        on_change: Callable[[], None] = lambda: None,
        claimed: Callable[[PodInfo], Assignment | None] = lambda _: None,
    ) -> None:
        self._on_change = on_change
        self._claimed = claimed
        self._by_uid: Mapping[str, PodInfo] = {}

    @property
    def by_uid(self) -> Mapping[str, PodInfo]:
        return self._by_uid

    def observe(self, change: Change[PodInfo]) -> None:
        """Take a change of the informer."""
        by_uid = {uid: pod for uid, pod in self._by_uid.items() if uid != change.uid}
        if change.type is not ChangeType.DELETED:
            by_uid[change.uid] = self._with_cards(change.object)
        self._by_uid = by_uid
        self._on_change()

    def claims_changed(self, uids: Iterable[str]) -> None:
        """Look up anew what the claims of some pods were allocated."""
        known = self._by_uid
        changed = {uid: self._with_cards(known[uid]) for uid in uids if uid in known}
        self._by_uid = {**known, **changed}
        self._on_change()

    def _with_cards(self, pod: PodInfo) -> PodInfo:
        assignment = self._claimed(pod)
        if assignment is None:
            return pod
        return replace(pod, record=replace(pod.record, assignment=assignment))
