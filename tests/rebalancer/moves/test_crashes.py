"""The leader dies before or after any of its writes; the next one finishes what it began."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from fracgpu import names
from fracgpu.state.move_object import ENDED, MovePhase
from kube.client import KubeClient, Transport
from kube.kinds import MOVES
from tests.fakes.clock import VirtualClock
from tests.support.moving import Rig, SurgeCluster, a_rig, a_surge_cluster, schedule
from tests.support.rebalancing import COOL_CARD
from tests.support.waiting import until

MOST_WRITES = 12  # of Moves and pods, in a surge that succeeds


class Died(Exception):  # noqa: N818 - what happened to the process
    """The process ended at a write."""


class DyingTransport:
    """Ends the process at its write number *at* to Moves and pods: before it, or after it."""

    def __init__(self, transport: Transport, *, at: int, after: bool) -> None:
        self._transport, self._left, self._after = transport, at, after
        self.died = False

    async def request(self, verb: str, path: str, **more: Any) -> bytes:
        changes = verb != "GET" and not more.get("query") and ("/moves" in path or "/pods/" in path)
        self._left -= changes
        if self.died or (changes and self._left == 0 and not self._after):
            self.died = True
            raise Died
        answer = await self._transport.request(verb, path, **more)
        if changes and self._left == 0:
            self.died = True
            raise Died
        return answer

    def stream_lines(
        self, path: str, *, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncGenerator[bytes, None]:
        return self._transport.stream_lines(path, query=query, inactivity_s=inactivity_s)


async def carry_on(cluster: SurgeCluster, rig: Rig) -> None:
    """Run cycles, and let scheduler and kubelet do their part, until the move settles."""
    for _ in range(16):
        await rig.tick(16)
        record = next(iter(rig.store.moves), None)
        if record is not None and record.phase in (MovePhase.VERIFYING, *ENDED):
            return
        if record is not None and record.phase is MovePhase.SURGING:
            await cluster.wait_owned(owned=False)
            await cluster.wait_replacement()
        await schedule(cluster.kube)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, MOST_WRITES + 1))
async def test_the_next_leader_finishes_a_surge_that_its_predecessor_died_in(
    kube: KubeClient, clock: VirtualClock, at: int, after: bool
) -> None:
    async with a_surge_cluster(kube, clock=clock) as cluster:
        usage = cluster.rig.usage
        transport = DyingTransport(kube.transport, at=at, after=after)
        async with a_rig(KubeClient(transport), usage=usage, clock=clock) as first:
            with pytest.raises(Died):
                await carry_on(cluster, first)

        await carry_on(cluster, cluster.rig)

        (record,) = cluster.rig.store.moves
        assert record.phase is MovePhase.VERIFYING, record
        assert record.landed == COOL_CARD
        await cluster.wait_gone("pod-a")
        await until(lambda: two_are_left(cluster), what="no pod too many and none too few")
        assert len((await kube.list(MOVES)).items) == 1


async def two_are_left(cluster: SurgeCluster) -> bool:
    pods = await cluster.pods()
    return (
        len(pods) == 2
        and "pod-b" in pods
        and all(pod.owner and pod.ready for pod in pods.values())
        and not any(names.MOVED_BY in pod.annotations for pod in pods.values())
    )
