"""How much of a cluster is allocated when kube-scheduler chooses, and when we list cards or choose.

The trace is Alibaba's openb, which is not part of this project: OPENB_CSV names its folder.
"""

import csv
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec
import pytest

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.device_claims.claims import claim_of
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import PODS, RESOURCE_CLAIMS
from simulator.envtest.control_plane import ControlPlane
from tests.support.claims import a_claiming_node, a_claiming_pod
from tests.support.gpu import Json, a_sharing_node, some_cards
from tests.support.real_claims import real_claims
from tests.support.real_scheduler import real_scheduler
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

    def body(self, way: "_Way") -> Json:
        requests = {"cpu": f"{self.cpu}m", "memory": f"{self.mem}Mi"}
        mib = self.milli * _MIB_PER_MILLI
        if self.cards and way is not _Way.EXTENDER:
            pod = a_claiming_pod(self.name, mib, cards=self.cards)
            pod["spec"]["containers"][0]["resources"]["requests"] = requests
            return pod
        limits, notes, spec = {}, {}, {}
        if self.cards:
            limits = {names.GPU_MEM: str(mib * self.cards), names.GPU_SLOT: str(self.cards)}
            notes = {names.MEMORY: f"{mib}Mi", names.CARDS: str(self.cards)}
            spec = {"schedulerName": names.SCHEDULER_NAME}
        resources = {"requests": {**requests, **limits}, "limits": limits}
        container = {"name": "train", "image": "x", "resources": resources}
        return {
            "metadata": {"name": self.name, "namespace": "default", "annotations": notes},
            "spec": {"containers": [container], **spec},
        }


class _Way(Enum):
    """Who chooses the cards."""

    PLAIN = "plain claims"
    LISTED = "claims with shortlists"
    EXTENDER = "extender"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """What a run showed: of the cards' memory, of pods that arrive one by one, and for each pod."""

    allocated_percent: float
    pods_per_s: float
    scheduler_cpu_ms: float


def _rows(folder: str, name: str) -> list[dict[str, str]]:
    with (Path(folder) / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _world(
    folder: str, way: "_Way"
) -> tuple[Mapping[str, Json], Mapping[str, Sequence[Card]], list[_Arrival]]:
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
        a_node = a_sharing_node if way is _Way.EXTENDER else a_claiming_node
        node = a_node(name, cards=cards[name], cpu=f"{row['cpu_milli']}m")
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


async def _arrive(
    client: KubeClient, arrival: _Arrival, way: _Way, is_open: Callable[[str], Awaitable[bool]]
) -> bool:
    """Create a pod, and delete it again if kube-scheduler finds no node for it; report which."""
    created = await client.create(PODS, arrival.body(way), namespace="default")
    uid = created["metadata"]["uid"]
    if way is _Way.PLAIN and arrival.cards:
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
        # A list may be replaced still; an open claim is the last word.
        return way is not _Way.LISTED or not arrival.cards or await is_open(uid)

    await until(decided, what=f"kube-scheduler's answer for {arrival}", limit_s=60)
    pod = await client.get_object(PODS, arrival.name, namespace="default")
    if pod["spec"].get("nodeName"):
        return True
    await client.delete(PODS, arrival.name, namespace="default", grace_s=0)
    return False


async def _replay(
    api: ControlPlane,
    client: KubeClient,
    arrivals: Sequence[_Arrival],
    way: _Way,
    *,
    cards: int,
    is_open: Callable[[str], Awaitable[bool]],
) -> _Figures:
    began_s, before_s = time.monotonic(), _cpu_s(api.pids["kube-scheduler"])
    held = bound = 0
    for arrival in arrivals:
        if await _arrive(client, arrival, way, is_open):
            held += arrival.gpu
            bound += 1
    spent_s = _cpu_s(api.pids["kube-scheduler"]) - before_s
    return _Figures(
        allocated_percent=100 * held / (1000 * cards),
        pods_per_s=bound / (time.monotonic() - began_s),
        scheduler_cpu_ms=1000 * spent_s / len(arrivals),
    )


async def _with_claims(workdir: Path, folder: str, way: _Way) -> _Figures:
    nodes, cards, arrivals = _world(folder, way)
    count = sum(map(len, cards.values()))
    async with real_claims(workdir, cards, nodes=nodes) as cluster:

        async def is_open(uid: str) -> bool:
            return any(one.holder == uid and one.open for one in await cluster.claims())

        # The controller knows of no pod yet.
        async with nullcontext() if way is _Way.PLAIN else cluster.controller():
            found = await _replay(
                cluster.api, cluster.client, arrivals, way, cards=count, is_open=is_open
            )
        assert await cluster.overbooked() == []
        held = sum(one.amounts.mib for claim in await cluster.claims() for one in claim.devices)
        assert held == pytest.approx(found.allocated_percent * 10 * _MIB_PER_MILLI * count)
        return found


async def _with_extender(workdir: Path, folder: str) -> _Figures:
    nodes, cards, arrivals = _world(folder, _Way.EXTENDER)

    def configure(written: Json) -> None:
        written["profiles"].append({"schedulerName": "default-scheduler"})
        written["clientConnection"] |= {"qps": 1000, "burst": 1000}

    async def nothing_is_open(_: str) -> bool:
        return False

    async with real_scheduler(workdir, list(nodes.values()), configure=configure) as cluster:
        return await _replay(
            cluster.api,
            cluster.client,
            arrivals,
            _Way.EXTENDER,
            cards=sum(map(len, cards.values())),
            is_open=nothing_is_open,
        )


async def test_shortlists_allocate_more_than_kube_scheduler_does_by_itself(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = os.environ.get(_CSV)
    if not folder:
        pytest.skip(f"{_CSV} is not set: no trace to replay")
    found: dict[_Way, _Figures] = {}
    for way in _Way:
        workdir = tmp_path / way.name
        workdir.mkdir()
        if way is _Way.EXTENDER:
            found[way] = await _with_extender(workdir, folder)
        else:
            found[way] = await _with_claims(workdir, folder, way)
        record_property(way.value, found[way])
        print(way.value, found[way])  # noqa: T201 - with pytest -s

    percents = {way: figures.allocated_percent for way, figures in found.items()}
    assert percents[_Way.LISTED] >= percents[_Way.PLAIN] + 1.5


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
