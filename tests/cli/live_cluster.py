"""A live cluster for the tests of commands: one node with two cards on the embedded API server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from cli.commands.cards import watch_fleet
from cli.fleet import Fleet
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import CONFIGMAPS, PODS
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.objects import a_config
from tests.support.waiting import until_true

NODE = "gpu-1"
CARD_MIB = 24_000


async def furnish(client: KubeClient) -> None:
    """Register the node."""
    node = a_sharing_node(NODE, cards=some_cards(NODE, count=2, mib=CARD_MIB))
    # The agent writes the card sizes; pods with granted MiB select nodes by the largest.
    node["metadata"]["labels"][names.CARD_MEMORY_LABEL] = str(CARD_MIB)
    await register(client, node)


async def configure(client: KubeClient, **keys: str) -> None:
    """Create the ConfigMap of the roles with these keys."""
    config = a_config(names.CONFIG_MAP) | {"data": keys}
    await client.create(CONFIGMAPS, config, namespace=names.SYSTEM_NAMESPACE)


async def a_pod(client: KubeClient, name: str, *, mib: int, **options: Any) -> dict[str, Any]:
    """Create a pod as admitted by the webhook."""
    notes: Mapping[str, str] = {
        names.GRANTED: f"train: {mib} MiB on 1 card",
        **options.pop("annotations", {}),
    }
    return await client.create(PODS, a_gpu_pod(name, mib=mib, annotations=notes, **options))


async def bind(client: KubeClient, pod: dict[str, Any], *, card: int, mib: int) -> None:
    """Bind a pod as the extender does, and start it as a kubelet does."""
    uuid = CardUuid(f"GPU-{NODE}-{card}")
    text = write_assignment({"train": (Slice(card=uuid, mib=Mib(mib)),)})
    metadata = pod["metadata"]
    binding = {
        "metadata": {"uid": metadata["uid"], "annotations": {names.ASSIGNMENT: text}},
        "target": {"kind": "Node", "name": NODE},
    }
    await client.bind(binding, namespace=metadata["namespace"], name=metadata["name"])
    status = {"phase": "Running", "startTime": "2026-11-20T11:00:00Z"}
    await client.patch(
        PODS,
        metadata["name"],
        {"status": status},
        namespace=metadata["namespace"],
        subresource="status",
    )


async def call(
    command: Callable[[Sequence[str]], int], api: ApiServer, folder: Path, *words: str
) -> int:
    """Run a command while the API server runs in this process; return its exit code."""
    kubeconfig = api.kubeconfig(folder / "kubeconfig")
    return await asyncio.to_thread(command, [*words, "--kubeconfig", str(kubeconfig)])


@asynccontextmanager
async def watched(kube: KubeClient) -> AsyncIterator[Sequence[Fleet]]:
    """Watch the node's cards; yield what is shown, from the first picture on."""
    shown: list[Fleet] = []
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(
            watch_fleet(kube, SystemClock(), shown.append, node=NODE), name="watch"
        )
        await until_true(lambda: bool(shown), what="the first picture")
        yield shown
        watching.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cli:
    """A terminal beside the live cluster: runs commands, and reads what they print."""

    api: ApiServer
    kube: KubeClient
    folder: Path
    capsys: pytest.CaptureFixture[str]

    async def call(self, command: Callable[[Sequence[str]], int], *words: str) -> int:
        return await call(command, self.api, self.folder, *words)

    def read(self) -> CaptureResult[str]:
        """Return what was printed since the last time."""
        return self.capsys.readouterr()
