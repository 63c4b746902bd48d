"""Who holds what, over time: a fold over observed pods and nodes plus what we assumed ourselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.state.allocation import Allocation, Assignment, Phase, PodRecord, allocations_by_card
from fracgpu.state.snapshot import NodeInfo, PodAllocation, Snapshot, allocation_of, build_node_info
from fracgpu.units import Mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A placement whose Binding is under way; it lapses if no observation ever confirms it."""

    allocation: Allocation
    until: datetime


@dataclass(frozen=True, slots=True)
class _Pictured:
    """One node's loads, and from when until when they are true if no fact changes."""

    node_info: NodeInfo
    since: datetime
    until: datetime | None


class Ledger:
    """The book of holds. It is told every fact and asked for pictures; it does nothing by itself.

    An observation of a pod always wins over an assumption about it, and a pod holds its cards until
    it is terminal or gone, not until its deletion timestamp. A node's picture is folded from its
    pods when something about it has changed, and kept until something does.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeCards] = {}
        self._observed: dict[str, PodAllocation] = {}
        self._assumed: dict[str, Assumption] = {}
        self._on_node: dict[str, set[str]] = {}
        self._assumed_on: dict[str, set[str]] = {}
        self._pictured: dict[str, _Pictured] = {}
        self._dirty: set[str] = set()
        self._ends: dict[str, datetime] = {}
        self._next_end: datetime | None = None  # none of them is earlier

    def set_node(self, node: NodeCards) -> None:
        if self._nodes.get(node.node) == node:
            return
        self._nodes[node.node] = node
        self._touch(node.node)

    def remove_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._touch(name)

    def set_pod(self, pod: PodRecord) -> None:
        """Observe a pod as the API server shows it now."""
        self.observe(allocation_of(pod))

    def observe(self, pod: PodAllocation) -> None:
        """Observe what a pod holds now; nothing where it is not bound, not ours, or has ended."""
        before = self._observed.get(pod.pod_uid)
        if pod.node:
            self.forget(pod.pod_uid)
        if before == pod or (before is None and not pod.holds_anything):
            return
        self._unobserve(pod.pod_uid)
        if pod.node and pod.holds_anything:
            self._observed[pod.pod_uid] = pod
            self._on_node.setdefault(pod.node, set()).add(pod.pod_uid)
            self._touch(pod.node)

    def remove_pod(self, uid: str) -> None:
        """Observe that a pod is gone."""
        self._unobserve(uid)
        self.forget(uid)

    def assume(
        self, pod: PodRecord, *, node: str, assignment: Assignment, until: datetime
    ) -> Assumption:
        """Count a placement before its Binding is confirmed.

        A pod that was observed bound already is not counted a second time.
        """
        holds = allocations_by_card(assignment, pod.containers)
        assumption = Assumption(
            allocation=Allocation(pod_uid=pod.uid, node=node, phase=Phase.ASSUMED, by_card=holds),
            until=until,
        )
        if pod.uid not in self._observed:
            self.forget(pod.uid)
            self._assumed[pod.uid] = assumption
            self._assumed_on.setdefault(node, set()).add(pod.uid)
            self._touch(node)
        return assumption

    def forget(self, uid: str) -> None:
        """Drop an assumption: its Binding failed, or an observation took its place."""
        assumption = self._assumed.pop(uid, None)
        if assumption is not None:
            node = assumption.allocation.node
            _take_out(self._assumed_on, node, uid)
            self._touch(node)

    def lapse(self, *, now: datetime) -> tuple[str, ...]:
        """Drop assumptions that nothing ever confirmed, and name their pods."""
        lapsed = tuple(uid for uid, it in self._assumed.items() if it.until <= now)
        for uid in lapsed:
            self.forget(uid)
        return lapsed

    @property
    def assumed(self) -> Mapping[str, Assumption]:
        """Assumptions by pod UID, read only."""
        return MappingProxyType(self._assumed)

    @property
    def observed(self) -> Mapping[str, PodAllocation]:
        """What pods were observed to hold, by pod UID, read only."""
        return MappingProxyType(self._observed)

    @property
    def nodes(self) -> Mapping[str, NodeCards]:
        """The nodes by name, read only."""
        return MappingProxyType(self._nodes)

    def pods_on(self, node: str) -> frozenset[str]:
        """Name the pods that hold something on a node, by UID: observed and assumed ones."""
        return frozenset(self._on_node.get(node, ())) | frozenset(self._assumed_on.get(node, ()))

    def take_changed(self, *, now: datetime) -> frozenset[str]:
        """Name the nodes whose picture may be another one than when this was asked before.

        For one caller that keeps something derived up to date by looking at each with `node`.
        """
        # Each node whose heat is known has an end: not looked through for every request.
        if self._next_end is not None and self._next_end <= now:
            for name in [name for name, end in self._ends.items() if end <= now]:
                del self._ends[name]
                self._dirty.add(name)
            self._next_end = min(self._ends.values(), default=None)
        changed = frozenset(self._dirty)
        self._dirty.clear()
        return changed

    def node(self, name: str, *, now: datetime) -> NodeInfo | None:
        """Picture one node, without copying the rest of the cluster."""
        found = self._pictured.get(name)
        if found is None or now < found.since or (found.until is not None and now >= found.until):
            node = self._nodes.get(name)
            if node is None:
                return None
            found = self._picture(node, now=now)
            self._pictured[name] = found
            if found.until is not None:
                self._ends[name] = found.until
                self._next_end = min(found.until, self._next_end or found.until)
        return found.node_info

    def node_but(self, name: str, uid: str, *, now: datetime) -> NodeInfo | None:
        """Picture one node without what is assumed of one pod: that never stands in its own way."""
        node_info = self.node(name, now=now)
        assumption = self._assumed.get(uid)
        if node_info is None or assumption is None or assumption.until <= now:
            return node_info
        allocation = assumption.allocation
        return (
            node_info
            if allocation.node != name
            else node_info.minus(allocation.by_card, pod_uid=uid)
        )

    def _picture(self, node: NodeCards, *, now: datetime) -> _Pictured:
        name = node.node
        pods = [self._observed[uid] for uid in sorted(self._on_node.get(name, ()))]
        ends = [*(it.until for it in node.cordons), *node.heat_changes_at]
        for uid in sorted(self._assumed_on.get(name, ())):
            assumption = self._assumed[uid]
            ends.append(assumption.until)
            if assumption.until > now:
                allocation = assumption.allocation
                pods.append(PodAllocation(pod_uid=uid, node=name, by_card=allocation.by_card))
        heat = node.known_heat(now=now)
        node_info = build_node_info(node, pods, cordoned=node.cordoned(now=now), heat=heat)
        return _Pictured(node_info, now, min((end for end in ends if end > now), default=None))

    def snapshot(self, *, now: datetime) -> Snapshot:
        """Picture everything, assumptions that have not lapsed included."""
        nodes = {}
        for name in sorted(self._nodes):
            node_info = self.node(name, now=now)
            assert node_info is not None, "the node was listed a line above"
            nodes[name] = node_info
        pods = dict(self._observed)
        for uid, it in self._assumed.items():
            if it.until > now:
                allocation = it.allocation
                pods[uid] = PodAllocation(
                    pod_uid=uid, node=allocation.node, by_card=allocation.by_card
                )
        return Snapshot(nodes=MappingProxyType(nodes), pods=MappingProxyType(pods))

    def free_mib(self, *, now: datetime) -> dict[CardUuid, Mib]:
        """Free MiB by card of every known node."""
        return {
            uuid: card_info.free_mib
            for node_info in self.snapshot(now=now).nodes.values()
            for uuid, card_info in node_info.cards.items()
        }

    def _unobserve(self, uid: str) -> None:
        holds = self._observed.pop(uid, None)
        if holds is not None:
            _take_out(self._on_node, holds.node, uid)
            self._touch(holds.node)

    def _touch(self, node: str) -> None:
        self._pictured.pop(node, None)
        self._dirty.add(node)


def _take_out(groups: dict[str, set[str]], key: str, item: str) -> None:
    group = groups[key]
    group.discard(item)
    if not group:
        del groups[key]
