"""Publishes the node's cards on the node object, and keeps them there."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

import structlog

from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import (
    NodeState,
    condition_patch,
    keep_held,
    metadata_patch,
    status_patch,
    unseen_state,
    wanted_state,
)
from deviceplugin.node.inventory import InventoryTracker
from fracgpu import names
from fracgpu.cards.node_marks import NodeMarks
from fracgpu.k8s.quantity import whole_amount
from kube.client import PatchType
from kube.errors import KubeError
from kube.kinds import NODES, Kind
from process.clock import Clock, wait_at_most

log = structlog.get_logger()

# Without any event we still look this often; a write that failed is tried again sooner.
_CALM_S: Final = 60.0
_AFTER_FAILURE_S: Final = 3.0


class NodeWriter(Protocol):
    """The part of a kube client that writes the node."""

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str | None = None,
        how: PatchType = PatchType.MERGE,
    ) -> dict[str, Any]: ...


async def take_back(writer: NodeWriter, node: str, marks: NodeMarks) -> None:
    """Remove what we wrote on a node: first what attracts pods.

    Raises:
        KubeError: the API server refused, or did not answer.
    """
    if marks.resources:
        await writer.patch(NODES, node, marks.status_patch(), subresource="status")
    if marks.labels or marks.annotations:
        await writer.patch(NODES, node, marks.metadata_patch())
    if marks.condition:
        how = PatchType.STRATEGIC
        await writer.patch(NODES, node, marks.condition_patch(), subresource="status", how=how)
    if marks:
        log.info("node_marks_removed", node=node, removed=list(marks.words))


class NodeStatusUpdater:
    """Compares the node with the cards at every change of either, and patches what differs.

    So it does not matter who took our capacity away: kubelet, another writer, or a node that was
    deleted and made anew.

    Args:
        node: its name.
        tracker: the cards.
        current: the node as last seen, or None.
        writer: writes it.
        clock: paces the rounds.
        metrics: counts the writes.
        hindrance: why no card can be handed out whatever the cards say, or None.
        held_mib: what this node's pods hold, or None before they are listed.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        current: Callable[[], NodeState | None],
        writer: NodeWriter,
        clock: Clock,
        metrics: DevicePluginMetrics,
        hindrance: Callable[[], str | None] = lambda: None,
        held_mib: Callable[[], int | None] = lambda: 0,
    ) -> None:
        self._node = node
        self._hindrance = hindrance
        self._held_mib = held_mib
        self._tracker = tracker
        self._current = current
        self._writer = writer
        self._clock = clock
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._problem: str | None = "the node has not been written yet"

    @property
    def problem(self) -> str | None:
        """Why the node does not say what it should, or None."""
        return self._problem

    def wake(self) -> None:
        """Look now: the node has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the node right until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_cards(), name="follow_cards")
            while True:
                self._wake.clear()
                content = await self.round()
                limit_s = _CALM_S if content else _AFTER_FAILURE_S
                await wait_at_most(self._clock, self._wake, limit_s=limit_s)

    async def _follow_cards(self) -> None:
        async with aclosing(self._tracker.changes()) as changes:
            async for _ in changes:
                self._wake.set()

    async def round(self) -> bool:
        """Write what differs; False when it should be tried again soon."""
        have = self._current()
        if have is None:
            self._problem = f"node {self._node} is not known to the API server"
            return False
        hindrance = self._hindrance()
        want = self._wanted(have)
        if want is None:
            # Not a node without cards: one whose cards we have not seen yet.
            self._problem = self._tracker.problem
            return True
        try:
            if have.shares:
                await self._write(have, keep_held(want, held_mib=self._held(have)))
            else:
                await take_back(self._writer, self._node, have.marks)
        except KubeError as error:
            if self._problem != str(error):
                log.warning("node_not_written", node=self._node, reason=str(error))
            self._metrics.node_written("failed")
            self._problem = str(error)
            return False
        self._problem = self._left_alone(have) or hindrance or self._unseen()
        return True

    def _wanted(self, have: NodeState) -> NodeState | None:
        """Say what the node should carry; None where that is not known yet."""
        unseen, hindrance = self._unseen(), self._hindrance()
        if not have.shares:
            return NodeState()
        if unseen is not None and not self._tracker.lost:
            return None
        if unseen is not None:
            return unseen_state(have, reason="CardsUnavailable", problem=unseen)
        if hindrance is not None and not have.others:
            return unseen_state(have, reason="RuntimeUnknown", problem=hindrance)
        return wanted_state(self._tracker.inventory, have=have)

    def _held(self, have: NodeState) -> int:
        """Say what pods hold; as long as nobody knows, it may be all that the node counts now."""
        held_mib = self._held_mib()
        if held_mib is None:
            return whole_amount(have.capacity.get(names.GPU_MEM, "")) or 0
        return held_mib

    def _unseen(self) -> str | None:
        return self._tracker.problem if not self._tracker.inventory.cards else None

    def _left_alone(self, have: NodeState) -> str | None:
        if not have.shares:
            return f"the node does not carry {names.SHARE_LABEL}=true"
        if not have.others:
            return None
        problem = f"the node is left alone: {have.counted_by} is counted by another plugin"
        if problem != self._problem:
            log.warning("node_left_alone", node=self._node, counted_by=have.counted_by)
        return problem

    async def _write(self, have: NodeState, want: NodeState) -> None:
        metadata = metadata_patch(have=have, want=want)
        status = status_patch(have=have, want=want)
        # Capacity last: once it is there, the labels and the inventory that go with it are too.
        if metadata:
            await self._writer.patch(NODES, self._node, metadata)
        if status:
            await self._writer.patch(NODES, self._node, status, subresource="status")
        await self._write_condition(have, want)
        if metadata or status:
            self._metrics.node_written("written")
            log.info("node_written", node=self._node, capacity=dict(want.capacity))

    async def _write_condition(self, have: NodeState, want: NodeState) -> None:
        condition = condition_patch(have=have, want=want, now=self._clock.now())
        if condition:
            # Merged by its type: kubelet and others write conditions beside ours.
            how = PatchType.STRATEGIC
            await self._writer.patch(NODES, self._node, condition, subresource="status", how=how)
