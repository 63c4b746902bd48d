"""Moves on a real kube-apiserver with the policies and permissions of deploy/."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.state.move_object import MoveStatus, OwnerReference, decode_move
from kube.client import KubeClient
from kube.errors import Forbidden, NotFound
from kube.event_correlator import EventCorrelator
from kube.events import EventRecorder, Regarding
from kube.kinds import MOVES, MUTATING_WEBHOOKS, NODES, PODS, VALIDATING_WEBHOOKS
from process.clock import SystemClock
from rebalancer.moves.observer import OWNER_KINDS, Owners
from rebalancer.moves.steps import OwnerFacts
from tests.support.moves import move_body, move_of, status_body
from tests.support.policed import Harness, a_pod, is_refused, policed_harness, refusal
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ONLY_REBALANCER = "is created and changed only by the FracGPU rebalancer's service account"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with policed_harness(tmp_path) as harness:
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):  # the policies are enough
            await harness.admin.delete(kind, "fracgpu-webhook")
        await until(lambda: in_force(harness), what="the policy of Moves in force", limit_s=60)
        yield harness


async def in_force(harness: Harness) -> bool:
    probe = a_pod("probe", notes={names.MOVE: "m"})
    if not await is_refused(harness.admin.create(PODS, probe, namespace="default", dry_run=True)):
        return False
    try:
        await harness.admin.create(MOVES, move_body(move_of("probe")), dry_run=True)
    except NotFound:  # the definition is not established yet
        return False
    except Forbidden as error:
        return ONLY_REBALANCER in str(error)
    return False


async def test_a_move_is_written_by_the_rebalancer_alone_and_read_by_the_scheduler(
    harness: Harness,
) -> None:
    admin, rebalancer = harness.admin, await harness.as_account("fracgpu-rebalancer")
    scheduler = await harness.as_account("fracgpu-scheduler")
    body = move_body(move_of())
    assert ONLY_REBALANCER in await refusal(admin.create(MOVES, body))
    with pytest.raises(Forbidden, match="cannot create resource"):
        await scheduler.create(MOVES, body)

    made = await rebalancer.create(MOVES, body)
    await rebalancer.replace(MOVES, made | {"status": {"phase": "Reserved"}}, subresource="status")
    done = status_body(MoveStatus()) | {"status": {"phase": "Done"}}
    request = admin.patch(MOVES, "move-1", done, subresource="status")
    assert ONLY_REBALANCER in await refusal(request)
    assert [decode_move(item).name for item in (await scheduler.list(MOVES)).items] == ["move-1"]
    await admin.delete(MOVES, "move-1")  # the administrator's way to release what it reserves
    await rebalancer.create(MOVES, body)
    await rebalancer.delete(MOVES, "move-1")
    await check_what_few_moves_need(rebalancer)


async def check_what_few_moves_need(rebalancer: KubeClient) -> None:
    """Ask for a controller of each kind, and count an Event up, with the rebalancer's rights."""
    for kind in OWNER_KINDS:
        owner = OwnerReference(api_version="v1", kind=kind, name="gone", uid="u")
        found = await Owners(rebalancer).read(owner, namespace="default")
        assert found == OwnerFacts(there=False)
    correlator = EventCorrelator()
    recorder = EventRecorder(rebalancer, "rebalancer", SystemClock(), correlator=correlator)
    for _ in range(2):
        node = Regarding(kind=NODES, name="n1", namespace="")
        await recorder.emit(node, reason="HotCardDetected", note="n1/0")
    assert recorder.failed == 0
