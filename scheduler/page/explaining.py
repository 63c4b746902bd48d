"""Why one pod waits: what ``fracgpu explain`` says, of the few nodes that are nearest to a fit.

All nodes of a large cluster would be too much work for a page, and too much to read.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import numpy as np
from msgspec import structs

from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.placement import denied_cards, evaluate, nodes_for
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import PodRecord
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.cluster_state import ClusterState, ExplainedPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import NodeInfo, PodAllocation, Snapshot
from scheduler.core import SchedulerCore

_MOST_NODES: Final = 6


def nearest_nodes(
    need: PodNeed, matrix: NodeMatrix, *, strategy: Strategy, now: datetime
) -> tuple[str, ...]:
    """Return the few nodes that are nearest to taking a pod: the nearest obstacle, then most free.

    Of several containers only the first is looked at: all together would be searched node by node.
    """
    first = structs.replace(need, containers=need.containers[:1], topology=None)
    matrix.refresh(now=now)
    result = evaluate(matrix, first, np.arange(matrix.size), strategy=strategy)
    ranks = np.zeros(matrix.size, np.int64)
    ranks[~result.fits] = 1 + result.refusals.obstacles
    most_free = matrix.free_mib[: matrix.size].max(axis=1).tolist()
    found = [
        (rank, -most_free[row], matrix.names[row])
        for row, rank in enumerate(ranks.tolist())
        if matrix.infos[row] is not None
    ]
    return tuple(name for _, _, name in sorted(found)[:_MOST_NODES])


def state_for(
    subject: ExplainedPod, core: SchedulerCore, *, strategy: Strategy, scheduler: str, now: datetime
) -> ClusterState:
    """Return the part of the cluster that is looked at for one pod."""
    ledger, need = core.ledger, subject.info.need
    names = nearest_nodes(need, core.matrix, strategy=strategy, now=now) if need is not None else ()
    known = {name: node for name in names if (node := ledger.node(name, now=now)) is not None}
    nodes = nodes_for(ledger, subject.info, known, now=now)
    return ClusterState(
        snapshot=Snapshot(nodes=nodes, pods=_allocations(nodes, ledger)),
        strategy=strategy,
        pods=_holders(nodes, core.bound_pods),
        reservations={
            move: claims.reservation
            for move, claims in ledger.reservations.claims.items()
            if claims.reservation is not None and claims.reservation.node in nodes
        },
        denied=frozenset(denied_cards(ledger, subject.info, now=now)),
        schedulers=frozenset({scheduler}),
        cards_only=True,
        now=now,
    )


def _allocations(nodes: Mapping[str, NodeInfo], ledger: Ledger) -> dict[str, PodAllocation]:
    found = {}
    for name in nodes:
        for uid in ledger.pods_on(name):
            allocation = ledger.observed.get(uid)
            assumption = ledger.assumed.get(uid)
            if allocation is not None:
                found[uid] = allocation
            elif assumption is not None:
                found[uid] = assumption.allocation
    return found


def _holders(nodes: Mapping[str, NodeInfo], bound: BoundPodIndex) -> dict[str, PodInfo]:
    """Return the pods on the cards of *nodes*, with nothing but their names."""
    uids = {uid for node in nodes.values() for card in node.cards.values() for uid in card.pods}
    pods = ((uid, bound.get(uid)) for uid in uids)
    return {
        uid: PodInfo(
            record=PodRecord(
                uid=uid,
                namespace=pod.namespace,
                name=pod.name,
                node=pod.node,
                terminating=pod.terminating,
            )
        )
        for uid, pod in pods
        if pod is not None
    }
