"""Counts what filter has answered about the pods of a PodGroup that are tried together.

kube-scheduler with the feature gate GangScheduling asks about all pending pods of a PodGroup in
turn, reverts everything, and binds them if enough have a node; it does not ask filter again before
bind. So each answer is assumed at once, or several pods would be given the same card and some of
the Bindings fail. A cycle is over when a pod is asked about a second time, or one outside the group
is. If not all pending pods of the group had a node by then, they are not bound, and what was
assumed for them is forgotten.

Source: pkg/scheduler schedule_one_podgroup.go, 1.36.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from fracgpu.placement.placement import CardSelector, CardsOnNode
from fracgpu.state.pod_info import PodInfo
from kube.informer import Change, ChangeType
from process.clock import Clock
from scheduler.cache.event_handlers import AnyPod
from scheduler.extender.api import ExtenderArgs, FilterResult

# Where the pods of the group are not bound after all, which nobody tells us.
_LIMIT: Final = timedelta(seconds=30)

_Key = tuple[str, str]  # namespace and name of the PodGroup


@dataclass(slots=True)
class _Cycle:
    """The group that is tried at the moment; of *asked* those in *placed* got a node."""

    key: _Key
    asked: set[str] = field(default_factory=set)
    placed: set[str] = field(default_factory=set)


class PodGroups:
    """The pending pods of PodGroups, and what is assumed for those that are being tried.

    Args:
        cards: selects the cards of a pod on a node.
        clock: bounds what is assumed.

    Attributes:
        of_pod: the group of each pending pod that has one, by its UID.
        trying: whether the cycle of a group may be under way.
    """

    def __init__(self, cards: CardSelector, *, clock: Clock) -> None:
        self._cards = cards
        self._ledger = cards.ledger
        self._clock = clock
        self._pending: dict[_Key, set[str]] = {}
        self._cycle: _Cycle | None = None
        self.of_pod: dict[str, _Key] = {}
        self.trying = False

    def pod_changed(self, change: Change[AnyPod]) -> None:
        """Take note of a pod of a group."""
        pod, uid = change.object, change.uid
        if change.type is not ChangeType.DELETED and isinstance(pod, PodInfo) and pod.pending:
            key = _key_of(pod)
            self.of_pod[uid] = key
            self._pending.setdefault(key, set()).add(uid)
            return
        left = self.of_pod.pop(uid, None)
        if left is not None:
            self._pending[left].discard(uid)
            if not self._pending[left]:
                del self._pending[left]
        if change.type is ChangeType.DELETED:
            self._forget(uid)

    def begin(self, pod: PodInfo) -> None:
        """Take note that filter is about to answer about a pod, of a group or not."""
        uid, cycle = pod.record.uid, self._cycle
        key = _key_of(pod) if pod.pod_group else None
        if cycle is not None and cycle.key != key:
            if not self._members(cycle.key) <= cycle.placed:
                self._forget_all(cycle.key)
            self._cycle = None
        elif key is not None and cycle is not None and uid in cycle.asked:
            self._forget_all(key)
            self._cycle = None
        if key is not None and self._is_held(uid):
            self._forget_all(key)  # they were to be bound, and are tried again
        if key is not None:
            self._cycle = self._cycle or _Cycle(key)
            self._cycle.asked.add(uid)
        self.trying = self._cycle is not None

    def answer(self, args: ExtenderArgs, result: FilterResult) -> FilterResult:
        """Return the answer about a pod of a group with one node alone, which is assumed."""
        pod, cycle = args.pod, self._cycle
        best = result.passed[0] if len(result.passed) == 1 else result.best()
        if result.error or not result.passed or best is None or cycle is None:
            return result
        found = self._cards.on_node(pod, best)
        if not isinstance(found, CardsOnNode):
            return result
        cycle.placed.add(pod.record.uid)
        self._ledger.assume(
            pod.record,
            node=best,
            assignment=found.placement.assignment,
            until=self._clock.now() + _LIMIT,
            move=found.move,
            gang=True,
            host=pod.host,
        )
        return FilterResult(passed=(best,))

    def _is_held(self, uid: str) -> bool:
        assumed = self._ledger.assumed.get(uid)
        return assumed is not None and assumed.gang

    def _members(self, key: _Key) -> set[str]:
        """Return the group's pending pods, and those asked about that are not observed (yet)."""
        asked = self._cycle.asked if self._cycle is not None and self._cycle.key == key else set()
        return self._pending.get(key, set()) | asked

    def _forget_all(self, key: _Key) -> None:
        for uid in self._members(key):
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        if self._is_held(uid):
            self._ledger.forget(uid)


def _key_of(pod: PodInfo) -> _Key:
    return pod.record.namespace, pod.pod_group
