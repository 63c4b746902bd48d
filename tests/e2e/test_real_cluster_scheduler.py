"""The cluster's own kube-scheduler places card by card: there, through a new authority, and back.

The steps are those of docs/scheduler.md. The static pod is a process with the command of kubeadm's
manifest; it is started again whenever it ends, as kubelet does.
"""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fracgpu import names
from kube.kinds import DAEMONSETS, DEPLOYMENTS, PODS
from simulator.envtest.ports import free_ports
from tests.support.documented import documented, run
from tests.support.gpu import a_gpu_pod
from tests.support.kubectl import DEPLOY
from tests.support.processes import Child
from tests.support.scheduler_pods import (
    SYSTEM,
    TIMEOUT_S,
    Harness,
    apply,
    installed,
    settled,
    users,
    without_webhooks,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(500)]

OVERLAY = DEPLOY.parent / "overlays" / "cluster-scheduler"
GUIDE = "docs/scheduler.md"
AGENT = "fracgpu-kube-scheduler-files"


def kubeadm_manifest() -> dict[str, Any]:
    """Return the essential part of the kube-scheduler.yaml that kubeadm 1.36 writes."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
        "spec": {
            "hostNetwork": True,
            "containers": [
                {
                    "name": "kube-scheduler",
                    "image": "registry.k8s.io/kube-scheduler:v1.36.2",
                    "command": [
                        "kube-scheduler",
                        "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf",
                        "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf",
                        "--bind-address=127.0.0.1",
                        "--kubeconfig=/etc/kubernetes/scheduler.conf",
                        "--leader-elect=true",
                    ],
                    "volumeMounts": [
                        {
                            "name": "kubeconfig",
                            "mountPath": "/etc/kubernetes/scheduler.conf",
                            "readOnly": True,
                        }
                    ],
                }
            ],
            "volumes": [
                {
                    "name": "kubeconfig",
                    "hostPath": {"path": "/etc/kubernetes/scheduler.conf", "type": "FileOrCreate"},
                }
            ],
        },
    }


class StaticPod:
    """Runs kube-scheduler's manifest in place of kubelet."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        self._harness = harness
        self._folder = folder
        self._child: Child | None = None
        self._port = free_ports(1)[0]
        self.starts = 0

    async def take(self, manifest: dict[str, Any]) -> None:
        """Run the command of *manifest* from now on."""
        (container,) = manifest["spec"]["containers"]
        _, *flags = [self._here(word) for word in container["command"]]
        binary = self._harness.api.assets / "kube-scheduler"
        command = [str(binary), *flags, f"--secure-port={self._port}"]
        old, self._child = self._child, None
        if old is not None:
            await old.end()
        self._child = Child(command, log=self._folder / "static-kube-scheduler.log")

    def _here(self, word: str) -> str:
        """Replace the paths of a control-plane node by those of this test."""
        node = str(self._harness.pods.kubelet.node_folder)
        word = word.replace("/etc/fracgpu/kube-scheduler", node)
        return word.replace("/etc/kubernetes", str(self._folder))

    async def hold_up(self) -> None:
        try:
            while True:
                if self._child is not None and not self._child.alive:
                    self.starts += 1
                    await self._child.start()
                await asyncio.sleep(0.2)
        finally:
            if self._child is not None:
                await self._child.end()


@asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[tuple[Harness, StaticPod]]:
    """A cluster whose own kube-scheduler runs as kubeadm has it, with the first step done."""
    async with installed(folder, manifests=OVERLAY / "prepare") as harness:
        # Its identity there is another one, with kube-scheduler's permissions.
        harness.api.kubeconfig(folder / "scheduler.conf")
        static = StaticPod(harness, folder)
        await static.take(kubeadm_manifest())
        async with asyncio.TaskGroup() as group:
            holding = group.create_task(static.hold_up(), name="kubelet")
            try:
                await follow(harness, "prepare", {"FOLDER": str(OVERLAY / "prepare")})
                await without_webhooks(harness.kubectl)
                assert await files_ready(harness)
                yield harness, static
            finally:
                holding.cancel()


async def follow(harness: Harness, block: str, words: Mapping[str, str] | None = None) -> None:
    """Run the commands of the page."""
    for line in documented(GUIDE, block):
        await run(line, kubeconfig=harness.kubeconfig, words=words)


