"""Watches the demo through the API server and Prometheus, and records the highest values."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import msgspec

from fracgpu import names
from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.device_claims.holders import with_claims
from fracgpu.state.ledger import Ledger
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import EVENTS, NODES, PODS, RESOURCE_CLAIMS
from rebalancer.usage.prometheus import Prometheus, QueryFailed
from simulator.demo.dashboard import CardPanel, Dashboard, NodePanel, SlicePanel, StoryLine
from simulator.demo.promises import CardPeak, HeatFact
from simulator.demo.workload import owner_of

_MAX_EVENT_LINES: Final = 400

_HOT_CARD_EVENTS: Final = frozenset({"HotCardDetected", "MovePlanned", "Evicted", "MoveCompleted"})


class BusySource(Protocol):
    """The source of measured load; None while it does not answer."""

    async def busy_ratio_by_card(self) -> Mapping[str, float] | None: ...


class WallClock(Protocol):
    """The parts of a clock that the observer needs."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, duration_s: float, /) -> None: ...


class _Event(msgspec.Struct):
    reason: str = ""
    message: str = ""
    type: str = "Normal"


@dataclass(slots=True)
class _Heat:
    """When the heated card got hot and was relieved, in seconds since the observer started."""

    card: str = ""
    peak: float = 0.0
    last: float = 1.0
    hot_at_s: float | None = None
    relieved_at_s: float | None = None
    moved: list[str] = field(default_factory=list)
    first_pods: frozenset[str] = frozenset()


