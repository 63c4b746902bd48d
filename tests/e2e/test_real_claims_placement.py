"""How much of a cluster is allocated when stock kube-scheduler chooses, and when we list cards.

The trace is Alibaba's openb, which is not part of this project: OPENB_CSV names its folder.
"""

import csv
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pytest

from fracgpu.cards.card import Card, CardUuid
from fracgpu.device_claims.claims import claim_of
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from kube.kinds import PODS, RESOURCE_CLAIMS
from tests.support.claims import a_claiming_node, a_claiming_pod
from tests.support.gpu import Json, some_cards
from tests.support.real_claims import ClaimsCluster, real_claims
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

_CSV: Final = "OPENB_CSV"
_MIB_PER_MILLI: Final = 80
_NODES: Final = 40
_SEED: Final = 42


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A pod of the trace: thousandths of a CPU, MiB, and thousandths of each of some cards."""

    name: str
    cpu: int
    mem: int
    cards: int
    milli: int

    @property
    def gpu(self) -> int:
        return self.cards * self.milli

    def body(self) -> Json:
        requests = {"cpu": f"{self.cpu}m", "memory": f"{self.mem}Mi"}
        if self.cards:
            pod = a_claiming_pod(self.name, self.milli * _MIB_PER_MILLI, cards=self.cards)
            pod["spec"]["containers"][0]["resources"]["requests"] = requests
            return pod
        container = {"name": "main", "image": "x", "resources": {"requests": requests}}
        return {
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {"containers": [container]},
        }


def _rows(folder: str, name: str) -> list[dict[str, str]]:
    with (Path(folder) / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _world(folder: str) -> tuple[Mapping[str, Json], Mapping[str, Sequence[Card]], list[_Arrival]]:
    """Return some nodes of the trace with their cards, and pods that ask for 100 % of these."""
    draw = random.Random(_SEED)  # noqa: S311 - the same draw each time
    rows = draw.sample(_rows(folder, "openb_node_list_gpu_node.csv"), _NODES)
    cards: dict[str, list[Card]] = {}
    nodes: dict[str, Json] = {}
    for row in rows:
        name = row["sn"]
        cards[name] = [
            Card(
                uuid=CardUuid(f"GPU-{name}-{at}"),
                index=at,
                model=row["model"],
                total_mib=Mib(1000 * _MIB_PER_MILLI),
            )
            for at in range(int(row["gpu"]))
        ]
        node = a_claiming_node(name, cards[name], cpu=f"{row['cpu_milli']}m")
        node["status"]["allocatable"] |= {"memory": f"{row['memory_mib']}Mi", "pods": "1000"}
        nodes[name] = node
    asked, goal = 0, 1000 * sum(map(len, cards.values()))
    arrivals: list[_Arrival] = []
    pods = _rows(folder, "openb_pod_list_default.csv")
    while True:
        row = draw.choice(pods)
        count = int(row["num_gpu"])
        milli = min(int(row["gpu_milli"]), 1000) if count else 0
        asked += count * milli
        if asked > goal:
            return nodes, cards, arrivals
        name = f"p{len(arrivals):04}"
        amounts = int(row["cpu_milli"]), int(row["memory_mib"])
        arrivals.append(_Arrival(name, *amounts, count, milli))


async def _arrive(cluster: ClaimsCluster, arrival: _Arrival, *, plain: bool) -> None:
    """Create a pod, and delete it again if kube-scheduler finds no node for it."""
    client = cluster.client
    created = await client.create(PODS, arrival.body(), namespace="default")
    if plain and arrival.cards:
        info = decode_pod_info(msgspec.json.encode(created))
        assert info.need is not None
        body = claim_of(info.record, info.device_claim, info.need, None)
        await client.create(RESOURCE_CLAIMS, body, namespace="default")

    async def decided() -> bool:
        pod = await client.get_object(PODS, arrival.name, namespace="default")
        if pod["spec"].get("nodeName"):
            return True
        conditions = pod["status"].get("conditions") or ()
        if not any(one.get("reason") == "Unschedulable" for one in conditions):
            return False
        if plain or not arrival.cards:
            return True
        # The list may be replaced still; an open claim is the last word.
        claims = [one for one in await cluster.claims() if one.owner]
        mine = [one for one in claims if one.owner and one.owner.uid == pod["metadata"]["uid"]]
        return bool(mine) and mine[0].open

    await until(decided, what=f"kube-scheduler's answer for {arrival}", limit_s=60)
    pod = await client.get_object(PODS, arrival.name, namespace="default")
    if not pod["spec"].get("nodeName"):
        await client.delete(PODS, arrival.name, namespace="default", grace_s=0)


async def _allocated(workdir: Path, folder: str, *, plain: bool) -> float:
    """Return how much of the cards is allocated, in per cent."""
    nodes, cards, arrivals = _world(folder)
    async with real_claims(workdir, cards, nodes=nodes) as cluster:
        async with nullcontext() if plain else cluster.controller():  # which knows of no pod yet
            for arrival in arrivals:
                await _arrive(cluster, arrival, plain=plain)
        assert await cluster.overbooked() == []
        held = sum(one.amounts.mib for claim in await cluster.claims() for one in claim.devices)
        return 100 * held / (1000 * _MIB_PER_MILLI * sum(map(len, cards.values())))


async def test_shortlists_allocate_more_than_kube_scheduler_does_by_itself(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = os.environ.get(_CSV)
    if not folder:
        pytest.skip(f"{_CSV} is not set: no trace to replay")
    workdirs = tmp_path / "plain", tmp_path / "listed"
    for workdir in workdirs:
        workdir.mkdir()
    plain = await _allocated(workdirs[0], folder, plain=True)
    listed = await _allocated(workdirs[1], folder, plain=False)
    record_property("allocated_percent", {"plain": plain, "listed": listed})

    assert listed >= plain + 1.5


async def test_a_shortlist_costs_kube_scheduler_at_most_six_times_an_open_claim(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cards = {f"n{at:03}": some_cards(f"n{at:03}", count=8, mib=80_000) for at in range(500)}
    async with real_claims(tmp_path, cards) as cluster:
        spent_s = {}
        for kind in ("warm-up", "open", "listed"):
            pods = [a_claiming_pod(f"{kind}-{at:02}", 8_000) for at in range(40)]
            before_s = _cpu_s(cluster.api.pids["kube-scheduler"])
            already = len(await cluster.bound())
            for at, pod in enumerate(pods):
                created = await cluster.client.create(PODS, pod, namespace="default")
                info = decode_pod_info(msgspec.json.encode(created))
                assert info.need is not None
                listed = [card.uuid for node in list(cards)[at : at + 4] for card in cards[node]]
                lists = {"train": listed[::8]} if kind == "listed" else None
                body = claim_of(info.record, info.device_claim, info.need, lists)
                await cluster.client.create(RESOURCE_CLAIMS, body, namespace="default")
            await cluster.until_bound(already + len(pods), limit_s=120)
            spent_s[kind] = (_cpu_s(cluster.api.pids["kube-scheduler"]) - before_s) / len(pods)
    record_property("cpu_s_of_a_pod", spent_s)

    assert spent_s["listed"] <= 6 * spent_s["open"]


def _cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds. Source: proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
