"""Writes Events when a card becomes unhealthy or recovers, on the node and on the card's pods."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final

from deviceplugin.node.inventory import InventoryTracker
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.state.allocation import cards_in
from fracgpu.state.pod_info import PodInfo
from kube.events import EventLevel, EventRecorder, Regarding

# An event's text ends at 1,024 bytes; `fracgpu cards` lists them all.
_MOST_NAMED: Final = 10


class HealthEvents:
    """Follows the inventory and writes one event for each change, on the node and on the pods.

    Args:
        node: its name.
        tracker: the node's inventory.
        pods: this node's pods as last seen.
        recorder: writes events.
    """

    def __init__(
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        pods: Callable[[], Iterable[PodInfo]],
        recorder: EventRecorder,
    ) -> None:
        self._node = node
        self._tracker = tracker
        self._pods = pods
        self._recorder = recorder
        self._known: Mapping[CardUuid, Card] = {}

    async def run(self) -> None:
        """Write events until cancelled."""
        async with aclosing(self._tracker.changes()) as changes:
            async for inventory in changes:
                before, self._known = self._known, inventory.by_uuid()
                for uuid, card in self._known.items():
                    await self._compare(before.get(uuid), card)
                left_out = {each.uuid: each.reason for each in inventory.card_list.left_out}
                for uuid in sorted(before.keys() - self._known.keys()):
                    reason = left_out.get(uuid, "it has vanished")
                    await self._became_unhealthy(before[uuid], reason)

    async def _compare(self, before: Card | None, now: Card) -> None:
        was_healthy = before is None or before.health is Health.HEALTHY
        is_healthy = now.health is Health.HEALTHY
        if was_healthy and not is_healthy:
            await self._became_unhealthy(now, now.health_reason)
        elif is_healthy and not was_healthy:
            note = f"card {now.uuid} is healthy again and takes new pods"
            await self._recorder.emit(
                Regarding.node(self._node),
                reason="CardRecovered",
                note=note,
                level=EventLevel.NORMAL,
            )

    async def _became_unhealthy(self, card: Card, reason: str) -> None:
        pods = [pod for pod in self._pods() if _is_on(pod, card.uuid)]
        keys = sorted(pod.record.key for pod in pods)
        named = ", ".join(keys[:_MOST_NAMED]) or "none"
        more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
        note = f"card {card.uuid} takes no new pods: {reason}; pods on it: {named}{more}"
        await self._recorder.emit(
            Regarding.node(self._node), reason="CardUnhealthy", note=note, level=EventLevel.WARNING
        )
        for pod in pods:
            record = pod.record
            await self._recorder.emit(
                Regarding.pod(record),
                reason="CardUnhealthy",
                note=f"its card {card.uuid} on {self._node} is unhealthy: {reason}",
                level=EventLevel.WARNING,
            )


def _is_on(pod: PodInfo, card: CardUuid) -> bool:
    return pod.record.live and card in cards_in(pod.record.assignment or {})
