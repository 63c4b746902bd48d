"""Gangs on a real kube-scheduler: each is placed whole, and none waits for ever."""

import random
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.state.pod_info import PodInfo
from kube.kinds import PODS
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards
from tests.support.real_scheduler import GANG_GATES, Harness, create_pod_group, real_scheduler
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CARD_MIB = 24_000
# One fits on a card, though a node of three cards has memory for four of them in all: that is how
# many kube-scheduler itself would place there.
POD_MIB = 16_000
# Within this the Bindings of a gang, which are written together, must all have taken effect.
TOGETHER_S = 30.0


def nodes(count: int, *, cards: int) -> list[dict[str, object]]:
    return [
        a_sharing_node(f"gpu-{n}", cards=some_cards(f"gpu-{n}", count=cards, mib=CARD_MIB))
        for n in range(count)
    ]


class Gangs:
    """Gangs by the annotation or as PodGroups, whose pods hold a card each, and not all of it."""

    def __init__(
        self, harness: Harness, sizes: Mapping[str, int], *, pod_groups: bool = False
    ) -> None:
        self.pod_groups = pod_groups
        self.harness = harness
        self.sizes = sizes
        self.finished: set[str] = set()
        self.most_at_once = 0

    async def create(self, *, seed: int = 1) -> None:
        """Create all pods, those of different gangs in turn."""
        pods = [(gang, n) for gang, size in self.sizes.items() for n in range(size)]
        random.Random(seed).shuffle(pods)  # noqa: S311 - an order, no secret
        for gang, size in self.sizes.items() if self.pod_groups else ():
            await create_pod_group(self.harness.client, gang, size)
        for gang, n in pods:
            pod = a_gpu_pod(f"{gang}-{n}", mib=POD_MIB, terminationGracePeriodSeconds=0)
            if self.pod_groups:
                pod["spec"]["schedulingGroup"] = {"podGroupName": gang}
            else:
                pod["metadata"]["annotations"][names.GANG] = f"{gang}/{self.sizes[gang]}"
            await self.harness.client.create(PODS, pod)

    async def bound(self) -> dict[str, list[PodInfo]]:
        found = defaultdict(list)
        for name, pod in (await self.harness.bound()).items():
            found[name.rpartition("-")[0]].append(pod)
        return found

    async def finish_those_that_run(self) -> bool:
        """Delete each gang that is bound whole; fail if one stays bound in part.

        Return whether all have run.
        """
        bound = await self.bound()
        in_part = {gang for gang, pods in bound.items() if len(pods) < self.sizes[gang]}

        async def together() -> bool:
            later = await self.bound()
            return all(len(later[gang]) == self.sizes[gang] for gang in in_part)

        await until(together, what=f"the other pods of {in_part} are bound", limit_s=TOGETHER_S)
        self.most_at_once = max(self.most_at_once, len(bound))
        for gang in bound.keys() - in_part:  # another may be bound in part by now
            for pod in bound[gang]:
                await self.harness.client.delete(PODS, pod.record.name, namespace="default")
            self.finished.add(gang)
        return self.finished == self.sizes.keys()


@pytest.mark.parametrize("gates", ["", GANG_GATES], ids=["annotation", "PodGroup"])
async def test_twenty_gangs_on_a_cluster_that_fits_a_third_all_run_in_turn(
    tmp_path: Path, gates: str
) -> None:
    sizes = {f"gang{n}": 2 + n % 8 for n in range(20)}  # 2 to 9: 106 pods
    async with real_scheduler(tmp_path, nodes(9, cards=4), gates=gates) as harness:
        gangs = Gangs(harness, sizes, pod_groups=bool(gates))
        await gangs.create()

        await until(gangs.finish_those_that_run, what="all gangs have run", limit_s=400)

        assert gangs.most_at_once > 1
        assert await harness.metric("fracgpu_scheduler_ledger_drift") == 0
        assert await harness.metric("fracgpu_scheduler_overbooked_cards") == 0
