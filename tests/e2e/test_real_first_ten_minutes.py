"""Installed, used, watched, upgraded, uninstalled as documented: on real parts, and timed.

The control plane, kubelet and containerd are real, the cards simulated; each role is a pod of our
image under its own account. Afterwards the cluster is as before, object by object.
"""

import asyncio
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.cards.node_marks import marks_of
from fracgpu.state.allocation import read_assignment
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import EVENTS, LEASES, PODS
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.envtest.prometheus import RealPrometheus
from tests.e2e.test_real_chart import next_chart
from tests.support.dashboards import ALL, Answers, queries
from tests.support.documented import documented, documented_file, run
from tests.support.gpu import a_workload
from tests.support.helm import ROOT, helm, helm_or_skip
from tests.support.monitoring import a_prometheus
from tests.support.real_cluster import (
    AGENT,
    NODE,
    ROLES,
    SYSTEM,
    RealCluster,
    a_cluster_with_our_images,
    a_long_half,
    wait_counted,
)
from tests.support.snapshot import Snapshot, differences, snapshot, wait_for_controllers
from tests.support.timed import Steps
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

Json = dict[str, Any]

GUIDE: Final = "docs/install.md"
# As in overlays/simulated-cards.
ALL_MIB: Final = 2 * 40_960
PUSHED: Final = "registry.example.com/team/fracgpu"
SHIPPED: Final = "0.1.0"
NEXT: Final = "0.2.0"
# Pods created during an upgrade; together they fit on the cards.
MOST_DURING: Final = 20
SMALL: Final = "0.05"
# kubelet gives up the slots after five minutes.
UNINSTALL_LIMIT_S: Final = 900.0
_REFUSED: Final = re.compile(r"answered 403|permission denied|forbidden|read-only file", re.I)

