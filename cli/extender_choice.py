"""What the extender would choose for a pod, decided by its own core from the listed cluster."""

from dataclasses import replace
from datetime import datetime
from typing import Final

from cli.cluster import ObservedCluster
from component import placement_config
from fracgpu import names
from fracgpu.explain.explanation import objections_of
from fracgpu.placement.outcome import Placement
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from fracgpu.state.cluster_state import ClusterState, ExplainedPod
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.kinds import CONFIGMAPS
from kube.objects import decode_object
from process.clock import SystemClock
from scheduler.core import SchedulerCore

_MIX_NOTE: Final = (
    "least-waste was judged by the pods that exist now; the running extender also remembers pods "
    "that have ended, so it may choose another of several nearly equal cards"
)


DEFAULT_CONFIG_MAP: Final = f"{names.SYSTEM_NAMESPACE}/{names.CONFIG_MAP}"
"""The ``namespace/name`` of the ConfigMap that the extender reads by default."""


class _StoppedClock(SystemClock):
    """A clock that stands at the moment at which the cluster was listed."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now


async def read_strategy(
    client: KubeClient, *, namespace: str, config_map: str
) -> tuple[Strategy, tuple[str, ...]]:
    """Return the strategy from the ConfigMap that the extender reads, or its default.

    A note beside it says where the extender may have another one.
    """
    where = f"{placement_config.KEY!r} of ConfigMap {namespace}/{config_map}"
    try:
        body = await client.get(CONFIGMAPS, config_map, namespace=namespace)
        text = (decode_object(body).get("data") or {}).get(placement_config.KEY)
        return placement_config.parse_strategy(text or ""), ()
    except NotFound:
        return DEFAULT_STRATEGY, ()
    except (KubeError, ValueError) as error:
        note = (
            f"{where} cannot be read ({error}), so {DEFAULT_STRATEGY.value} was "
            "assumed; the extender goes on with the last good value that it has seen"
        )
        return DEFAULT_STRATEGY, (note,)


def with_choice(
    state: ClusterState, subject: ExplainedPod, observed: ObservedCluster
) -> ClusterState:
    """Return *state* with the cards that the extender would choose on each node, and its best node.

    A node that kube-scheduler's own filters refuse is not offered to the extender.
    """
    need = subject.info.need
    if need is None or subject.info.record.node:
        return state
    core = _core(state, observed)
    offered = [
        name
        for name, info in state.snapshot.nodes.items()
        if not objections_of(info.node, subject, state)
    ]
    chosen = {
        name: frozenset(slice_.card for slices in answer.assignment.values() for slice_ in slices)
        for name in offered
        if isinstance(answer := core.cards_on(subject.info, name), Placement)
    }
    notes = state.notes
    if (need.strategy or state.strategy) is Strategy.LEAST_WASTE and len(need.containers) == 1:
        notes = (*notes, _MIX_NOTE)
    return replace(
        state,
        chosen=chosen,
        preferred_node=core.best_node(subject.info, offered) or "",
        notes=notes,
    )


def _core(state: ClusterState, observed: ObservedCluster) -> SchedulerCore:
    core = SchedulerCore(strategy=lambda: state.strategy, clock=_StoppedClock(state.now))
    for node in observed.nodes:
        core.ledger.set_node(node.cards)
    for claims in observed.moves or ():
        core.ledger.set_claims(claims)
    for pod in observed.bound:
        if pod.live:
            core.ledger.observe(pod.allocation)
            core.bound_pods.put(pod)
    core.least_waste.learn_now(ahead=False)
    return core
