"""Installed, used and uninstalled: a real cluster is as it was before, object by object."""

import asyncio
import sys
from pathlib import Path

import pytest

from fracgpu import names
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NODES
from simulator.demo.service_accounts import token_of
from simulator.kubeconfig import write_kubeconfig
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.node import a_node
from tests.support.real_apiserver import real_api_server
from tests.support.snapshot import Snapshot, differences, snapshot
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


async def uninstall(kubeconfig: Path, *flags: str) -> tuple[int, str]:
    """Run the command as an administrator; return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "uninstall", "--kubeconfig", str(kubeconfig), *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def settled(client: KubeClient) -> Snapshot:
    """Return a snapshot once the cluster's own controllers have settled."""
    last: Snapshot = {}

    async def at_rest() -> bool:
        nonlocal last
        before, last = last, await snapshot(client)
        return bool(before) and not differences(before, last)

    await until(at_rest, what="the cluster is at rest", limit_s=60)
    return last


def without_wait(install: str) -> str:
    """Return the command for a cluster in which no kubelet makes pods ready."""
    assert install.count(" --wait ") == 1
    return install.replace(" --wait ", " ")


async def test_what_a_dead_agent_left_on_a_node_is_removed_by_an_administrator(
    tmp_path: Path,
) -> None:
    async with real_api_server(tmp_path) as api:
        admin = api.kubeconfig(tmp_path / "kubeconfig")
        kubectl = Kubectl.find(admin)
        async with (
            connect(str(admin)) as client,
            a_node(client, tmp_path / "agent.kubeconfig", agent=False) as node,
        ):
            await kubectl("apply", "-k", str(DEPLOY))
            token = await token_of(client, "deviceplugin", node=node.name)
            write_kubeconfig(node.kubeconfig, server=api.url, token=token, ca_file=api.ca_file)
            node.start_agent()
            await node.wait_counted()
            await node.kill_agent()

            code, said = await uninstall(admin, "--node", node.name, "--yes", "--wait-s", "1")
            assert code == 1
            assert "first: kubectl label node" in said

            await kubectl("label", "node", node.name, f"{names.SHARE_LABEL}-")
            code, said = await uninstall(admin, "--node", node.name, "--yes", "--wait-s", "1")

            body = await client.get_object(NODES, node.name)
            assert [
                annotation
                for annotation in body["metadata"].get("annotations", {})
                if "fracgpu" in annotation
            ] == []
            assert [label for label in body["metadata"]["labels"] if "fracgpu" in label] == []
            assert names.GPU_MEM not in body["status"]["capacity"]
            types = {condition["type"] for condition in body["status"]["conditions"]}
            assert names.SHARING_CONDITION not in types
            assert "/var/run/cdi" in said  # the files of that host