# What has no answer in the first minutes, on whichever dashboard, by the reason.
NO_DATA_YET: Final = {
    "no card has been hot": (
        "Heat: cards that are not cool", "Decision: why no pod was moved",
        "Effect: cards that were relieved", "Time until a hot card was relieved",
    ),
    "no card is kept from new pods": ("Decision: cards that new pods are kept off",),
    "no pod has been moved": (
        "annotation Moves that ended", "Effect: moves that ended", "Pods unavailable",
        "Time in each phase",
    ),
    "no card has been more than 5 % busy": ("fracgpu-card: Attributed to pods",),
    "no card has had an error": ("fracgpu-card: XID errors since the agent started",),
    "the simulated cards are older than Hopper": ("fracgpu-card: Active",),
    "driver and kernel limit no container": ("fracgpu-pod: Pods E", "fracgpu-pod: Pods F"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to install: the commands of the guide."""

    install: Sequence[str]
    upgrade: Sequence[str]
    uninstall: Sequence[str]


def with_helm(folder: Path) -> Way:
    install, label = documented(GUIDE, "helm-install")
    (upgrade,) = documented(GUIDE, "helm-upgrade")
    versions = (f"--version={NEXT}", f"--app-version={NEXT}")
    packed = helm("package", str(next_chart(folder)), *versions, f"--destination={folder}")
    assert packed.ok, packed.error
    return Way(
        install=[f"{install} --set simulatedCards.enabled=true", label],
        upgrade=[upgrade.replace("charts/fracgpu", str(folder / f"fracgpu-{NEXT}.tgz"))],
        uninstall=documented(GUIDE, "helm-uninstall"),
    )


def with_kustomize(folder: Path) -> Way:
    for part in ("deploy", "overlays"):
        shutil.copytree(ROOT / part, folder / "next" / part)
    crd = folder / "next" / "deploy" / "crds" / "moves.yaml"
    assert "name: Age" in crd.read_text()
    crd.write_text(crd.read_text().replace("name: Age", "name: Since"))
    now = an_overlay(folder / "ours", base=ROOT, version=SHIPPED)
    later = an_overlay(folder / "ours-next", base=folder / "next", version=NEXT)
    return Way(
        install=filled(documented(GUIDE, "kustomize-install"), now),
        upgrade=filled(documented(GUIDE, "kustomize-upgrade"), later),
        uninstall=documented(GUIDE, "kustomize-uninstall"),
    )


def an_overlay(folder: Path, *, base: Path, version: str) -> Path:
    """Write the overlay of the guide, for nodes without cards."""
    folder.mkdir()
    text = documented_file(GUIDE, "kustomization.yaml")
    cards = os.path.relpath(base / "overlays" / "simulated-cards", folder)
    assert text.count("[../deploy]") == 1
    assert text.count(f"newTag: {SHIPPED}}}") == 1
    text = text.replace("[../deploy]", f"[{cards}]")
    text = text.replace(f"newTag: {SHIPPED}", f"newTag: {version}")
    (folder / "kustomization.yaml").write_text(text)
    return folder


def filled(commands: Sequence[str], folder: Path) -> list[str]:
    return [command.replace("FOLDER", str(folder)) for command in commands]


def a_pod(name: str, *, fraction: str) -> Json:
    body = a_long_half()
    body["metadata"] |= {"name": name, "annotations": {names.FRACTION: fraction}}
    return body


async def complaints(cluster: RealCluster) -> list[str]:
    """Return which container of ours was restarted, and which requests were refused."""
    found = []
    for pod in await cluster.pods(SYSTEM):
        name = pod["metadata"]["name"]
        found += [
            f"{name}: {status['name']} was started again: {status['lastState']}"
            for status in pod["status"]["containerStatuses"]
            if status["restartCount"]
        ]
        for container, text in cluster.logs(SYSTEM, name).items():
            lines = [line for line in text.splitlines() if _REFUSED.search(line)]
            found += [f"{name}: {container}: {line}" for line in lines]
    return found


async def settled(client: KubeClient) -> Snapshot:
    """Return a snapshot once the cluster's own controllers have settled."""
    last: Snapshot = {}

    async def at_rest() -> bool:
        nonlocal last
        before, last = last, await snapshot(client)
        return bool(before) and not differences(before, last)

    await until(at_rest, what="the cluster is at rest", limit_s=60)
    return last


def files(cluster: RealCluster) -> list[str]:
    """Return our files on the node."""
    ours = [
        *(cluster.mounts.path("/var/run/cdi")).glob("fracgpu*"),
        *(cluster.mounts.path("/var/lib/kubelet/device-plugins")).glob("fracgpu*"),
        *(cluster.mounts.path("/var/lib/fracgpu")).rglob("*"),
        *(cluster.mounts.path("/run/fracgpu")).rglob("*"),
    ]
    return sorted(str(path) for path in ours if not path.is_dir())


async def ready_cluster(cluster: RealCluster) -> None:
    async def node_has_its_lease() -> bool:
        try:
            return bool(await cluster.client.get(LEASES, NODE, namespace="kube-node-lease"))
        except NotFound:
            return False

    await wait_for_controllers(cluster.client)
    await until(node_has_its_lease, what="kubelet has made its own Lease", limit_s=90)
    for version in (SHIPPED, NEXT):
        ours = f"docker.io/library/fracgpu:{SHIPPED}"
        cluster.name_image(ours, f"{PUSHED}:{version}")


async def wait_ready(cluster: RealCluster) -> None:
    for what in (*ROLES, AGENT):
        await cluster.wait_ready(what, namespace=SYSTEM)


async def install(cluster: RealCluster, way: Way, steps: Steps) -> None:
    command, label = way.install
    with steps.step(command.partition(" --")[0]):
        await run(command, kubeconfig=cluster.kubectl.kubeconfig)
    await run(label, kubeconfig=cluster.kubectl.kubeconfig, words={"NAME": NODE})
    with steps.step("then until every role is ready"):
        await wait_ready(cluster)
    with steps.step("then until kubelet counts the cards"):
        await wait_counted(cluster, mib=ALL_MIB)


async def first_pod(cluster: RealCluster, steps: Steps) -> Json:
    """Run half a card, and check that its container has the card that it was assigned."""
    with steps.step("first pod with a share, from kubectl apply to Running"):
        await cluster.kubectl("apply", "-f", "-", stdin=a_pod("half", fraction="0.5"))
        pod = await cluster.wait_pod("half")
    ((assigned,),) = read_assignment(pod["metadata"]["annotations"][names.ASSIGNMENT]).values()
    variables = await cluster.kubectl("exec", "half", "--", "env")
    assert f"{names.ENV_VISIBLE_DEVICES}={assigned.card}\n" in variables
    assert f"{names.ENV_MEM_MIB}={ALL_MIB // 4}\n" in variables
    devices = await cluster.kubectl("exec", "half", "--", "sh", "-c", "echo /dev/nvidia*")
    assert devices.split() == [f"/dev/nvidia{assigned.card.rpartition('-')[2]}"]
    return pod


async def check_dashboards(
    cluster: RealCluster, prometheus: RealPrometheus, began_s: float, steps: Steps
) -> None:
    """Wait until every pod of ours is scraped and every query answered that can be yet."""
    answers, waiting = Answers(prometheus.get, began_s), queries()
    assert len(waiting) > 100
    empty = [title for titles in NO_DATA_YET.values() for title in titles]

    def unanswered() -> list[str]:
        panels = [asked.panel for asked in waiting]
        return [panel for panel in panels if not any(title in panel for title in empty)]

    async def answered() -> bool:
        waiting[:] = await answers.empty(waiting, ALL)
        return not unanswered()

    with steps.step("then until Prometheus answers the dashboards' queries"):
        await until(
            lambda: every_pod_is_scraped(cluster, prometheus),
            what="Prometheus scrapes each pod of ours",
            limit_s=90,
        )
        # Rates need something that happens between two scrapes.
        await cluster.kubectl("apply", "-f", "-", stdin=a_pod("second", fraction=SMALL))
        with suppress(AssertionError):  # the comparison says which
            await until(answered, what="every query is answered", limit_s=120)
    assert unanswered() == []

    groups = (await prometheus.get("/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 40
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []


async def every_pod_is_scraped(cluster: RealCluster, prometheus: RealPrometheus) -> bool:
    """Report whether Prometheus scrapes what the pods' annotations name, and nothing else."""
    found = (await prometheus.get("/api/v1/targets?state=active"))["data"]["activeTargets"]
    up = [target["labels"]["instance"] for target in found if target["health"] == "up"]
    named = [
        f"{pod['status'].get('podIP')}:{pod['metadata']['annotations']['prometheus.io/port']}"
        for pod in await cluster.pods(SYSTEM)
    ]
    return len(up) == len(found) and sorted(up) == sorted(named)


def a_replica_set(name: str) -> Json:
    """Return an owner of one small pod: kubelet may fail a pod while its node has no agent."""
    return a_workload("ReplicaSet", name, a_pod(name, fraction=SMALL), replicas=1)


async def keep_placing(cluster: RealCluster, done: asyncio.Event) -> list[float]:
    """Create one owner of a pod after the other; return the seconds until each had one Running."""
    took: list[float] = []
    while not done.is_set() and len(took) < MOST_DURING:
        name, began_s = f"during-{len(took)}", time.monotonic()
        await cluster.kubectl("apply", "-f", "-", stdin=a_replica_set(name))

        async def running(app: str = name) -> bool:
            pods = await cluster.client.list(PODS, namespace="default", label_selector=f"app={app}")
            phases = [decode_object(raw)["status"].get("phase") for raw in pods.items]
            return "Running" in phases

        await until(running, what=f"a pod of {name} runs", limit_s=240)
        took.append(time.monotonic() - began_s)
    return took


async def upgrade(cluster: RealCluster, way: Way, steps: Steps) -> None:
    """Upgrade to the next version while pods are created."""
    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        placing = group.create_task(keep_placing(cluster, done))
        (command,) = way.upgrade
        with steps.step("upgrade, from the command until every role's new pods are ready"):
            await run(command, kubeconfig=cluster.kubectl.kubeconfig)
            await wait_ready(cluster)
        done.set()
    took = placing.result()
    assert took
    steps.tell(f"longest of {len(took)} pods created meanwhile, until it ran", max(took))

    async def no_old_pod_is_left() -> bool:
        specs = [pod["spec"] for pod in await cluster.pods(SYSTEM)]
        images = {container["image"] for spec in specs for container in spec["containers"]}
        return {image for image in images if "fracgpu" in image} == {f"{PUSHED}:{NEXT}"}

    await until(no_old_pod_is_left, what="every pod of ours has the new image", limit_s=90)
    assert "name: Since" in await cluster.kubectl("get", "crd", "moves.fracgpu.io", "-o", "yaml")


async def users_pods(cluster: RealCluster) -> dict[str, str]:
    """Return the uid of each pod of users; each runs, and none was started again."""

    async def all_run() -> bool:
        pods = await cluster.pods("default")
        return {pod["status"].get("phase") for pod in pods} == {"Running"}

    # Of a pod that kubelet failed the node's agent removes what is left.
    await until(all_run, what="nothing but running pods is there", limit_s=120)
    found = {}
    for pod in await cluster.pods("default"):
        assert pod["status"]["phase"] == "Running", pod
        assert [status["restartCount"] for status in pod["status"]["containerStatuses"]] == [0]
        assert names.ASSIGNMENT in pod["metadata"]["annotations"]
        found[pod["metadata"]["name"]] = pod["metadata"]["uid"]
    return found


async def stop_sharing_and_start_again(cluster: RealCluster) -> None:
    """Take the node's label away, wait until its agent has cleaned up, and set the label again."""
    await cluster.kubectl("label", "node", NODE, f"{names.SHARE_LABEL}-")

    async def clean() -> bool:
        agents = await cluster.pods(SYSTEM, app="fracgpu-deviceplugin")
        return not agents and not marks_of(await cluster.node())

    await until(clean, what="the agent has cleaned up and ended", limit_s=90)
    events = [decode_object(raw) for raw in (await cluster.client.list(EVENTS)).items]
    (message,) = [event["message"] for event in events if event["reason"] == "SharingEnded"]
    # It names the first ten, and a slow upgrade leaves more pods than that.
    assert "default/after" in message
    await cluster.kubectl("label", "node", NODE, f"{names.SHARE_LABEL}=true")
    await wait_counted(cluster, mib=ALL_MIB)


async def uninstall(cluster: RealCluster, way: Way, steps: Steps) -> str:
    """Run the commands of the guide; return what they said."""
    said = []
    for command in way.uninstall:
        with steps.step(command.partition(" --")[0]):
            admin = cluster.kubectl.kubeconfig
            said.append(await run(command, kubeconfig=admin, limit_s=UNINSTALL_LIMIT_S))
    return "".join(said)


async def delete_users_pods(cluster: RealCluster) -> None:
    await cluster.kubectl(
        "delete", "replicasets,pods", "--all", "--namespace=default", "--wait=false"
    )

    async def gone() -> bool:
        return not await cluster.pods("default")

    await until(gone, what="the users' pods are gone", limit_s=120)


@pytest.mark.parametrize("means", [with_helm, with_kustomize])
async def test_installed_used_watched_upgraded_and_uninstalled_the_cluster_is_as_before(
    means: Callable[[Path], Way], tmp_path: Path
) -> None:
    helm_or_skip()
    way, steps = means(tmp_path), Steps(means.__name__)
    async with (
        a_cluster_with_our_images(tmp_path) as cluster,
        a_prometheus(cluster) as prometheus,
    ):
        await ready_cluster(cluster)
        before, files_before = await settled(cluster.client), files(cluster)
        began_s = SystemClock().now().timestamp()
        with steps.step("all of it, from the first command to the first pod Running"):
            await install(cluster, way, steps)
            first = await first_pod(cluster, steps)
        await check_dashboards(cluster, prometheus, began_s, steps)

        await upgrade(cluster, way, steps)
        await cluster.kubectl("apply", "-f", "-", stdin=a_pod("after", fraction=SMALL))
        await cluster.wait_pod("after")
        running = await users_pods(cluster)
        assert running["half"] == first["metadata"]["uid"]
        assert {"half", "second", "after"} <= running.keys()
        assert await complaints(cluster) == []
        await stop_sharing_and_start_again(cluster)

        said = await uninstall(cluster, way, steps)

        assert "no agent cleaned up" not in said
        # What runs keeps running, with its card.
        assert await users_pods(cluster) == running
        await delete_users_pods(cluster)
        assert files(cluster) == files_before
        assert differences(before, await settled(cluster.client)) == [], said
