"""A real kube-scheduler honours what pods prefer as often with the extender as without it."""

from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from kube.kinds import NODES, PODS
from tests.support.gpu import Json, a_gpu_pod, a_sharing_node, some_cards
from tests.support.real_scheduler import Harness, real_scheduler
from tests.support.yaml_files import read_yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
SOFT = "preferredDuringSchedulingIgnoredDuringExecution"
HOST, ZONE, DISK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/disk"
KIND = "example.com/kind"
NODE_COUNT: Final = 24
REPLICAS: Final = 12
CARD_MIB, CARDS = 24_000, 8
TAINT = {"key": "example.com/kept", "effect": "PreferNoSchedule"}

NODE_AFFINITY, ANTI_AFFINITY = "node affinity", "anti-affinity"
BY_HOST, BY_ZONE, TAINTS = "spreading by host", "spreading by zone", "taints"


def name_of(index: int) -> str:
    return f"node-{index:02}"


def zone_of(node: str) -> str:
    return "abc"[int(node[-2:]) % 3]


def is_fast(node: str) -> bool:
    """Every second node of the zones b and c, six of them."""
    return zone_of(node) != "a" and int(node[-2:]) // 3 % 2 == 0


def is_kept(node: str) -> bool:
    return zone_of(node) == "a"


def nodes() -> list[Json]:
    found = []
    for name in map(name_of, range(NODE_COUNT)):
        node = a_sharing_node(name, cards=some_cards(name, count=CARDS, mib=CARD_MIB))
        disk = "fast" if is_fast(name) else "slow"
        node["metadata"]["labels"] |= {ZONE: zone_of(name), DISK: disk}
        found.append(node)
    return found


def spreading(kind: str, *, by: str) -> Json:
    constraint = {"maxSkew": 1, "topologyKey": by, "whenUnsatisfiable": "ScheduleAnyway"}
    selector = {"labelSelector": {"matchLabels": {KIND: slug(kind)}}}
    return {"topologySpreadConstraints": [constraint | selector]}


def slug(kind: str) -> str:
    return kind.replace(" ", "-")


def soft(kind: str, **term: Json) -> Json:
    return {"affinity": {kind: {SOFT: [{"weight": 1, **term}]}}}


FAST: Final = {"key": DISK, "operator": "In", "values": ["fast"]}
ITSELF: Final = {"matchLabels": {KIND: slug(ANTI_AFFINITY)}}
PREFERENCES: dict[str, Json] = {
    NODE_AFFINITY: soft("nodeAffinity", preference={"matchExpressions": [FAST]}),
    ANTI_AFFINITY: soft(
        "podAntiAffinity", podAffinityTerm={"topologyKey": HOST, "labelSelector": ITSELF}
    ),
    BY_HOST: spreading(BY_HOST, by=HOST),
    BY_ZONE: spreading(BY_ZONE, by=ZONE),
    TAINTS: {},
}


def honoured(kind: str, placed: list[str]) -> int:
    """Return for how many pods of a kind the preference is met, given their nodes."""
    if kind == NODE_AFFINITY:
        return sum(map(is_fast, placed))
    if kind == TAINTS:
        return sum(not is_kept(node) for node in placed)
    if kind == BY_ZONE:
        zones = [zone_of(node) for node in placed]
        return sum(min(zones.count(zone), len(placed) // 3) for zone in "abc")
    return len(set(placed))


async def create(harness: Harness, kind: str, *, count: int, mib: int, **spec: Any) -> list[str]:
    """Create pods of a kind at once, wait until they are bound, and return their nodes."""
    wanted = [f"{slug(kind)}-{index}" for index in range(count)]
    for name in wanted:
        pod = a_gpu_pod(name, mib=mib, **spec)
        pod["metadata"]["labels"] = {KIND: slug(kind)}
        await harness.client.create(PODS, pod)
    every = await harness.until_bound(wanted)
    return [every[name].record.node for name in wanted]


async def met(
    workdir: Path, *, scheduler: str = names.SCHEDULER_NAME, replicas: int = REPLICAS, **chosen: Any
) -> dict[str, int]:
    """Return for how many pods of each kind the preference is met.

    Before them pods fill a part of one card of each node of zone a, which nothing prefers, so that
    packing would choose these.
    """
    async with real_scheduler(workdir, nodes(), **chosen) as harness:
        here = {"schedulerName": scheduler}
        for node in filter(is_kept, map(name_of, range(NODE_COUNT))):
            mine = {"nodeSelector": {HOST: node}}
            await create(harness, f"first-on-{node}", count=1, mib=12_000, **mine, **here)
        found = {}
        for kind, preference in PREFERENCES.items():
            if kind == TAINTS:
                for node in filter(is_kept, map(name_of, range(NODE_COUNT))):
                    await harness.client.patch(NODES, node, {"spec": {"taints": [TAINT]}})
            placed = await create(harness, kind, count=replicas, mib=3_000, **preference, **here)
            found[kind] = honoured(kind, placed)
        return found


def alone(configuration: Json) -> None:
    """Leave kube-scheduler as Kubernetes ships it, without an extender."""
    configuration["extenders"] = []
    configuration["profiles"] = [{"schedulerName": names.SCHEDULER_NAME}]


def shipped(_: Json) -> None:
    """Leave the configuration of deploy/ as it is."""


def clusters_own(configuration: Json) -> None:
    """Take the profiles that the overlay gives the cluster's own kube-scheduler."""
    path = ROOT / "deploy" / "cluster-scheduler" / "files" / "config.yaml"
    configuration["profiles"] = read_yaml(path.read_text())["profiles"]


async def test_as_many_preferences_are_honoured_with_the_extender_as_without(
    tmp_path: Path,
) -> None:
    every = dict.fromkeys(PREFERENCES, REPLICAS)

    assert await met(tmp_path / "alone", configure=alone) == every
    assert await met(tmp_path / "shipped", configure=shipped) == every


async def test_the_clusters_own_kube_scheduler_honours_as_many(tmp_path: Path) -> None:
    found = await met(tmp_path, configure=clusters_own, scheduler="default-scheduler")

    assert found == dict.fromkeys(PREFERENCES, REPLICAS)
