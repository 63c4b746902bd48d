"""The agent as a process of its own over the stand-in for NVIDIA's library, as a user meets it."""

import os
import re
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest
from aiohttp import ClientError, ClientSession

from fracgpu import names
from fracgpu.cards.annotations import read_cards
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.k8s.quantity import integer_amount
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import NODES
from simulator.apiserver.server import ApiServer
from tests.support.node import Node, a_node
from tests.support.nvml import Values, a_card, write_values
from tests.support.roles import Roles, running_roles
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROLE = "deviceplugin"
SHARED_MIB = 2 * 24_000  # two cards of 24,576 MiB less 500 of the driver, in whole shares


@dataclass(slots=True, kw_only=True)
class Agent:
    """The agent's process, its cards, and what it writes to the cluster."""

    roles: Roles
    file: Path
    values: dict[str, object]
    client: KubeClient
    node: Node

    def say(self, **values: object) -> None:
        self.values.update({key.replace("__", "."): value for key, value in values.items()})
        write_values(self.file, self.values)

    async def health(self) -> list[tuple[Health, str]]:
        body = await self.client.get_object(NODES, self.node.name)
        notes = body["metadata"].get("annotations", {})
        return [
            (card.health, card.health_reason)
            for card in read_cards(notes.get(names.NODE_CARDS, ""))
        ]

    async def memory(self) -> int | None:
        body = await self.client.get_object(NODES, self.node.name)
        return integer_amount(body["status"].get("capacity", {}).get(names.GPU_MEM, ""))

    async def measured(self) -> set[str]:
        """Return the UUIDs of the cards that have metrics in a scrape."""
        pattern = r'DCGM_FI_DEV_GPU_UTIL\{[^}]*UUID="([^"]+)"'
        return set(re.findall(pattern, await self.scrape()))

    async def scrape(self) -> str:
        """Return the text of a scrape; empty if the agent does not answer."""
        url = f"http://127.0.0.1:{self.roles.telemetry[ROLE]}/metrics"
        try:
            async with ClientSession() as session, session.get(url) as response:
                return await response.text()
        except ClientError:
            return ""


@asynccontextmanager
async def an_agent(
    api: ApiServer,
    kube: KubeClient,
    folder: Path,
    library: Path,
    *values: Values,
) -> AsyncIterator[Agent]:
    kubeconfig = api.kubeconfig(folder / "kubeconfig")
    said: dict[str, object] = {"driver": "580.65.06", "cards": 2, **a_card(0), **a_card(1)}
    for part in values:
        said.update(part)
    file = folder / "values"
    write_values(file, said)
    environment = {
        "NVML_STANDIN": str(file),
        "LD_LIBRARY_PATH": str(library.parent),
        "PYTHONPATH": str(Path.cwd()),
    }
    cards = [
        Card(
            uuid=CardUuid(str(said[f"{index}.uuid"])),
            index=index,
            model="A30",
            total_mib=Mib(24_576),
        )
        for index in range(2)
    ]
    async with a_node(kube, kubeconfig, agent=False, cards=cards) as node:
        flags = [
            *("--cards=nvml", f"--node-name={node.name}", "--nvml-timeout-s=2"),
            f"--device-plugins-dir={node.folders.device_plugins}",
            f"--pod-resources-socket={node.folders.pod_resources_socket}",
            *(f"--cdi-dir={node.folders.cdi}", f"--vendor-cdi-dirs={node.folders.cdi}"),
            *(f"--proc-root={node.folders.proc}", f"--dev-root={folder}/dev"),
            *("--injection=cdi", f"--host-dir={node.folders.host}"),
            f"--nri-socket={node.folders.nri_socket}",
            *("--survey-period-s=0.5", "--collect-period-s=0.5", "--drain-timeout-s=0.5"),
        ]
        async with running_roles(
            {ROLE: flags}, kubeconfig=kubeconfig, log_dir=folder, env=environment
        ) as roles:
            agent = Agent(roles=roles, file=file, values=said, client=kube, node=node)

            async def counted() -> bool:
                body = await kube.get_object(NODES, node.name)
                slots = body["status"].get("allocatable", {}).get(names.GPU_SLOT)
                return slots == "64" and await agent.memory() == SHARED_MIB

            await until(counted, what="both cards are offered", limit_s=60)
            yield agent


@pytest.mark.slow
async def test_a_driver_that_hangs_or_was_replaced_ends_the_process_and_the_next_one_knows_it(
    api: ApiServer, kube: KubeClient, tmp_path: Path, nvml_library: Path
) -> None:
    async with an_agent(api, kube, tmp_path, nvml_library) as agent:
        agent.say(hang__nvmlDeviceGetCount_v2=1)

        async def closed() -> bool:
            body = await agent.client.get_object(NODES, agent.node.name)
            health = [state for state, _ in await agent.health()]
            metrics = await agent.scrape()
            return (
                health == [Health.UNHEALTHY] * 2
                and body["status"]["allocatable"].get(names.GPU_SLOT) == "0"
                and await agent.memory() == 0
                and "fracgpu_deviceplugin_last_card_list_success 0.0" in metrics
            )

        await until(
            closed, what="kubelet and the cluster know that no card can be used", limit_s=30
        )
        assert agent.roles.supervisor.starts(ROLE) == 1

        async def ended() -> bool:
            return agent.roles.supervisor.exits()[ROLE][:1] == (1,)

        await until(ended, what="the process has ended", limit_s=60)
        assert "the driver has not answered for" in (tmp_path / f"{ROLE}.log").read_text()
        agent.say(hang__nvmlDeviceGetCount_v2=None)

        async def back() -> bool:
            return await agent.memory() == SHARED_MIB

        await until(back, what="the next process offers the cards", limit_s=60)

        mismatch = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        agent.say(error__nvmlDeviceGetCount_v2=mismatch)

        async def ended_too() -> bool:
            return agent.roles.supervisor.exits()[ROLE] == (1, 1)

        await until(ended_too, what="the next process has ended as well", limit_s=60)
        agent.say(error__nvmlDeviceGetCount_v2=None, driver="590.44.01")

        async def new_driver() -> bool:
            body = await agent.client.get_object(NODES, agent.node.name)
            return bool(body["metadata"]["labels"].get(names.DRIVER_LABEL) == "590.44.01")

        await until(new_driver, what="the process after it reports the new driver", limit_s=60)
        assert "the driver was replaced" in (tmp_path / f"{ROLE}.log").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="device files are made by root")
async def test_a_container_gets_the_drivers_common_device_files_though_they_came_late(
    api: ApiServer, kube: KubeClient, tmp_path: Path, nvml_library: Path
) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    # None of them is in the agent's own /dev, which is as the host's was at its start.
    for name in ("nvidia0", "nvidiactl"):
        os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    async with an_agent(api, kube, tmp_path, nvml_library) as agent:
        node = agent.node
        pod = await node.run_pod("early", card=0)
        await node.wait_phase(pod, "Running")
        uid = pod["metadata"]["uid"]
        first = node.kubelet.created_containers()[uid]["train"].device_nodes
        for name in ("nvidia-uvm", "nvidia-uvm-tools"):
            # The first program that uses a card makes the driver do so.
            os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(1, 5))

        async def given() -> bool:
            await node.kubelet.restart_container(uid, "train")
            return set(node.kubelet.created_containers()[uid]["train"].device_nodes) == {
                *("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
            }

        assert set(first) == {"/dev/nvidia0", "/dev/nvidiactl"}
        await until(given, what="the container has the driver's files", limit_s=60)
