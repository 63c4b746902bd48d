"""On a real control plane: the pods of a gang get their claims at once, or none of them does."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.claims import a_claiming_pod
from tests.support.gpu import some_cards
from tests.support.real_claims import RealClaims, create_all, delete_pod, real_claims
from tests.support.real_scheduler import GANG_GATES, create_pod_group
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# One pod fits on a card: there is room for one of two gangs of three, and one card more.
CARDS = {name: some_cards(name, count=2, mib=24_000) for name in ("n1", "n2")}
SIZE: Final = 3
POD_MIB: Final = 16_000


async def bound(cluster: RealClaims) -> Counter[str]:
    """Return how many pods of each gang are bound."""
    return Counter(name.partition("-")[0] for name in await cluster.bound())


async def claimed(cluster: RealClaims) -> Counter[str]:
    """Return how many pods of each gang have a claim."""
    owners = [claim.owner for claim in await cluster.claims()]
    return Counter(owner.name.partition("-")[0] for owner in owners if owner is not None)


async def test_of_two_pod_groups_for_the_room_of_one_each_runs_whole_in_turn(
    tmp_path: Path,
) -> None:
    """kube-scheduler counts their pods itself, and takes their cards as they come."""
    async with real_claims(tmp_path, CARDS, gates=GANG_GATES) as cluster, cluster.controller():
        for name in ("a", "b"):
            await create_pod_group(cluster.client, name, SIZE)
        *most, last = [pod for name in ("a", "b") for pod in of_group(name)]
        await create_all(cluster.client, most[: SIZE - 1] + most[SIZE:])

        async def all_claimed() -> bool:
            return (await claimed(cluster)).total() == 2 * SIZE - 2

        await until(all_claimed, what="each has a claim", limit_s=60)
        assert await bound(cluster) == {}
        await create_all(cluster.client, [most[SIZE - 1], last])
        await cluster.until_bound(SIZE)
        (one,) = await bound(cluster)

        async def other_was_tried() -> bool:
            waiting = [pod for pod in await cluster.pods() if not pod["spec"].get("nodeName")]
            return all(pod["status"].get("conditions") for pod in waiting)

        await until(other_was_tried, what="kube-scheduler has tried the other", limit_s=60)
        assert await bound(cluster) == {one: SIZE}
        # The pods of a group make nobody leave, and keep no card from others.
        await create_all(cluster.client, [a_claiming_pod("late", POD_MIB)])
        await cluster.until_bound(SIZE + 1)
        for number in range(SIZE):
            await delete_pod(cluster.client, f"{one}-{number}")
        other = "b" if one == "a" else "a"

        async def other_runs() -> bool:
            return await bound(cluster) == {other: SIZE, "late": 1}

        await until(other_runs, what="the other runs", limit_s=60)
        assert await cluster.overbooked() == []


def of_group(name: str) -> list[dict[str, Any]]:
    group = {"podGroupName": name}
    return [a_claiming_pod(f"{name}-{n}", POD_MIB, schedulingGroup=group) for n in range(SIZE)]
