"""A real kubelet and containerd on a node with cards of two vendors: each container gets its own.

AMD's cards are a tree of files as the kernel has them, NVIDIA's a stand-in for its library; the
device files are harmless ones. The kernel's limits are on a tree that follows the real cgroups.
"""

import asyncio
import itertools
import json
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientError, ClientSession
from prometheus_client.parser import text_string_to_metric_families

from fracgpu import names
from fracgpu.cards.card import CardUuid
from simulator.envtest.ports import free_ports
from tests.fakes.amdgpu_tree import MIB, AmdgpuTree, open_card
from tests.fakes.dmem_tree import DmemTree
from tests.support.gpu import some_cards
from tests.support.nvml import a_card, build, write_values
from tests.support.real_node import RealNode, a_container, a_real_node, a_real_pod
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Json = dict[str, Any]
FIRST, SECOND = CardUuid("AMD-a1b2c3d4e5f60000"), CardUuid("AMD-a1b2c3d4e5f60001")
REGIONS: Final = ("drm/0000:0c:00.0/vram0", "drm/0000:1c:00.0/vram0")
# The runtime's cgroups, of version 1 or 2.
_HIERARCHIES: Final = (Path("/sys/fs/cgroup/pids/kubepods"), Path("/sys/fs/cgroup/kubepods"))
_TELL: Final = (
    'trap "exit 0" TERM; f=/seen/$POD_UID.$NAME.$$.$(cat /proc/uptime | tr -c "0-9" "_"); '
    "{ for d in /dev/nvidia* /dev/kfd /dev/dri/*; do "
    '[ -c $d ] && stat -c "device %n %t:%T" $d; done; '
    'for v in $(env); do echo "env $v"; done; cat /proc/self/cgroup; '
    "} >$f.new 2>&1; mv $f.new $f.seen; sleep 3600 & wait"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BothNode:
    """A node with two AMD cards and one of NVIDIA's."""

    node: RealNode
    tree: AmdgpuTree
    cgroups: DmemTree
    nvidia: CardUuid
    port: int

    async def metrics(self) -> dict[str, dict[tuple[str, str], float]]:
        """Return the agent's metrics by name, and by pod and card."""
        try:
            async with (
                ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}/metrics") as response,
            ):
                text = await response.text()
        except ClientError:
            return {}
        found: dict[str, dict[tuple[str, str], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.labels.get("pod", ""), sample.labels.get("UUID", ""))
                found.setdefault(sample.name, {})[key] = sample.value
        return found


@asynccontextmanager
async def a_node_of_both(library: Path) -> AsyncIterator[BothNode]:
    parts: dict[str, Any] = {}
    (port,) = free_ports(1)
    minors = itertools.count(1)
    variables: dict[str, str] = {"LD_LIBRARY_PATH": str(library.parent)}
    values = {"driver": "580.65.06", "cards": 1, **a_card(0)}

    def make_device(file: Path) -> None:
        os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(240, next(minors)))

    def lay_out(root: Path) -> Mapping[str, str]:
        tree = AmdgpuTree(root / "tree", make_device=make_device)
        for index in range(2):
            tree.card(index, mib=16_384, used_mib=283, compute_units=60)
        tree.nvidia()
        for name in ("nvidia0", "nvidiactl"):
            make_device(tree.dev / name)
        (root / "cgroup").mkdir()
        parts["tree"] = tree
        parts["cgroups"] = DmemTree(root / "cgroup", regions=REGIONS)
        write_values(root / "nvml", values)
        variables["NVML_STANDIN"] = str(root / "nvml")
        return {
            "cards": "auto",
            "limits": "auto",
            "sys-root": str(tree.sys),
            "proc-root": str(tree.proc),
            "dev-root": str(tree.dev),
            "cgroup-root": str(root / "cgroup"),
            "collect-period-s": "1",
            "telemetry-port": str(port),
        }

    async with (
        a_real_node(cards=some_cards("real-1", count=1), env=variables, lay_out=lay_out) as node,
        asyncio.TaskGroup() as group,
    ):
        both = BothNode(node=node, **parts, nvidia=CardUuid(str(values["0.uuid"])), port=port)
        following = group.create_task(follow_cgroups(both.cgroups))
        # 16384 - 283 and 24576 - 500, in whole share granules.
        await node.wait_counted(slots=3 * 32, mib=2 * 16_080 + 24_000)
        yield both
        following.cancel()


async def follow_cgroups(tree: DmemTree) -> None:
    """Keep a cgroup with the files of dmem for each that the runtime has made.

    A container whose cgroup is found too late is refused, and kubelet makes another one.
    """
    while True:
        for top in _HIERARCHIES:
            for folder, _, _ in os.walk(top):
                with suppress(OSError):
                    tree.make(f"/{Path(folder).relative_to(top.parent)}")
        await asyncio.sleep(0.005)


