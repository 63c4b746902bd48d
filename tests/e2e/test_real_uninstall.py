"""Installed, used and uninstalled: a real cluster is as it was before, object by object."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fracgpu import names
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NAMESPACES, NODES
from simulator.demo.service_accounts import token_of, write_kubeconfig
from tests.support.documented import documented, run
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.node import Node, a_node
from tests.support.real_apiserver import real_api_server
from tests.support.snapshot import Snapshot, differences, snapshot, wait_for_controllers
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SHARE = {"metadata": {"labels": {names.SHARE_LABEL: "true"}}}
NO_SHARE = {"metadata": {"labels": {names.SHARE_LABEL: None}}}


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


async def end_with_the_label(node: Node) -> None:
    """Stop the agent, as the DaemonSet controller does, when its node has lost the label."""

    async def unlabelled() -> bool:
        body = await node.client.get_object(NODES, node.name)
        return names.SHARE_LABEL not in body["metadata"].get("labels", {})

    await until(unlabelled, what="the label is taken away", limit_s=120)
    await node.stop_agent()


async def with_kubectl(kubectl: Kubectl) -> None:
    await kubectl("apply", "-k", str(DEPLOY))


async def with_helm(kubectl: Kubectl) -> None:
    install, _ = documented("docs/install.md", "helm-install")
    await run(without_wait(install), kubeconfig=kubectl.kubeconfig)


def without_wait(install: str) -> str:
    """Return the command for a cluster in which no kubelet makes pods ready."""
    assert install.count(" --wait ") == 1
    return install.replace(" --wait ", " ")


@pytest.mark.parametrize("install", [with_kubectl, with_helm])
async def test_installed_used_and_uninstalled_a_cluster_is_as_before_object_by_object(
    install: Callable[[Kubectl], Awaitable[None]], tmp_path: Path
) -> None:
    async with real_api_server(tmp_path) as api:
        admin = api.kubeconfig(tmp_path / "kubeconfig")
        kubectl = Kubectl.find(admin)
        await api.start_controller_manager()
        async with (
            connect(str(admin)) as client,
            a_node(client, tmp_path / "agent.kubeconfig", agent=False) as node,
        ):
            await client.patch(NODES, node.name, NO_SHARE)
            await wait_for_controllers(client)
            before = await settled(client)

            await install(kubectl)
            await client.patch(NODES, node.name, SHARE)
            token = await token_of(client, "deviceplugin", node=node.name)
            write_kubeconfig(node.kubeconfig, server=api.url, token=token, ca_file=api.ca_file)
            node.start_agent()
            await node.wait_counted()
            out = {"metadata": {"annotations": {names.NODE_OUT_OF_SERVICE: node.uuid(1)}}}
            await client.patch(NODES, node.name, out)

            code, said = await uninstall(admin, "--dry-run")
            assert code == 0, said
            assert "MutatingWebhookConfiguration fracgpu-webhook" in said
            assert "nothing was changed" in said
            assert differences(before, await snapshot(client)) != []

            # No webhook answers here: its failurePolicy Fail must not block anything either.
            async with asyncio.TaskGroup() as group:
                group.create_task(end_with_the_label(node))
                code, said = await uninstall(admin, "--yes", "--wait-s", "60")
            assert names.SYSTEM_NAMESPACE not in {
                key.rpartition("/")[2] for key in before if NAMESPACES.plural in key
            }

            left = differences(before, await settled(client))
            # kubelet keeps the slots of a device plugin that has gone for five minutes.
            assert [key for key in left if names.GPU_SLOT not in key] == [], said
            assert code == (1 if left else 0), said
            with contextlib.suppress(StopIteration):
                assert "gpu-mem" not in next(iter(left))


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
