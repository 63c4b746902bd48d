"""The card that a Move reserves goes to its pod, on a real kube-scheduler and API server."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.state.move_object import Move
from fracgpu.state.pod_info import PodInfo
from kube.kinds import MOVES, PODS
from process.clock import SystemClock
from simulator.demo.definitions import install_definitions
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards
from tests.support.moves import move_body, move_of
from tests.support.real_scheduler import Harness, assert_cards_hold, real_scheduler
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODE_NAMES = ("gpu-1", "gpu-2", "gpu-3")
CARD_MIB = 24_000
MIB = 8_000  # three to a card
TARGETS = tuple((node, index) for node in NODE_NAMES for index in (0, 3))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    nodes = [a_sharing_node(name, cards=some_cards(name, mib=CARD_MIB)) for name in NODE_NAMES]
    async with real_scheduler(tmp_path, nodes) as started:
        yield started


def a_move(
    name: str, *, owner: str, target: tuple[str, int], source: tuple[str, int] = ("gpu-9", 0)
) -> Move:
    until_ = SystemClock().now() + timedelta(minutes=10)
    return move_of(
        name,
        owner_uid=owner,
        source=(source[0], f"GPU-{source[0]}-{source[1]}"),
        target=(target[0], f"GPU-{target[0]}-{target[1]}"),
        mib=MIB,
        reserved_until=until_,
        source_denied_until=until_,
    )


async def reserve(harness: Harness, *moves: Move) -> None:
    """Create Moves, and wait until the extender counts their reservations."""
    for move in moves:
        body = move_body(move)
        body["spec"]["reservedUntil"] = move.reserved_until.isoformat()
        await harness.client.create(MOVES, body)
    await counts(harness, 'fracgpu_scheduler_reservations{state="held"}', len(moves))


async def counts(harness: Harness, metric: str, value: float) -> None:
    async def counted() -> bool:
        return await harness.metric(metric) == value

    await until(counted, what=f"{metric} is {value}", limit_s=60)


async def create(harness: Harness, name: str, *, owner: str = "") -> None:
    await harness.client.create(PODS, a_gpu_pod(name, mib=MIB, owner=owner))


async def all_places_taken(harness: Harness) -> dict[str, PodInfo]:
    """Wait until each card has as many pods as it takes, and return them."""
    everybody = await harness.until_bound(36)
    assert_cards_hold(everybody, dict.fromkeys(everybody, (MIB, 1)), card_mib=CARD_MIB)
    return everybody


def card_of(pod: PodInfo) -> str:
    ((part,),) = (pod.record.assignment or {}).values()
    return part.card


async def test_every_replacement_gets_its_card_although_more_pods_want_it_than_fit(
    harness: Harness,
) -> None:
    await install_definitions(harness.client)
    moves = {
        f"replacement-{n}": a_move(f"move-{n}", owner=f"owner-{n}", target=target)
        for n, target in enumerate(TARGETS)
    }
    await reserve(harness, *moves.values())

    # Room for 36 in all: six are reserved, and ten of the others must wait.
    others = [f"other-{n}" for n in range(40)]
    for n, other in enumerate(others):
        await create(harness, other)
        if n % 6 == 5:
            await create(harness, f"replacement-{n // 6}", owner=f"owner-{n // 6}")

    found = await harness.until_bound(moves)

    for name, move in moves.items():
        assert card_of(found[name]) == move.spec.target.card, name
        assert found[name].annotations[names.MOVE] == move.name

    everybody = await all_places_taken(harness)
    assert {name for name, pod in everybody.items() if names.MOVE in pod.annotations} == set(moves)
    assert await harness.metric("fracgpu_scheduler_reservations_given_up_total") == 0
    assert await harness.metric("fracgpu_scheduler_overbooked_cards") == 0
    assert await harness.metric("fracgpu_scheduler_ledger_drift") == 0


async def test_an_extender_restarted_between_reservation_and_binding_keeps_the_reservation(
    harness: Harness,
) -> None:
    await install_definitions(harness.client)
    move = a_move("move-1", owner="owner-1", target=("gpu-2", 1))
    await reserve(harness, move)
    harness.roles.kill("scheduler")
    others = [f"other-{n}" for n in range(36)]
    for other in others:
        await create(harness, other)
    await create(harness, "replacement", owner="owner-1")

    pod = (await harness.until_bound(["replacement"]))["replacement"]

    assert harness.roles.starts("scheduler") >= 2
    assert card_of(pod) == move.spec.target.card

    await all_places_taken(harness)
