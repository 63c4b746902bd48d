"""Preempt: which pods kube-scheduler should evict from which node, so that the pod fits.

Nodes whose cards would not do even if nothing held them are left out by the node matrix. The others
are looked at a few at a time, until there are as many as kube-scheduler itself would look for;
other requests are answered in between.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Final
from zlib import crc32

import structlog

from fracgpu.cards.card import CardUuid
from fracgpu.k8s.disruption_budget import BudgetIndex, PodDisruptionBudget
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.placement import denied_cards
from fracgpu.placement.preemption import (
    CandidateCount,
    PreemptionTarget,
    Room,
    Victims,
    choose_victims,
    fits_if_emptied,
    preemption_cost,
    room_without,
)
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import NodeInfo
from process.clock import Clock
from scheduler.extender.api import PreemptionArgs

log = structlog.get_logger()

# Other requests get their turn after so many nodes and pods on them. For several containers every
# node is searched by itself, which takes as long.
_AT_ONCE: Final = 128


class Preemptor:
    """Chooses victims; kube-scheduler evicts them, or whoever makes claims.

    What a Move reserves has no pod, so that no victim frees it.

    Args:
        ledger: who holds what.
        bound_pods: index of bound pods.
        matrix: the cards of all nodes.
        budgets: returns the current PodDisruptionBudgets.
        strategy: returns the cluster's current default.
        clock: the time at which cordons and assumptions are evaluated.
    """

    def __init__(
        self,
        ledger: Ledger,
        bound_pods: BoundPodIndex,
        matrix: NodeMatrix,
        *,
        budgets: Callable[[], Sequence[PodDisruptionBudget]],
        strategy: Callable[[], Strategy],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._bound_pods = bound_pods
        self._matrix = matrix
        self._budgets = budgets
        self._strategy = strategy
        self._clock = clock

    async def preempt(
        self,
        args: PreemptionArgs,
        *,
        spared: Collection[str] = (),
        closed: Callable[[], Collection[CardUuid]] = tuple,
    ) -> Mapping[str, Victims]:
        """Return nodes of the request where preemption helps, each with its victims.

        All of them, if they are no more than kube-scheduler would look for. Other requests are
        answered meanwhile: each node is judged by what is known of it at its turn. Pods whose UID
        is in *spared* are no victims, and cards that are *closed* are for others.
        """
        pod = args.pod
        if pod.need is None:
            return {}
        found: dict[str, Victims] = {}
        budgets, count = BudgetIndex(self._budgets()), CandidateCount(len(args.proposed))
        for _ in self._matrix.refreshing(self._clock.now):
            await self._clock.sleep(0)
        nodes = self._nodes_to_try(args, pod.need)
        left = iter(nodes)
        while not count.enough and (
            targets := self._next(pod, left, args.proposed, spared, closed())
        ):
            chosen = choose_victims(targets, pod.need, strategy=self._strategy(), budgets=budgets)
            for target, victims in zip(targets, chosen, strict=True):
                # kube-scheduler treats a node without victims as an error; such a node is left out,
                # because there the pod need only wait for terminating pods.
                if victims is not None and not count.enough:
                    found[target.node.node.node] = victims
                    count.add(victims)
            await self._clock.sleep(0)
        log.info(
            "victims_chosen",
            pod=pod.record.key,
            asked=len(args.proposed),
            possible=len(nodes),
            nodes=len(found),
        )
        return found

    async def room(
        self,
        pod: PodInfo,
        nodes: Collection[str],
        *,
        spared: Collection[str] = (),
        closed: Callable[[], Collection[CardUuid]] = tuple,
    ) -> Room | None:
        """Return the cheapest room for a pod that is made without a budget being violated.

        It is right as of now, as long as the caller awaits nothing else first.

        Args:
            pod: the pod; it fits on no node.
            nodes: those that it may run on.
            spared: UIDs of pods that are no victims.
            closed: returns the cards that are kept for others now.
        """
        if pod.need is None or not pod.preempts:
            return None
        args = PreemptionArgs(pod=pod, proposed=dict.fromkeys(nodes, frozenset()))
        found = await self.preempt(args, spared=spared, closed=closed)
        budgets, strategy = BudgetIndex(self._budgets()), self._strategy()
        costs = {
            node: preemption_cost(filter(None, map(self._bound_pods.get, victims.uids)))
            for node, victims in found.items()
            if not victims.violations
        }
        for node in sorted(costs, key=costs.__getitem__):
            # Others were placed while the rest was looked at.
            for target in self._next(pod, iter((node,)), args.proposed, spared, closed()):
                room = room_without(target, pod.need, strategy=strategy, budgets=budgets)
                if room is not None:
                    return room
        return None

    def _nodes_to_try(self, args: PreemptionArgs, need: PodNeed) -> Sequence[str]:
        """Return the nodes where preemption may help, beginning at another one for each pod.

        kube-scheduler begins at a random one, so that not always the same nodes are found.
        """
        names = tuple(args.proposed)
        rows = self._matrix.rows_of(names)
        possible = list(compress(names, fits_if_emptied(self._matrix, rows, need).tolist()))
        first = crc32(args.pod.record.uid.encode()) % max(1, len(possible))
        return possible[first:] + possible[:first]

    def _next(
        self,
        pod: PodInfo,
        nodes: Iterator[str],
        proposed: Mapping[str, frozenset[str]],
        spared: Collection[str],
        closed: Collection[CardUuid],
    ) -> Sequence[PreemptionTarget]:
        """Return the next nodes to look at, as they are now: no more than for one turn."""
        now, size = self._clock.now(), 0
        most = 1 if pod.need is not None and len(pod.need.containers) > 1 else _AT_ONCE
        denied = {*denied_cards(self._ledger, pod, now=now), *closed}
        found: list[PreemptionTarget] = []
        while size < most and (node := next(nodes, None)) is not None:
            node_info = self._ledger.node_but(node, pod.record.uid, now=now)
            if node_info is None:
                continue
            here = self._here(node, proposed[node])
            going = [other for other in here if other.terminating]
            node_info = node_info.without_pods(other.allocation for other in going)
            potential_victims = [
                other
                for other in here
                if other.priority < pod.priority
                and not other.terminating
                and other.uid not in spared
            ]
            found.append(
                PreemptionTarget(
                    node=node_info.with_cordoned(denied),
                    missing=self._missing(pod, node, node_info, going=going),
                    potential_victims=potential_victims,
                    proposed=proposed[node],
                )
            )
            size += 1 + len(potential_victims)
        return found

    def _here(self, node: str, proposed: frozenset[str]) -> list[BoundPod]:
        uids = self._ledger.pods_on(node) | proposed
        pods = (self._bound_pods.get(uid) for uid in sorted(uids))
        return [pod for pod in pods if pod is not None and pod.live and pod.node == node]

    def _missing(
        self, pod: PodInfo, node: str, node_info: NodeInfo, *, going: Sequence[BoundPod]
    ) -> HostResources:
        """Return what the host lacks once its terminating pods are gone.

        Filter keeps what Moves keep there for others, whoever has left.
        """
        there, used = node_info.node.host, self._bound_pods.used(node)
        if there == NO_HOST_RESOURCES:
            return NO_HOST_RESOURCES
        holds = self._ledger.holds_against(pod.record.uid, now=self._clock.now())
        wanted = sum((hold.host for hold in holds if hold.node == node), used + pod.host)
        missing = wanted - sum((other.host for other in going), there)
        pods = used.pods + 1 - there.pods - len(going) if there.pods else 0
        return replace(missing, pods=pods)
