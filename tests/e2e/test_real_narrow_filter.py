"""Filter names the best node alone, and a real kube-scheduler still weighs what it should."""

from pathlib import Path
from typing import Any

import pytest

from kube.kinds import PODS
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards
from tests.support.real_scheduler import Harness, real_scheduler
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GROUP = "example.com/group"
SIDE = "example.com/side"
SOFT = "preferredDuringSchedulingIgnoredDuringExecution"
CARD_MIB = 24_000
TAINT = {"key": "example.com/kept", "effect": "PreferNoSchedule"}


def in_group(group: str) -> dict[str, Any]:
    return {"matchLabels": {GROUP: group}}


# What each pod prefers, on two nodes of its own: the extender prefers the fuller one, "full".
PREFERENCES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "node-affinity": {
        "affinity": {
            "nodeAffinity": {
                SOFT: [
                    {
                        "weight": 100,
                        "preference": {
                            "matchExpressions": [
                                {"key": SIDE, "operator": "In", "values": ["empty"]}
                            ]
                        },
                    }
                ]
            }
        }
    },
    "anti-affinity": {
        "affinity": {
            "podAntiAffinity": {
                SOFT: [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": SIDE,
                            "labelSelector": in_group("anti-affinity"),
                        },
                    }
                ]
            }
        }
    },
    "spreading": {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": SIDE,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": in_group("spreading"),
            }
        ]
    },
    "taint": {},
}


def nodes_of(group: str) -> list[dict[str, Any]]:
    found = []
    for side in ("full", "empty"):
        name = f"{group}-{side}"
        node = a_sharing_node(name, cards=some_cards(name, count=1, mib=CARD_MIB))
        node["metadata"]["labels"] |= {GROUP: group, SIDE: side}
        if (group, side) == ("taint", "full"):
            node["spec"] = {"taints": [TAINT]}
        found.append(node)
    return found


async def place(harness: Harness, name: str, *, group: str, mib: int, **spec: Any) -> str:
    """Create a pod of a group, wait until it is bound, and return the side of its node."""
    selector = {GROUP: group, **spec.pop("nodeSelector", {})}
    pod = a_gpu_pod(name, mib=mib, nodeSelector=selector, **spec)
    pod["metadata"]["labels"] = {GROUP: group}
    await harness.client.create(PODS, pod)

    async def bound() -> bool:
        return name in await harness.bound()

    await until(bound, what=f"{name} is bound", limit_s=60)
    return (await harness.bound())[name].record.node.removeprefix(f"{group}-")


async def sides(workdir: Path, *, narrow: bool, weight: int | None) -> dict[str, str]:
    """Return the side that the pod of each group was placed on."""
    every = [node for group in PREFERENCES for node in nodes_of(group)]
    async with real_scheduler(workdir, every, narrow=narrow, weight=weight) as harness:
        found = {}
        for group, preference in PREFERENCES.items():
            first = f"first-of-{group}"
            full = {"nodeSelector": {SIDE: "full"}}
            assert await place(harness, first, group=group, mib=12_000, **full) == "full"
            found[group] = await place(
                harness, f"second-of-{group}", group=group, mib=6_000, **preference
            )
        return found


async def test_what_a_pod_prefers_decides_where_the_weight_of_the_extender_lets_it(
    tmp_path: Path,
) -> None:
    # With weight 1 the best node leads by 30 points; each preference counts for 200 or more.
    found = await sides(tmp_path, narrow=True, weight=1)

    assert found == {
        "nothing": "full",
        "node-affinity": "empty",
        "anti-affinity": "empty",
        "spreading": "empty",
        "taint": "empty",
    }


async def test_with_the_shipped_weight_a_narrow_answer_places_pods_as_a_whole_one_does(
    tmp_path: Path,
) -> None:
    narrow = await sides(tmp_path / "narrow", narrow=True, weight=None)
    whole = await sides(tmp_path / "whole", narrow=False, weight=None)

    assert narrow == whole == dict.fromkeys(PREFERENCES, "full")