def telling(name: str, *, mib: int, slots: int = 1) -> Json:
    return a_container(name, mib=mib, slots=slots) | {"command": ["/bin/sh", "-c", _TELL]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    devices: frozenset[str]
    env: Mapping[str, str]
    cgroup: str


def seen(both: BothNode, pod: Json, container: str) -> Seen:
    """Return what the last start of a container saw."""
    file = sorted(both.node.reports.glob(f"{pod['metadata']['uid']}.{container}.*.seen"))[-1]
    lines = file.read_text().splitlines()
    own = [line.rpartition(":")[2] for line in lines if ":pids:" in line or line.startswith("0::")]
    pairs = (line.removeprefix("env ").partition("=") for line in lines if line.startswith("env "))
    return Seen(
        devices=frozenset(line.split()[1] for line in lines if line.startswith("device ")),
        env={key: value for key, _, value in pairs},
        cgroup=next(path for path in own if "kubepods" in path),
    )


def numbers(both: BothNode, path: str) -> str:
    found = (both.tree.dev / path.removeprefix("/dev/")).stat().st_rdev
    return f"{os.major(found):x}:{os.minor(found):x}"


async def test_each_container_gets_its_vendors_card_its_limit_and_its_own_use(
    tmp_path: Path,
) -> None:
    library = build(tmp_path)
    async with a_node_of_both(library) as both:
        node = both.node
        pods = []
        for assigned in (
            {"train": [(SECOND, 700)]},
            {"train": [(FIRST, 300), (SECOND, 300)]},
            {"train": [(both.nvidia, 500)]},
        ):
            slots, mib = len(assigned["train"]), assigned["train"][0][1]
            body = a_real_pod([telling("train", mib=mib, slots=slots)], reports=node.reports)
            if slots > 1:
                body["metadata"]["annotations"] = {names.ISOLATION: "none"}
            pod = await node.create(body)
            await node.bind(pod, **assigned)
            pods.append(pod)
        await node.wait_running([pod["metadata"]["uid"] for pod in pods])
        one, two, nvidia = (seen(both, pod, "train") for pod in pods)

        assert one.devices == {"/dev/kfd", "/dev/dri/renderD129"}
        assert two.devices == {"/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"}
        assert nvidia.devices == {"/dev/nvidia0", "/dev/nvidiactl"}
        text = next(node.reports.glob(f"{pods[0]['metadata']['uid']}.train.*.seen")).read_text()
        assert f"/dev/dri/renderD129 {numbers(both, '/dev/dri/renderD129')}\n" in text
        visible = [each.env[names.ENV_VISIBLE_DEVICES] for each in (one, two, nvidia)]
        assert visible == ["void", "void", both.nvidia]

        # The kernel's limit is on the container's own cgroup.
        limits = (both.cgroups.root / one.cgroup.lstrip("/") / "dmem.max").read_text()
        assert f"{REGIONS[1]} {700 * MIB}\n" in limits
        said = [event for event in node.log_events() if event["event"] == "limits_stand"]
        assert {(tuple(event["cards"]), tuple(event["mib"])) for event in said} == {
            ((SECOND,), (700,)),
        }

        await check_use(both, pods, one, two)
        notes = (await node.node())["metadata"]["annotations"]
        listed = json.loads(notes[names.NODE_CARDS])["cards"]
        assert {card["uuid"] for card in listed} == {FIRST, SECOND, both.nvidia}
        await node.delete(pods)
        await node.wait_gone(pods)


async def check_use(both: BothNode, pods: list[Json], one: Seen, two: Seen) -> None:
    """Check that what the kernel says of two processes is what the pods of their cgroups use."""
    both.tree.process(77, open_card(1, client=1, mib=512), kfd=True, cgroup=one.cgroup)
    both.tree.process(
        78,
        open_card(0, client=2, mib=128, gfx_ns=0),
        open_card(1, client=3, mib=64, gfx_ns=0),
        cgroup=two.cgroup,
    )
    both.cgroups.use(one.cgroup, REGIONS[1], 520)
    names_of = [pod["metadata"]["name"] for pod in pods]
    wanted = {
        (names_of[0], SECOND): 520.0,  # by the kernel's count, where it limits
        (names_of[1], FIRST): 128.0,
        (names_of[1], SECOND): 64.0,
        (names_of[2], both.nvidia): 0.0,
    }

    both.tree.write(both.tree.sys / "bus/pci/devices/0000:0c:00.0", "gpu_busy_percent", "0")
    # The time of ROCm's programs is in no counter: it is not known, and never 0.
    busy = {(names_of[1], FIRST): 0.0}

    async def attributed() -> bool:
        found = await both.metrics()
        return (
            found.get("fracgpu_pod_gpu_memory_used_mib") == wanted
            and found.get(names.METRIC_POD_BUSY) == busy
        )

    await until(attributed, what="each pod's use is counted", limit_s=60)
    found = await both.metrics()
    assert found["fracgpu_deviceplugin_attribution_degraded"]["", SECOND] == 1
    assert found["fracgpu_unattributed_processes"]["", SECOND] == 0
