"""What keeps the gang of a pod waiting."""

from collections.abc import Sequence

from fracgpu.explain.answers import NodeAnswer
from fracgpu.placement.gang import GangMember, NoRoom, place_gang
from fracgpu.state.cluster_state import ClusterState
from fracgpu.state.pod_info import PodInfo


def why_gang_waits(
    pod: PodInfo, nodes: Sequence[NodeAnswer], state: ClusterState
) -> tuple[str, ...]:
    """Return why a pod may not be placed yet although a card fits; nothing if it may.

    The other pods of the gang are tried on the nodes that this one may go to.
    """
    gang = pod.gang
    if gang is None or state.cards_only:
        return ()
    members = [
        one
        for one in state.pods.values()
        if one.gang == gang
        and one.record.namespace == pod.record.namespace
        and one.record.live
        and not one.record.terminating
    ]
    if any(one.record.node for one in members):
        return ()  # the gang runs, and this pod is placed by itself
    waits = f"all {gang.size} pods of its gang {gang.name} are placed at once"
    if len(members) < gang.size:
        return (f"{waits}, and only {len(members)} of them exist",)
    allowed = tuple(each.node for each in nodes if not each.objections)
    answer = place_gang(
        [
            GangMember(pod=one, need=one.need, nodes=allowed)
            for one in sorted(members, key=lambda one: one.record.uid)[: gang.size]
            if one.need is not None
        ],
        node=state.snapshot.nodes.get,
        left=lambda _: None,
        strategy=state.strategy,
    )
    if isinstance(answer, NoRoom):
        return (f"{waits}, and only {answer.placed} of them would fit now",)
    return ()
