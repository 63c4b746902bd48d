"""Writes the node's cards on the Node object, and writes again whatever differs."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

import structlog

from component.placement_config import NO_OVERCOMMIT
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import (
    NodeState,
    Switching,
    as_counted_before,
    as_isolated_before,
    condition_patch,
    counted_mib,
    keep_held,
    metadata_patch,
    startup_taint_patch,
    status_patch,
    unseen_state,
    wanted_state,
    with_card_class,
    with_isolation,
    with_limits,
    with_resized,
    without_capacity,
    without_new_pods,
)
from deviceplugin.node.inventory import InventoryTracker
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.cards.node_marks import NodeMarks
from fracgpu.cards.pool_catalogue import NO_CATALOGUE, PoolCatalogue
from kube.client import KubeClient, PatchType
from kube.errors import KubeError
from kube.kinds import NODES
from process.clock import Clock, wait_at_most

log = structlog.get_logger()

# The longest time between two comparisons without any event; a failed write is retried sooner.
_CALM_S: Final = 60.0
_AFTER_FAILURE_S: Final = 3.0


async def take_back(writer: KubeClient, node: str, marks: NodeMarks) -> None:
    """Remove what we wrote on a node, the capacity first: it attracts pods.

    Raises:
        KubeError: the API server returned an error, or did not answer.
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

    So our capacity comes back whoever removed it: kubelet, another writer, or the deletion of the
    node.

    Args:
        node: its name.
        tracker: the node's inventory.
        current: the node as last seen, or None.
        writer: writes it.
        clock: paces the comparisons.
        metrics: counts the writes.
        blocked: why no card can be allocated now, however healthy, or None.
        way: how it is known whose container starts, for people; empty while that is not known.
        held_mib: what this node's pods hold, or None before they are listed.
        resized_mib: by how much those that were resized hold more than they request.
        unregistered: why kubelet does not have our slots, or None.
        isolation: by mechanism, why containers are not limited on each card, an empty text where
            they are; None while that is not known.
        pools: the pool catalogue; empty while it has not been read.
        overcommit: returns how many times a card's capacity its containers' limits may add up to;
            None while that is not known.
        switching: why the node offers nothing for its wiring's sake, or None.
        published: whether kube-scheduler sees the cards by the node's slice; None where it counts
            the node's capacity.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        current: Callable[[], NodeState | None],
        writer: KubeClient,
        clock: Clock,
        metrics: DevicePluginMetrics,
        blocked: Callable[[], str | None] = lambda: None,
        way: Callable[[], str] = lambda: "",
        held_mib: Callable[[], int | None] = lambda: 0,
        resized_mib: Callable[[], int] = lambda: 0,
        unregistered: Callable[[], str | None] = lambda: None,
        isolation: Callable[[], Mapping[str, str] | None] = lambda: None,
        pools: Callable[[], PoolCatalogue] = lambda: NO_CATALOGUE,
        overcommit: Callable[[CardUuid], Fraction | None] = lambda _: NO_OVERCOMMIT,
        switching: Callable[[], Switching | None] = lambda: None,
        published: Callable[[], bool] | None = None,
    ) -> None:
        self._node = node
        self._unregistered = unregistered
        self._isolation = isolation
        self._pools = pools
        self._overcommit = overcommit
        self._switching = switching
        self._published = published
        self._blocked = blocked
        self._way = way
        self._held_mib = held_mib
        self._resized_mib = resized_mib
        self._tracker = tracker
        self._current = current
        self._writer = writer
        self._clock = clock
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._problem: str | None = "the node has not been written yet"

    @property
    def problem(self) -> str | None:
        """Why the node does not have its desired state, or None."""
        return self._problem

    def wake(self) -> None:
        """Compare now: the node has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the node in its desired state until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tracker.follow(self._wake.set), name="follow_cards")
            while True:
                self._wake.clear()
                written = await self.sync()
                limit_s = _CALM_S if written else _AFTER_FAILURE_S
                await wait_at_most(self._clock, self._wake, limit_s=limit_s)

    async def sync(self) -> bool:
        """Write what differs; return False if it should be tried again soon."""
        have = self._current()
        if have is None:
            self._problem = f"the API server does not have node {self._node}"
            return False
        blocked = self._blocked()
        want = self._desired(have)
        if want is None:
            # The cards have not been listed yet; that is not a node without cards.
            self._problem = self._tracker.problem
            return True
        try:
            if have.shares:
                want = with_resized(self._described(want, have), resized_mib=self._resized_mib())
                await self._write(have, keep_held(want, held_mib=self._held(have)))
            else:
                await take_back(self._writer, self._node, have.marks)
        except KubeError as error:
            if self._problem != str(error):
                log.warning("node_not_written", node=self._node, reason=str(error))
            self._metrics.node_written("failed")
            self._problem = str(error)
            return False
        self._problem = self._not_shared(have) or blocked or self._tracker.unseen
        return True

    def _desired(self, have: NodeState) -> NodeState | None:
        """Return the desired state of the node; None while that is not known."""
        unseen, blocked = self._tracker.unseen, self._blocked()
        if not have.shares:
            return NodeState()
        if unseen is not None and not self._tracker.lost:
            return None
        if unseen is not None:
            return unseen_state(have, reason="CardsUnavailable", problem=unseen)
        if blocked is not None and not have.others:
            return unseen_state(have, reason="RuntimeUnknown", problem=blocked)
        want = wanted_state(self._tracker.inventory, have=have)
        if not have.others:
            cards = self._tracker.inventory.cards
            want = with_card_class(want, have=have, cards=cards, pools=self._pools())
        unregistered = self._unregistered()
        if switching := self._switching():
            want = without_new_pods(want, problem=switching.problem, reason=names.SWITCHING)
            to_what = without_capacity if switching.withdrawn else as_counted_before
            return to_what(want, have)
        return without_new_pods(want, problem=unregistered) if unregistered else want

    def _described(self, want: NodeState, have: NodeState) -> NodeState:
        """Return *want* with what is known of the node beside its cards."""
        if way := self._way():
            want = replace(want, annotations={**want.annotations, names.NODE_IDENTITY: way})
        why_not = self._isolation()
        if why_not is None:
            want = with_limits(as_isolated_before(want, have), have, lambda _: None)
        else:
            want = with_limits(with_isolation(want, why_not), have, self._overcommit)
        return want if self._published is None else without_capacity(want, have)

    def _held(self, have: NodeState) -> int:
        """Return the MiB that pods hold; while that is unknown, all that the node counts now."""
        held_mib = self._held_mib()
        if held_mib is None:
            return counted_mib(have)
        return held_mib

    def _not_shared(self, have: NodeState) -> str | None:
        if not have.shares:
            return f"the node does not carry {names.SHARE_LABEL}=true"
        if not have.others:
            return None
        problem = f"the node's cards are not shared: another plugin offers {have.counted_by}"
        if problem != self._problem:
            log.warning("node_left_alone", node=self._node, counted_by=have.counted_by)
        return problem

    async def _write(self, have: NodeState, want: NodeState) -> None:
        metadata = metadata_patch(have=have, want=want)
        status = status_patch(have=have, want=want)
        # Capacity last: whoever sees it also sees the labels and the inventory that go with it.
        if metadata:
            await self._writer.patch(NODES, self._node, metadata)
        if status:
            await self._writer.patch(NODES, self._node, status, subresource="status")
        await self._write_condition(have, want)
        published = self._published() if self._published is not None else None
        untainted = startup_taint_patch(have, want, published=published)
        if untainted:
            await self._writer.patch(NODES, self._node, untainted, how=PatchType.JSON)
            log.info("startup_taint_removed", node=self._node)
        if metadata or status:
            self._metrics.node_written("written")
            log.info("node_written", node=self._node, capacity=dict(want.capacity))

    async def _write_condition(self, have: NodeState, want: NodeState) -> None:
        condition = condition_patch(have=have, want=want, now=self._clock.now())
        if condition:
            # A strategic merge goes by type: kubelet and others write conditions beside ours.
            how = PatchType.STRATEGIC
            await self._writer.patch(NODES, self._node, condition, subresource="status", how=how)
