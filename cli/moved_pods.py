"""Pods that are in the middle of a move: an uninstallation gives them back to their ReplicaSets.

A pod that a move has released has no controller, and once the rebalancer is gone nothing would give
it one again. It gets its label back; its ReplicaSet adopts it and deletes what it has too many.
"""

from collections.abc import Callable, Sequence

from fracgpu import names
from fracgpu.disruption.candidates import original_value
from fracgpu.errors import WireError
from fracgpu.state.move_object import decode_move
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient, PatchType
from kube.errors import Conflict, Forbidden, Invalid, NotFound
from kube.kinds import MOVES, PODS
from rebalancer.moves.observer import Owners, victim_of
from rebalancer.moves.side_effects import restoring
from rebalancer.moves.steps import DELETION_COST, LOWEST_COST


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
    """Take what moves wrote off every pod; return the pods that have to be looked at again.

    A released pod keeps its mark until its ReplicaSet has adopted it. The mark that lets a
    ReplicaSet delete a replacement first goes at once: of two Ready pods the younger one goes.

    Raises:
        KubeError: the API server did not answer.
    """
    left = []
    replacements = await _replacements(client)
    moved = await find_moved(client)
    # First what no label change has touched, so that nothing speaks against a pod any more.
    for pod in sorted(moved, key=lambda pod: names.MOVED_BY in pod.annotations):
        try:
            done = await _give_back(client, pod, _marks_of(pod, replacements))
        except NotFound:
            continue
        except (Conflict, Invalid, Forbidden):  # changed meanwhile, or a policy still holds
            done = ""
        if done:
            on_progress(done)
        else:
            left.append(pod.record.key)
    return left


async def _give_back(client: KubeClient, pod: PodInfo, marks: Sequence[str]) -> str:
    """Take the next step with one pod; return what was done once it was the last one."""
    record = pod.record
    if names.MOVED_BY not in marks:
        await _patch(client, pod, marks)
        return f"pod {record.key}: removed {', '.join(marks)}"
    victim = victim_of(pod, uid=record.uid)
    if victim.controller_uid and not victim.released:
        await _patch(client, pod, marks)
        return f"pod {record.key}: given back to its {pod.owner[0] if pod.owner else 'owner'}"
    original = original_value(victim.hash_label)
    owner = await Owners(client).with_hash(
        original, namespace=record.namespace, key=victim.hash_key
    )
    if not owner.there:
        await _patch(client, pod, marks)
        return f"pod {record.key}: its ReplicaSet is gone; delete the pod if nobody needs it"
    if victim.released:
        await _patch(client, pod, [mark for mark in marks if mark != names.MOVED_BY])
    return ""  # its ReplicaSet will adopt it


async def _patch(client: KubeClient, pod: PodInfo, marks: Sequence[str]) -> None:
    """Give a pod its label back, if it was released, and take marks off it."""
    record = pod.record
    victim = victim_of(pod, uid=record.uid)
    original = original_value(victim.hash_label)
    changes = restoring(victim, uid=record.uid, original=original, marks=marks)
    await client.patch(PODS, record.name, changes, namespace=record.namespace, how=PatchType.JSON)


def _stays(pod: PodInfo) -> bool:
    return pod.record.live and not pod.record.terminating


def _marks_of(pod: PodInfo, replacements: frozenset[str]) -> list[str]:
    found = [mark for mark in names.MOVE_MARKS if mark in pod.annotations]
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
