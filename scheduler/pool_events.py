"""Events on pods for which there is no node of their kind: of a pool, or of their wiring."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from component.wiring import Wiring
from fracgpu import names
from fracgpu.cards.card import NodeCards
from fracgpu.request.grant_note import GrantNote, read_grant_note
from fracgpu.state.pod_info import PodInfo
from kube.events import EventRecorder, Regarding
from process.clock import Clock

REASON: Final = "WaitingForNodePool"
NO_NODE_OF_WIRING: Final = "NoNodeOfWiring"
_EVERY_S: Final = 5.0


class PoolEvents:
    """Writes one on each such pod, when kube-scheduler has found no node for it.

    kube-scheduler's own Event only counts nodes that do not match, and without any node there is no
    more to say: autoscalers react to the pod's condition.

    Args:
        recorder: writes the Events.
        waiting: the pods that wait for a card, by UID.
        nodes: all nodes.
        clock: paces the looks.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        *,
        waiting: Callable[[], Mapping[str, PodInfo]],
        nodes: Callable[[], Iterable[NodeCards]],
        clock: Clock,
    ) -> None:
        self._recorder = recorder
        self._waiting = waiting
        self._nodes = nodes
        self._clock = clock
        self._looked_at: set[str] = set()
        self._without_node: set[str] = set()

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(_EVERY_S)

    async def look(self) -> None:
        """Write the Events that are due."""
        waiting = self._waiting()
        self._looked_at &= waiting.keys()
        due = [
            (uid, pod)
            for uid, pod in waiting.items()
            if uid not in self._looked_at and pod.unschedulable_since is not None
        ]
        await self._look_for_wirings(waiting)
        classes = {node.labels.get(names.CARD_CLASS_LABEL) for node in self._nodes()} if due else ()
        for uid, pod in due:
            self._looked_at.add(uid)
            note = read_grant_note(pod.annotations.get(names.GRANTED, ""))
            # With a node of the class it is a matter of room, which the extender's answer tells.
            if note is not None and note.data.for_pool and note.data.card_class not in classes:
                await self._recorder.emit(
                    Regarding.pod(pod.record), reason=REASON, note=_words(note)
                )

    async def _look_for_wirings(self, waiting: Mapping[str, PodInfo]) -> None:
        """Write an Event on each pod whose wiring no node has, once until that changes.

        kube-scheduler only says that something is missing.
        """
        by_claims = {node.by_claims for node in self._nodes() if node.shared and node.cards}
        before, self._without_node = self._without_node, set()
        for uid, pod in waiting.items() if len(by_claims) == 1 else ():
            if pod.need is None or pod.unschedulable_since is None:
                continue
            if pod.need.by_claim not in by_claims:
                self._without_node.add(uid)
                if uid not in before:
                    note = _no_node(by_claim=pod.need.by_claim)
                    await self._recorder.emit(
                        Regarding.pod(pod.record), reason=NO_NODE_OF_WIRING, note=note
                    )


def _no_node(*, by_claim: bool) -> str:
    theirs, other = Wiring.CLAIMS, Wiring.DEVICE_PLUGIN
    if not by_claim:
        theirs, other = other, theirs
    return (
        f"the pod was admitted with wiring {theirs.value}, and every node that shares cards has "
        f"wiring {other.value}: change the label {names.WIRING_LABEL} of a node, or that of the "
        "namespace, and create the pod anew"
    )


def _words(note: GrantNote) -> str:
    name = note.data.card_class
    of = f"of a pool with {name} cards" if name else "of a pool whose cards are large enough"
    return (
        f"granted {note.words}, for which no node stands yet: the pod waits until an autoscaler, "
        f"or whoever adds nodes, brings one {of}; `fracgpu pools` lists them"
    )