async def patched(harness: Harness, folder: Path) -> dict[str, Any]:
    """Return the manifest as the administrator edits it."""
    manifests = folder / "etc" / "manifests"
    manifests.mkdir(parents=True)
    path = manifests / "kube-scheduler.yaml"
    await asyncio.to_thread(path.write_text, yaml.safe_dump(kubeadm_manifest()))
    own = str(folder).removeprefix("/")
    words = {"etc/kubernetes": f"{own}/etc", "tmp/kube-scheduler": f"{own}/kube-scheduler"}
    await follow(harness, "patch", words)
    manifest: dict[str, Any] = yaml.safe_load(await asyncio.to_thread(path.read_text))
    return manifest


async def containers_of(harness: Harness) -> list[str]:
    found = await harness.client.get_object(DEPLOYMENTS, "fracgpu-scheduler", namespace=SYSTEM)
    return [container["name"] for container in found["spec"]["template"]["spec"]["containers"]]


async def files_ready(harness: Harness) -> bool:
    found = await harness.client.get_object(DAEMONSETS, AGENT, namespace=SYSTEM)
    status = found.get("status", {})
    wanted = ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")
    return [status.get(key) for key in wanted] == [1, 1, 1]


async def placed(harness: Harness, name: str, scheduler: str, **spec: Any) -> dict[str, Any]:
    """Have one pod scheduled; return it with its node."""
    await harness.client.create(PODS, a_gpu_pod(name, mib=1_000, schedulerName=scheduler, **spec))
    found: dict[str, Any] = {}

    async def bound() -> bool:
        found.update(await harness.client.get_object(PODS, name, namespace="default"))
        return bool(found["spec"].get("nodeName"))

    await until(bound, what=f"{name} bound", limit_s=TIMEOUT_S)
    return found


def modes(folder: Path) -> set[str]:
    return {oct(file.stat().st_mode & 0o777) for file in (folder / "current").iterdir()}


async def test_the_clusters_own_scheduler_takes_over_lives_through_a_new_authority_and_goes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    async with a_cluster(tmp_path) as (harness, static):
        # The files first: they change no scheduler.
        assert static.starts == 1
        assert modes(harness.pods.kubelet.node_folder) == {"0o600"}
        await placed_by_ours(harness, "ours-before")

        # Then each control-plane node, then everything else.
        await static.take(await patched(harness, tmp_path))
        await apply(harness.kubectl, OVERLAY)
        await follow(harness, "drop-rights")
        await until(lambda: settled(harness), what="the extenders alone", limit_s=120)
        assert await containers_of(harness) == ["extender"]
        await placed_by_ours(harness, "ours-from-before")  # the name still counts

        async with users(harness.client, scheduler="default-scheduler") as applicants:
            await applicants.until_placed(5)
            starts, agents = static.starts, set(harness.pods.kubelet.started)
            await harness.rotate()
            harness.pods.proxy.service.cut()  # the next call needs a handshake
            await applicants.until_placed(10)
            await applicants.finish()
        assert static.starts == starts + 1
        assert len([name for name in harness.pods.kubelet.started if name.startswith(AGENT)]) >= 2
        assert set(harness.pods.kubelet.started) > agents
        assert applicants.longest_s < TIMEOUT_S
        with capsys.disabled():
            sys.stdout.write(f"\nthe cluster's own, a new authority: {applicants.figures}\n")

        # And back, in the reverse order.
        await apply(harness.kubectl, OVERLAY / "prepare")
        await until(lambda: settled(harness), what="our kube-scheduler again", limit_s=120)
        assert await containers_of(harness) == ["extender", "kube-scheduler"]
        await static.take(kubeadm_manifest())
        await follow(harness, "undo")
        await placed_by_ours(harness, "ours-again")
        plain = await placed(harness, "plain", "default-scheduler", containers=[PLAIN])
        assert names.ASSIGNMENT not in (plain["metadata"].get("annotations") or {})


PLAIN = {"name": "c", "image": "x"}


async def placed_by_ours(harness: Harness, name: str) -> None:
    pod = await placed(harness, name, names.SCHEDULER_NAME)
    assert names.ASSIGNMENT in pod["metadata"]["annotations"]
