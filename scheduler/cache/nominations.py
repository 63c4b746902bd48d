"""Counts pending pods on the nodes to which kube-scheduler has nominated them.

Before kube-scheduler binds a pod it may have to wait: for a volume to be made, for devices, for a
Permit plugin. From 1.35 on it writes ``status.nominatedNodeName`` then, and clears it if the pod
is not bound after all. Until the Binding comes, the pod's cards are assumed.

The field also names the node where preemption makes room. That pod does not fit yet, and is not
counted: filter told kube-scheduler so last. And whoever may write ``pods/status`` can set the
field. So a nomination counts for a limited time from when it was first seen, and for another only
if kube-scheduler asks about the pod again and it fits.

Source: pkg/scheduler/schedule_one.go (bindingCycle, handleBindingCycleError), 1.36; the feature
gate NominatedNodeNameForExpectation, on by default from 1.35.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from fracgpu.placement.placement import CardSelector, CardsOnNode
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock

log = structlog.get_logger()

# kube-scheduler's plugin VolumeBinding gives up after ten minutes by default (bindTimeoutSeconds).
NOMINATION_LIMIT: Final = timedelta(minutes=11)

_MOST_REFUSED: Final = 100_000  # about as many pods as a cluster has


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nomination:
    node: str
    until: datetime


class Nominations:
    """Assumes the placements of nominated pods in the ledger.

    Each nomination is tried once, when kube-scheduler next asks about any pod: by then all nodes
    and pods are listed.

    Args:
        cards: selects the cards of a pod on its node.
        clock: bounds a nomination.
        most_refused: of how many pods it is remembered that they did not fit.
    """

    def __init__(
        self, cards: CardSelector, clock: Clock, *, most_refused: int = _MOST_REFUSED
    ) -> None:
        self._cards = cards
        self._most_refused = most_refused
        self._ledger = cards.ledger
        self._clock = clock
        self._observed: dict[str, _Nomination] = {}
        self._new: dict[str, PodInfo] = {}
        self._refused: OrderedDict[str, None] = OrderedDict()

    def see(self, pod: PodInfo) -> None:
        """Take note of a pending pod as the API server shows it now."""
        uid = pod.record.uid
        node, before = pod.nominated_node, self._observed.get(uid)
        if before is not None and before.node == node:
            return
        self._drop(uid)
        if before is None and not node:
            return
        until = self._clock.now() + NOMINATION_LIMIT if before is None else before.until
        self._observed[uid] = _Nomination(node=node, until=until)
        if node and pod.need is not None and not pod.gated and not pod.record.terminating:
            self._new[uid] = pod

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._observed.pop(uid, None)
        self._new.pop(uid, None)
        self._refused.pop(uid, None)

    def filtered(self, pod: PodInfo, *, fits: bool) -> None:
        """Take note that kube-scheduler has asked about a pod, and whether it was given a node."""
        uid = pod.record.uid
        if not fits:
            # A pod that was deleted before the answer is never forgotten otherwise.
            self._refused[uid] = None
            self._refused.move_to_end(uid)
            if len(self._refused) > self._most_refused:
                self._refused.popitem(last=False)
            return
        self._refused.pop(uid, None)
        if self._observed.pop(uid, None) is not None:
            self.see(pod)
            self.count()

    def count(self) -> None:
        """Assume the placements of the pods that were nominated since the last call."""
        while self._new:
            uid, pod = self._new.popitem()
            nomination, now = self._observed[uid], self._clock.now()
            assumed = self._ledger.assumed.get(uid)
            if uid in self._refused or nomination.until <= now:
                continue
            if assumed is not None and not assumed.gang:
                continue
            answer = self._cards.on_node(pod, nomination.node)
            if isinstance(answer, CardsOnNode):
                self._ledger.assume(
                    pod.record,
                    node=nomination.node,
                    assignment=answer.placement.assignment,
                    until=nomination.until,
                    move=answer.move,
                    nominated=True,
                )
                log.info("nomination_counted", pod=pod.record.key, node=nomination.node)

    def _drop(self, uid: str) -> None:
        self._new.pop(uid, None)
        assumption = self._ledger.assumed.get(uid)
        if assumption is not None and assumption.nominated:
            self._ledger.forget(uid)
