"""A move against a real kube-apiserver: its evictions, budgets, preconditions and locks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.disruption.move import Ending
from fracgpu.state.move_object import MovePhase
from kube.access import connect
from kube.client import KubeClient
from kube.errors import Conflict
from kube.kinds import PODS
from rebalancer.moves.evictor import EvictionOutcome, Evictor, judge
from tests.support.moving import (
    NAMESPACE,
    a_rig,
    add_budget,
    add_pod,
    cordons_of,
    end_pod,
    events,
    make_cluster,
)
from tests.support.real_apiserver import real_api_server
from tests.support.rebalancing import COOL_CARD, HOT_CARD, a_reading

pytestmark = pytest.mark.e2e


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with real_api_server(tmp_path) as api, connect(api.kubeconfig(tmp_path / "kc")) as client:
        yield client


async def test_a_whole_move_with_its_budget_and_its_record(real: KubeClient) -> None:
    await make_cluster(real, annotations={names.REBALANCE: "evict"})
    async with a_rig(real) as rig:
        planned = await rig.tick_until_planned()
        await add_budget(real, allowed=0)
        assert await cordons_of(real, "n1") == {HOT_CARD: "hot"}
        assert (await rig.evictor.dry_run(planned.move)).outcome is EvictionOutcome.BLOCKED

        await add_budget(real, allowed=1)
        await rig.tick()
        assert rig.record().phase is MovePhase.EVICTED
        assert (await rig.evictor.evict(planned.move)).outcome is EvictionOutcome.GONE

        await end_pod(real, "pod-a")
        assert (await rig.evictor.evict(planned.move)).outcome is EvictionOutcome.GONE
        await add_pod(real, "pod-a", card=COOL_CARD, node="n2", move=planned.id)
        assert (await rig.evictor.evict(planned.move)).outcome is EvictionOutcome.OTHER_POD
        # The server checks the budget first, then the precondition.
        await add_budget(real, allowed=1)
        with pytest.raises(Conflict) as caught:
            await real.evict(namespace=NAMESPACE, name="pod-a", uid=planned.move.pod_uid)
        assert judge(caught.value).outcome is EvictionOutcome.CHANGED

        await rig.tick()
        assert rig.record().phase is MovePhase.VERIFYING
        rig.usage.readings[HOT_CARD] = a_reading(0.45)
        for _ in range(45):
            await rig.tick()
        assert rig.record().ending is Ending.RELIEVED
        assert await cordons_of(real, "n1") == {HOT_CARD: "warm"}  # avoided: others are cooler
    assert await events(real) == ["HotCardDetected", "MovePlanned", "Evicted", "MoveCompleted"]


async def test_two_budgets_over_one_pod_are_told_from_a_failing_server(real: KubeClient) -> None:
    await make_cluster(real, annotations={names.REBALANCE: "evict"})
    async with a_rig(real) as rig:
        planned = await rig.tick_until_planned()
        await add_budget(real, allowed=1)
        await add_budget(real, allowed=1, name="another")

        verdict = await Evictor(real, guard=lambda: None).dry_run(planned.move)

        assert verdict.outcome is EvictionOutcome.REFUSED
        pod = await real.get_object(PODS, "pod-a", namespace=NAMESPACE)
        assert "deletionTimestamp" not in pod["metadata"]
