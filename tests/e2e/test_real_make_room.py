"""Room is made for a pod that waits, with a real control plane, scheduler and rebalancer.

Kubelets are played, and a real Prometheus measures what the test says; all else is real.
"""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.state.move_object import MoveObject, MovePhase
from tests.support.fragmented import (
    APPS,
    CARD_MIB,
    HALF_NODES,
    Fragmented,
    a_fragmented_cluster,
    a_rebalancer,
    cards_of,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(540)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Fragmented]:
    async with a_fragmented_cluster(tmp_path) as started:
        yield started


async def scattered(cluster: Fragmented) -> None:
    """Assert that no A30 is idle."""
    taken: set[CardUuid] = set()
    for pod in await cluster.pods():
        taken |= cards_of(pod)
    assert {f"GPU-{node}-{index}" for node in HALF_NODES for index in range(4)} <= taken


async def moves_for(cluster: Fragmented, pod: str) -> list[MoveObject]:
    uid = (await cluster.pod(pod)).record.uid
    return [
        move
        for move in await cluster.moves()
        if move.spec.beneficiary is not None and move.spec.beneficiary.uid == uid
    ]


async def competitors(cluster: Fragmented, pod: str) -> list[str]:
    """Create pods that would take a freed card, once moves for *pod* have begun; return them."""

    async def begun() -> bool:
        return bool(await moves_for(cluster, pod))

    await until(begun, what="a plan has begun", limit_s=120)
    small, large, cpu = (
        [f"{kind}-{number}" for number in range(3)] for kind in ("small", "large", "cpu")
    )
    for name in small:
        await cluster.ask(name, mib=2_000)
    for name in large:  # more than is free on any card
        await cluster.ask(name, mib=CARD_MIB - 2_000)
    for name in cpu:  # with its CPU taken the pod would not fit
        await cluster.ask(name, mib=2_000, cpu="12")
    return [*small, *large, *cpu]


async def all_done(cluster: Fragmented) -> bool:
    """Report whether all moves have ended; none was given up once it had disturbed a pod."""
    moves = await cluster.moves()
    disturbed = [move for move in moves if has_disturbed(move)]
    assert not [move for move in disturbed if move.status.phase is MovePhase.ABORTED], moves
    return all(move.status.phase is MovePhase.DONE for move in disturbed)


def has_disturbed(move: MoveObject) -> bool:
    return MovePhase.SURGING in {step.phase for step in move.status.transitions}


async def test_make_room_lets_a_whole_card_pod_in_on_a_fragmented_cluster(
    cluster: Fragmented,
) -> None:
    await scattered(cluster)
    (db,) = await cluster.pods("db")
    cluster.watch()
    # So long that no room is made for the competitors as well.
    await cluster.configure(mode="active", makeRoom="active", makeRoomAfterS=30)
    async with a_rebalancer(cluster):
        for name, cards in (("one", 1), ("two", 2)):
            await cluster.ask(name, cards=cards, cpu="40")
            await until(partial(cluster.refused, name), what="it waits", limit_s=60)
            others = await competitors(cluster, name)
            await until(partial(cluster.bound, name), what="it is placed", limit_s=180)

            pod = await cluster.pod(name)
            moves = await moves_for(cluster, name)
            assert 1 <= len(moves) <= 3
            for move in moves:
                assert move.spec.beneficiary is not None
                assert cards_of(pod) == set(move.spec.beneficiary.cards)
                assert move.spec.source.card in cards_of(pod)
            await until(lambda: all_done(cluster), what="its moves have ended", limit_s=60)
            for other in others:
                await cluster.remove(other)
            await until(cluster.complete, what="every app has its pods", limit_s=120)

    assert len(cards_of(await cluster.pod("two"))) == 2
    for app in APPS:
        assert cluster.fewest_ready[app.name] >= app.min_available, app.name
    assert [pod.record.uid for pod in await cluster.pods("db")] == [db.record.uid]
