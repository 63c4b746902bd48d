"""Events on pods that were granted a share of cards which only a node pool can bring."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fracgpu import names
from fracgpu.cards.card import NodeCards
from fracgpu.request.grant_note import GrantNote, read_grant_note
from fracgpu.state.pod_info import PodInfo
from kube.events import EventRecorder, Regarding
from process.clock import Clock

REASON: Final = "WaitingForNodePool"
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
        classes = {node.labels.get(names.CARD_CLASS_LABEL) for node in self._nodes()} if due else ()
        for uid, pod in due:
            self._looked_at.add(uid)
            note = read_grant_note(pod.annotations.get(names.GRANTED, ""))
            # With a node of the class it is a matter of room, which the extender's answer tells.
            if note is not None and note.data.for_pool and note.data.card_class not in classes:
                await self._recorder.emit(
                    Regarding.pod(pod.record), reason=REASON, note=_words(note)
                )


def _words(note: GrantNote) -> str:
    name = note.data.card_class
    of = f"of a pool with {name} cards" if name else "of a pool whose cards are large enough"
    return (
        f"granted {note.words}, for which no node stands yet: the pod waits until an autoscaler, "
        f"or whoever adds nodes, brings one {of}; `fracgpu pools` lists them"
    )