class Observer:
    """Follows pods, nodes and events; asks for measured load once a second.

    Args:
        client: of the API server.
        busy: source of measured load.
        clock: for time stamps and pauses.
        namespace: of the demo's pods.
        heated: prefix of the pods that heat a card.
        hot_line: share of a card's time (0..1) above which it is hot.
        by_claims: what pods hold is in their claims, not in an annotation.
    """

    def __init__(  # noqa: PLR0913 - what it watches, by keyword
        self,
        client: KubeClient,
        busy: BusySource,
        clock: WallClock,
        *,
        namespace: str,
        heated: str,
        hot_line: float,
        by_claims: bool = False,
    ) -> None:
        self._clock = clock
        self._busy_source = busy
        self._heated = heated
        self._hot_line = hot_line
        self._ledger = Ledger()
        self._busy: Mapping[str, float] = {}
        self._heat = _Heat()
        self._peaks: dict[CardUuid, CardPeak] = {}
        self._event_lines: deque[str] = deque(maxlen=_MAX_EVENT_LINES)
        self._reported: set[tuple[str, str]] = set()
        self._began_s = clock.monotonic()
        self._pods = Informer(
            client, PODS, decode=decode_pod_info, namespace=namespace, on_change=self._pod_changed
        )
        self._nodes = Informer(client, NODES, decode=read_node, on_change=self._node_changed)
        self._claims = Informer(
            client,
            RESOURCE_CLAIMS,
            decode=decode_claim,
            namespace=namespace,
            on_change=self._claim_changed,
        )
        self._followed = (self._pods, self._nodes, *((self._claims,) if by_claims else ()))
        self._events = Informer(
            client,
            EVENTS,
            decode=msgspec.json.Decoder(_Event).decode,
            on_change=self._on_event,
        )

    async def run(self) -> None:
        """Observe until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._followed:
                group.create_task(informer.run())
            group.create_task(self._events.run(), name="observe-events")
            group.create_task(self._poll_busy(), name="observe-busy")

    async def wait_synced(self) -> None:
        for informer in (*self._followed, self._events):
            await informer.wait_synced()

    def add_event_line(self, line: str) -> None:
        """Add a line of the demo's own to the event lines."""
        self._event_lines.append(f"{self._clock.monotonic() - self._began_s:5.1f}s  {line}")

    @property
    def pods(self) -> Sequence[PodInfo]:
        """The demo's pods as in the API server, with the cards of their claims."""
        return tuple(map(self._with_claim, self._pods.items().values()))

    @property
    def nodes(self) -> Sequence[NodeCards]:
        return tuple(self._nodes.items().values())

    @property
    def event_lines(self) -> tuple[str, ...]:
        return tuple(self._event_lines)

    @property
    def peaks(self) -> Sequence[CardPeak]:
        """The most MiB ever allocated on each card."""
        return tuple(self._peaks.values())

    @property
    def heat(self) -> HeatFact:
        """What was observed of the heated card."""
        heat = self._heat
        relieved_after_s = None
        if heat.hot_at_s is not None and heat.relieved_at_s is not None:
            relieved_after_s = heat.relieved_at_s - heat.hot_at_s
        replacement, new_card = self._replacement()
        return HeatFact(
            card=heat.card,
            card_name=self._in_words(heat.card),
            peak_busy=heat.peak,
            last_busy=heat.last,
            hot_line=self._hot_line,
            moved_pods=tuple(heat.moved),
            replacement=replacement,
            new_card_name=self._in_words(new_card),
            hot_after_s=heat.hot_at_s,
            relieved_after_s=relieved_after_s,
        )

    def dashboard(
        self,
        *,
        expected: Mapping[str, int],
        roles: Sequence[tuple[str, bool]],
        refusals: Sequence[StoryLine] = (),
    ) -> Dashboard:
        """Return the dashboard as of now; *refusals* are lines that stay on it.

        Of each workload at most as many pods count as *expected* says: while one is moved, its
        replacement runs beside it.
        """
        ready = Counter(owner_of(pod.record.name, expected) for pod in self.pods if pod.ready)
        now = self._clock.now()
        pod_names = {pod.record.uid: pod.record.name for pod in self.pods}
        snapshot = self._ledger.snapshot(now=now)
        nodes = []
        for node_info in snapshot.nodes.values():
            cards = []
            for uuid, card_info in node_info.cards.items():
                slices = tuple(
                    SlicePanel(
                        pod=pod_names.get(uid, uid), mib=snapshot.pods[uid].by_card[uuid].mib
                    )
                    for uid in sorted(card_info.pods, key=lambda uid: pod_names.get(uid, uid))
                )
                cards.append(
                    CardPanel(
                        uuid=uuid,
                        index=card_info.card.index,
                        model=card_info.card.model,
                        capacity_mib=card_info.card.capacity_mib,
                        slices=slices,
                        busy=self._busy.get(uuid),
                        cordoned=card_info.cordoned,
                        avoided=card_info.avoided,
                    )
                )
            nodes.append(NodePanel(name=node_info.node.node, cards=tuple(cards)))
        return Dashboard(
            nodes=tuple(nodes),
            pods_running=sum(min(ready[name], count) for name, count in expected.items()),
            pods_expected=sum(expected.values()),
            roles=tuple(roles),
            hot_line=self._hot_line,
            event_lines=self.event_lines,
            story=(*refusals, *_moved(self.heat.move)),
        )

    def _pod_changed(self, change: Change[PodInfo]) -> None:
        pod = change.object
        if change.type is ChangeType.DELETED:
            self._ledger.remove_pod(change.uid)
            if pod.record.name.startswith(self._heated) and pod.record.node:
                self._heat.moved.append(pod.record.name)
            return
        self._hold(self._with_claim(pod))

    def _claim_changed(self, change: Change[DeviceClaim]) -> None:
        for pod in self.pods:
            if pod.device_claim == change.object.name:
                self._hold(pod)

    def _hold(self, pod: PodInfo) -> None:
        self._ledger.set_pod(pod.record)
        if pod.record.node:
            self._note_peaks(pod.record.node)

    def _with_claim(self, pod: PodInfo) -> PodInfo:
        claim = self._claims.get(pod.record.namespace, pod.device_claim)
        node = None if claim is None else self._nodes.get("", claim.node)
        return pod if claim is None or node is None else with_claims((pod,), (claim,), (node,))[0]

    def _node_changed(self, change: Change[NodeCards]) -> None:
        if change.type is ChangeType.DELETED:
            self._ledger.remove_node(change.object.node)
        else:
            self._ledger.set_node(change.object)
            self._note_peaks(change.object.node)

    def _note_peaks(self, node: str) -> None:
        node_info = self._ledger.node(node, now=self._clock.now())
        if node_info is None:
            return
        for uuid, card_info in node_info.cards.items():
            before = self._peaks.get(uuid)
            self._peaks[uuid] = CardPeak(
                card=uuid,
                capacity_mib=card_info.card.capacity_mib,
                peak_mib=max(card_info.held_mib, before.peak_mib if before else 0),
            )

    def _on_event(self, change: Change[_Event]) -> None:
        event = change.object
        warned = event.type == "Warning" or event.reason in _HOT_CARD_EVENTS
        key = (event.reason, event.message)
        if change.type is not ChangeType.ADDED or key in self._reported:
            return  # an Event of a move is written on its pod, its controller and its node
        if warned or event.reason == "Scheduled":
            self._reported.add(key)
            self.add_event_line(f"{event.reason}: {self._in_words(event.message)}")

    def _in_words(self, text: str) -> str:
        """Return *text* with cards named by node and index, as on the dashboard, not by UUID."""
        for node in self.nodes:
            for card in node.cards:
                shown = f"{node.node}/{card.index}"
                text = text.replace(f"{shown} ({card.uuid})", shown)
                text = text.replace(f"{card.uuid} on {node.node}", shown)
                text = text.replace(card.uuid, shown)
        return text

    async def _poll_busy(self) -> None:
        while True:
            busy = await self._busy_source.busy_ratio_by_card()
            if busy is not None:
                self._busy = busy
                self._note_heat()
            await self._clock.sleep(1.0)

    def _note_heat(self) -> None:
        heat = self._heat
        if not heat.card:
            heat.card = self._shared_card()
            heat.first_pods = frozenset(pod.record.name for pod in self._burners())
        if not heat.card or heat.card not in self._busy:
            return
        now_s = self._clock.monotonic() - self._began_s
        heat.last = self._busy[heat.card]
        heat.peak = max(heat.peak, heat.last)
        if heat.hot_at_s is None and heat.last >= self._hot_line:
            heat.hot_at_s = now_s
        waiting = heat.hot_at_s is not None and heat.moved and heat.relieved_at_s is None
        # Relieved means cool while every heating pod runs again, not while one is missing.
        if waiting and heat.last < self._hot_line and self._all_burners_ready():
            heat.relieved_at_s = now_s

    def _all_burners_ready(self) -> bool:
        burners = self._burners()
        return bool(burners) and all(pod.ready for pod in burners)

    def _burners(self) -> Sequence[PodInfo]:
        return [pod for pod in self.pods if pod.record.name.startswith(self._heated)]

    def _replacement(self) -> tuple[str, str]:
        """Return the pod that was created in the place of a moved one, and its card's UUID."""
        for pod in self._burners():
            if self._heat.moved and pod.record.name not in self._heat.first_pods:
                cards = [
                    part.card
                    for slices in (pod.record.assignment or {}).values()
                    for part in slices
                ]
                return (pod.record.name, cards[0]) if cards else ("", "")
        return "", ""

    def _shared_card(self) -> str:
        """Return the card that two or more of the heating pods share, or ''."""
        counted: set[str] = set()
        for pod in self._burners():
            for slices in (pod.record.assignment or {}).values():
                for part in slices:
                    if part.card in counted:
                        return part.card
                    counted.add(part.card)
        return ""


def _moved(move: str) -> Sequence[StoryLine]:
    return [StoryLine(f"moved: {move}", f"moved: {move}")] if move else []


_PERCENT: Final = 100.0

_BUSY: Final = f"max by (UUID) ({names.METRIC_BUSY})"


class MeasuredHeat:
    """Measured load from Prometheus; None means that it did not answer."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus

    async def busy_ratio_by_card(self) -> Mapping[str, float] | None:
        """Return each card's share of busy time (0..1) by UUID."""
        try:
            samples = await self._prometheus.query(_BUSY)
        except QueryFailed:
            return None
        return {
            sample.labels["UUID"]: sample.value / _PERCENT
            for sample in samples
            if "UUID" in sample.labels
        }
