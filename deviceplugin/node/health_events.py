"""Tells people in events which cards fell ill or recovered, and whose pods are on them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final, Protocol

from deviceplugin.node.inventory import InventoryTracker
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.state.pod_info import PodInfo
from kube.events import EventLevel, Regarding
from kube.kinds import NODES, PODS

# An event's text ends at 1,024 bytes; whoever needs more asks `fracgpu cards`.
_MOST_NAMED: Final = 10


class Recorder(Protocol):
    """The part of an event recorder that we need."""

    async def emit(
        self, regarding: Regarding, *, reason: str, note: str, level: EventLevel = ...
    ) -> None: ...


class HealthEvents:
    """Follows the board and writes one event for each change, on the node and on the pods.

    Args:
        node: its name.
        tracker: the cards.
        pods: this node's pods as last seen.
        recorder: writes events.
    """

    def __init__(
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        pods: Callable[[], Iterable[PodInfo]],
        recorder: Recorder,
    ) -> None:
        self._node = node
        self._tracker = tracker
        self._pods = pods
        self._recorder = recorder
        self._told: Mapping[CardUuid, Card] = {}

    async def run(self) -> None:
        """Tell until cancelled."""
        async with aclosing(self._tracker.changes()) as changes:
            async for inventory in changes:
                before, self._told = self._told, inventory.by_uuid()
                for uuid, card in self._told.items():
                    await self._tell(before.get(uuid), card)
                for uuid in sorted(before.keys() - self._told.keys()):
                    await self._fell_ill(before[uuid], "it has vanished")

    async def _tell(self, before: Card | None, now: Card) -> None:
        was_well = before is None or before.health is Health.HEALTHY
        is_well = now.health is Health.HEALTHY
        if was_well and not is_well:
            await self._fell_ill(now, now.health_reason)
        elif is_well and not was_well:
            note = f"card {now.uuid} takes slices again"
            await self._recorder.emit(
                self._regarding_node(), reason="CardRecovered", note=note, level=EventLevel.NORMAL
            )

    async def _fell_ill(self, card: Card, reason: str) -> None:
        there = [pod for pod in self._pods() if _is_on(pod, card.uuid)]
        keys = sorted(pod.record.key for pod in there)
        named = ", ".join(keys[:_MOST_NAMED]) or "none"
        more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
        note = f"card {card.uuid} takes no more slices: {reason}; pods on it: {named}{more}"
        await self._recorder.emit(
            self._regarding_node(), reason="CardUnhealthy", note=note, level=EventLevel.WARNING
        )
        for pod in there:
            record = pod.record
            await self._recorder.emit(
                Regarding(kind=PODS, name=record.name, namespace=record.namespace, uid=record.uid),
                reason="CardUnhealthy",
                note=f"its card {card.uuid} on {self._node} is unhealthy: {reason}",
                level=EventLevel.WARNING,
            )

    def _regarding_node(self) -> Regarding:
        # As kubelet's own events do: `kubectl describe node` looks for the name as the UID.
        return Regarding(kind=NODES, name=self._node, uid=self._node)


def _is_on(pod: PodInfo, card: CardUuid) -> bool:
    slices = (pod.record.assignment or {}).values()
    return pod.record.live and any(part.card == card for parts in slices for part in parts)
