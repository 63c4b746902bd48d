"""Puts right what a move left behind: pods that no ReplicaSet owns, stale notices, old Moves."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

import structlog

from fracgpu import names
from fracgpu.disruption.candidates import original_value
from fracgpu.errors import WireError
from fracgpu.state.card_hold import hold_of
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import UNDER_WAY, Move
from fracgpu.state.pod_info import decode_pod_info
from kube.client import KubeClient, PatchType
from kube.errors import KubeError, NotFound
from kube.kinds import PODS
from rebalancer.moves.observer import Owners, orphans_of, victim_of
from rebalancer.moves.side_effects import restoring
from rebalancer.moves.steps import OwnerFacts
from rebalancer.moves.store import MoveStore, outlived

log = structlog.get_logger()

_EVERY: Final = timedelta(minutes=1)


class Janitor:
    """Looks for leftovers when its process begins to lead, and every minute after that.

    Args:
        client: reaches the API server.
        store: has the Moves.
    """

    def __init__(self, client: KubeClient, store: MoveStore) -> None:
        self._client = client
        self._store = store
        self._owners = Owners(client)
        self._swept_at: datetime | None = None

    async def sweep(self, pods: Iterable[PlacedPod], *, now: datetime) -> None:
        """Put right what no move takes care of any more, unless that was done a moment ago.

        A pod that cannot be put right now is left to the next sweep.
        """
        if self._swept_at is not None and now - self._swept_at < _EVERY:
            return
        self._swept_at = now
        for move in outlived(self._store.moves, now=now):
            await self._store.forget(move)
        pods = list(pods)
        for pod in leftovers(pods, self._store.moves):
            try:
                await self._put_right(pod, pods)
            except KubeError as error:
                log.warning("leftover_stays", pod=pod.info.record.key, error=str(error))

    async def end_holds(self, pods: Mapping[str, PlacedPod], *, now: datetime) -> None:
        """End what Moves keep for pods that are placed or gone; *pods* has the live ones by UID."""
        for move in no_longer_needed(self._store.moves, pods, now=now):
            try:
                await self._store.put(move.with_status(held_until=now))
            except KubeError as error:
                log.warning("hold_stays", move=move.name, error=str(error))
            else:
                log.info("hold_ended", move=move.name, beneficiary=move.spec.plan)

    async def _put_right(self, pod: PlacedPod, pods: Iterable[PlacedPod]) -> None:
        record = pod.info.record
        try:
            body = await self._client.get(PODS, record.name, namespace=record.namespace)
            info = decode_pod_info(body)
        except (NotFound, WireError):
            return
        victim = victim_of(info, uid=record.uid)
        if not victim.there:
            return
        # A released pod keeps its mark until it has a controller: nothing else would find it.
        kept = {names.MOVED_BY} if victim.released else set()
        marks = [mark for mark in names.MOVE_MARKS if mark in info.annotations and mark not in kept]
        if victim.released or (victim.moved_by and not victim.controller_uid):
            value = original_value(victim.hash_label)
            owner = await self._owners.with_hash(
                value, namespace=record.namespace, key=victim.hash_key
            )
            others = (other for other in pods if other.uid != pod.uid)
            orphaned = bool(orphans_of(others, record.namespace, hash_value=value))
            what = what_to_do(owner, released=victim.released, orphaned=orphaned)
            if what is Remedy.EVICT:
                await self._evict(pod, victim.version)
            if what is not Remedy.RESTORE:
                return
        await self._client.patch(
            PODS,
            record.name,
            restoring(
                victim,
                uid=record.uid,
                original=original_value(victim.hash_label),
                marks=marks,
            ),
            namespace=record.namespace,
            how=PatchType.JSON,
        )
        log.info("leftover_restored", pod=record.key, was_released=victim.released)

    async def _evict(self, pod: PlacedPod, version: str) -> None:
        record = pod.info.record
        await self._client.evict(
            namespace=record.namespace, name=record.name, uid=record.uid, version=version
        )
        log.info("leftover_evicted", pod=record.key)


def no_longer_needed(
    moves: Iterable[Move], pods: Mapping[str, PlacedPod], *, now: datetime
) -> list[Move]:
    """Return the moves that keep cards for a pod that does not wait any more."""
    found = []
    for move in moves:
        hold = hold_of(move)
        if hold is None or hold.until <= now:
            continue
        waiting = pods.get(hold.pod_uid)
        if waiting is None or waiting.info.record.node:
            found.append(move)
    return found


def leftovers(pods: Iterable[PlacedPod], moves: Iterable[Move]) -> list[PlacedPod]:
    """Return the pods that carry the marks of a move although none is under way for them."""
    moved = {move.spec.pod.uid for move in moves if move.phase in UNDER_WAY}
    return [
        pod
        for pod in pods
        if pod.uid not in moved and any(mark in pod.info.annotations for mark in names.MOVE_MARKS)
    ]


class Remedy(Enum):
    """What is done about a pod that has no controller, or will have none."""

    RESTORE = "it gets its label back, and loses the marks"
    EVICT = "it goes"
    WAIT = "its ReplicaSet adopts it, and it is checked again"


def what_to_do(owner: OwnerFacts, *, released: bool, orphaned: bool) -> Remedy:
    """Return what becomes of a pod that a move released, or that nobody has adopted since.

    Args:
        owner: the ReplicaSet that selects the pod by its original label.
        released: the pod has the label by which it does not.
        orphaned: the ReplicaSet is gone and left other pods behind.

    It goes if its ReplicaSet has all its pods without it. Without the ReplicaSet it goes too,
    unless the ReplicaSet left its other pods behind.
    """
    if not owner.there:
        return Remedy.RESTORE if orphaned else Remedy.EVICT
    if not released:
        return Remedy.WAIT
    return Remedy.EVICT if owner.satisfied else Remedy.RESTORE
