"""Pods that are in the middle of a move: an uninstallation gives them back to their ReplicaSets.

A pod that a move has released has no controller, and once the rebalancer is gone nothing would give
it one again. It gets its label back; its ReplicaSet adopts it and deletes what it has too many.
"""

from collections.abc import Callable, Sequence
from typing import Final

from fracgpu import names
from fracgpu.disruption.candidates.move_mode import original_value
from fracgpu.errors import WireError
from fracgpu.state.move_object import decode_move
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient, PatchType
from kube.errors import Conflict, Forbidden, Invalid, NotFound
from kube.kinds import MOVES, PODS
from rebalancer.moves.observer import victim_of
from rebalancer.moves.owners import Owners
from rebalancer.moves.side_effects import restoring
from rebalancer.moves.steps.facts import DELETION_COST, LOWEST_COST

_MARKS: Final = (names.MOVED_BY, names.NOTICE)


async def find_moved(client: KubeClient) -> Sequence[PodInfo]:
    """Return the pods that carry what a move writes on pods, by namespace and name.

    Raises:
        KubeError: the API server did not answer.
    """
    replacements = await _replacements(client)
    pods = [decode_pod_info(bytes(raw)) for raw in (await client.list(PODS)).items]
    moved = [pod for pod in pods if _stays(pod) and _marks_of(pod, replacements)]
    return sorted(moved, key=lambda pod: pod.record.key)


async def give_back(client: KubeClient, *, on_progress: Callable[[str], None]) -> list[str]:
    """Take what moves wrote off every pod; return the pods that could not be changed now.

    The mark that lets a ReplicaSet delete a replacement first goes as well: of a Ready pod and a
    younger one it deletes the younger.

    Raises:
        KubeError: the API server did not answer.
    """
    left = []
    replacements = await _replacements(client)
    moved = await find_moved(client)
    # First what no label change has touched, so that nothing speaks against a pod any more.
    for pod in sorted(moved, key=lambda pod: names.MOVED_BY in pod.annotations):
        try:
            on_progress(await _give_back(client, pod, _marks_of(pod, replacements)))
        except NotFound:
            continue
        except (Conflict, Invalid, Forbidden):  # changed meanwhile, or a policy still holds
            left.append(pod.record.key)
    return left


async def _give_back(client: KubeClient, pod: PodInfo, marks: Sequence[str]) -> str:
    """Restore one pod; return what was done."""
    record = pod.record
    victim = victim_of(pod, uid=record.uid)
    original = original_value(victim.hash_label)
    await client.patch(
        PODS,
        record.name,
        restoring(victim, uid=record.uid, original=original, marks=marks),
        namespace=record.namespace,
        how=PatchType.JSON,
    )
    if not victim.released:
        return f"pod {record.key}: removed {', '.join(marks)}"
    owner = await Owners(client).with_hash(original, namespace=record.namespace)
    if owner.there:
        return f"pod {record.key}: given back to its ReplicaSet"
    return f"pod {record.key}: its ReplicaSet is gone; delete the pod if nobody needs it"


def _stays(pod: PodInfo) -> bool:
    return pod.record.live and not pod.record.terminating


def _marks_of(pod: PodInfo, replacements: frozenset[str]) -> list[str]:
    found = [mark for mark in _MARKS if mark in pod.annotations]
    replaces = names.MOVE in pod.annotations or pod.record.uid in replacements
    # Others write deletion costs too; only a replacement's lowest one is ours.
    demoted = replaces and pod.annotations.get(DELETION_COST) == LOWEST_COST
    return [*found, DELETION_COST] if demoted else found


async def _replacements(client: KubeClient) -> frozenset[str]:
    """Return the UIDs of the pods that took the places of others, as far as Moves tell."""
    try:
        listed = await client.list(MOVES)
    except NotFound:
        return frozenset()
    found = set()
    for raw in listed.items:
        try:
            move = decode_move(bytes(raw))
        except WireError:
            continue
        if move.status.replacement is not None:
            found.add(move.status.replacement.uid)
    return frozenset(found)
