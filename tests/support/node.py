"""A whole node for tests: a simulated kubelet, simulated cards, and the real node agent."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession

from deviceplugin.service import build
from deviceplugin.settings import DevicePluginSettings
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.k8s.quantity import integer_amount
from kube.client import KubeClient
from kube.kinds import EVENTS, NODES, PODS, RESOURCE_SLICES
from kube.objects import decode_object
from process.clock import SystemClock
from process.lifecycle import Service, run_until_stopped
from process.telemetry import HttpServer
from simulator.cards.simulated_cards import cards_document, open_cards, write_cards_file
from simulator.kubelet.kubelet import Kubelet, KubeletConfig, KubeletFolders
from simulator.kubelet.pod_worker import PodTiming
from tests.support.gpu import a_binding, a_gpu_pod, some_cards
from tests.support.waiting import until

Json = dict[str, Any]

QUICK = PodTiming(
    start_delay_s=0.02,
    init_run_s=0.02,
    grace_s=0.02,
    backoff_s=0.05,
    longest_backoff_s=0.2,
    prepare_again_s=0.2,
)


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder whose path is short enough for sockets; pytest's own is too long."""
    folder = Path(tempfile.mkdtemp(prefix="fg-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def messages(client: KubeClient, pod: Json) -> list[str]:
    """Return the messages of the Events on a pod."""
    events = await client.list(EVENTS, namespace=pod["metadata"]["namespace"])
    found = [decode_object(raw) for raw in events.items]
    uid = pod["metadata"]["uid"]
    return [event["message"] for event in found if event["involvedObject"].get("uid") == uid]


async def until_an_event_says(
    client: KubeClient, pod: Json, text: str, *, limit_s: float = 60
) -> None:
    """Wait until an Event on a pod says *text*; say which there are if none does."""
    found: list[str] = []

    async def said() -> bool:
        found[:] = await messages(client, pod)
        return any(text in message for message in found)

    try:
        what = f"an event on {pod['metadata']['name']} says {text!r}"
        await until(said, what=what, limit_s=limit_s)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None


@dataclass(slots=True, kw_only=True)
class Node:
    """A node under test.

    Attributes:
        kubelet: the simulated kubelet, running.
        cards: the cards in it.
    """

    name: str
    root: Path
    client: KubeClient
    kubeconfig: Path
    kubelet: Kubelet
    cards: tuple[Card, ...]
    group: asyncio.TaskGroup
    options: Mapping[str, Any] = field(default_factory=dict)
    drain_wait_s: float = 0.0
    agent: "asyncio.Task[int] | None" = None
    service: Service | None = None
    stopping: asyncio.Event | None = None

    @property
    def folders(self) -> KubeletFolders:
        return KubeletFolders.under(self.root)

    @property
    def cards_file(self) -> Path:
        return self.root / "cards.json"

    def start_agent(self) -> None:
        """Start the node agent, without state of an earlier one."""
        settings = DevicePluginSettings(
            kubeconfig=str(self.kubeconfig),
            node_name=self.name,
            cards=f"simulated:{self.cards_file}",
            telemetry_host="127.0.0.1",
            telemetry_port=0,
            drain_wait_s=self.drain_wait_s,
            drain_timeout_s=0.5,
            device_plugins_dir=self.folders.device_plugins,
            plugins_dir=self.folders.plugins,
            plugins_registry_dir=self.folders.plugins_registry,
            pod_resources_socket=self.folders.pod_resources_socket,
            cdi_dir=self.folders.cdi,
            vendor_cdi_dirs=(str(self.folders.cdi),),
            injection="cdi",
            nri_socket=self.folders.nri_socket,
            host_dir=self.folders.host,
            audit_period_s=0.5,
            proc_root=self.folders.proc,
            survey_period_s=0.2,
            collect_period_s=0.2,
            kubelet_poll_s=0.1,
            **self.options,
        )
        self.service = build(settings, open_cards(self.cards_file))
        self.stopping = asyncio.Event()
        self.agent = self.group.create_task(
            run_until_stopped(self.service, SystemClock(), stop=self.stopping), name="node_agent"
        )

    async def kill_agent(self) -> None:
        """End the agent without letting it clean up its files."""
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.cancel()
            await asyncio.wait({agent})

    async def stop_agent(self) -> None:
        """Stop the agent as Kubernetes stops a pod, and wait for its end."""
        agent, self.agent = self.agent, None
        if agent is not None and self.stopping is not None:
            self.stopping.set()
            await asyncio.wait({agent})

    async def scrape(self, path: str = "/metrics") -> tuple[int, str]:
        """GET a path of the agent's own telemetry; status 0 while it does not answer."""
        server = self.service.telemetry if self.service is not None else None
        assert isinstance(server, HttpServer)
        try:
            async with ClientSession() as session:
                url = f"http://127.0.0.1:{server.port}{path}"
                async with session.get(url) as response:
                    return response.status, await response.text()
        except ClientError:
            return 0, ""

    async def wait_message(self, pod: Json, text: str) -> None:
        await until_an_event_says(self.client, pod, text)

    def cards_of(self, pod: Json, container: str = "train") -> tuple[str, ...]:
        """Return the cards that a container really sees."""
        return self.kubelet.cards_of(pod["metadata"]["uid"]).get(container, ())

    def write_cards(self, cards: Sequence[Card]) -> None:
        """Change the node's cards."""
        write_cards_file(self.cards_file, cards_document(cards))

    async def wait_counted(self) -> None:
        """Wait until the scheduler can use the node."""
        per_card = self.options.get("slots_per_card", 32)
        wanted = (per_card * len(self.cards), sum(card.capacity_mib for card in self.cards))

        async def counted() -> bool:
            node = await self.client.get_object(NODES, self.name)
            allocatable = node.get("status", {}).get("allocatable", {})
            amounts = [
                allocatable.get(resource, "") for resource in (names.GPU_SLOT, names.GPU_MEM)
            ]
            return [integer_amount(amount) for amount in amounts] == list(wanted)

        await until(counted, what=f"{self.name} counts its slots and its memory")

    async def wait_slice(self) -> None:
        """Wait until kube-scheduler knows all cards of the node, with the wiring by claims."""

        async def known() -> bool:
            listed = await self.client.list(
                RESOURCE_SLICES, field_selector=f"spec.nodeName={self.name}"
            )
            devices = [
                device
                for raw in listed.items
                for device in decode_object(bytes(raw))["spec"].get("devices") or ()
            ]
            return len(devices) == len(self.cards)

        await until(known, what=f"{self.name} has a slice with its cards")

    async def bind(self, body: Json, **assigned: Sequence[tuple[int, int]]) -> Json:
        """Create a pod and bind it with an assignment: container=[(card index, MiB), ...]."""
        created = await self.client.create(PODS, body)
        return await self.bind_created(created, **assigned)

    async def bind_created(self, pod: Json, **assigned: Sequence[tuple[int, int]]) -> Json:
        slices = {
            container: [(self.uuid(index), mib) for index, mib in parts]
            for container, parts in assigned.items()
        }
        metadata = pod["metadata"]
        binding = a_binding(pod, self.name, slices)
        await self.client.bind(binding, namespace=metadata["namespace"], name=metadata["name"])
        return pod

    async def run_pod(
        self, name: str, *, card: int, mib: int = 1000, notes: Mapping[str, str] | None = None
    ) -> Json:
        """Bind a pod with one slice on one card."""
        body = a_gpu_pod(name, mib=mib, annotations=notes)
        return await self.bind(body, train=[(card, mib)])

    async def wait_phase(self, pod: Json, phase: str) -> Json:
        """Wait until a pod is in *phase*; return it."""
        found: Json = {}

        async def there() -> bool:
            nonlocal found
            metadata = pod["metadata"]
            found = await self.client.get_object(
                PODS, metadata["name"], namespace=metadata["namespace"]
            )
            return bool(found.get("status", {}).get("phase") == phase)

        await until(there, what=f"{pod['metadata']['name']} is {phase}")
        return found

    def uuid(self, index: int) -> CardUuid:
        return self.cards[index].uuid


@asynccontextmanager
async def a_node(  # noqa: PLR0913 - what a test may set of a node
    client: KubeClient,
    kubeconfig: Path,
    *,
    name: str = "gpu-1",
    cards: Sequence[Card] | None = None,
    agent: bool = True,
    list_ended_pods: bool = False,
    nri: bool = True,
    taints: Sequence[Mapping[str, str]] = (),
    labels: Mapping[str, str] | None = None,
    claims: bool = False,
    drain_wait_s: float = 0.0,
    **options: Any,
) -> AsyncIterator[Node]:
    """Run a node; with *agent* it is also counted before the test goes on.

    With *claims* the ConfigMap says that wiring, and the node has a slice instead.
    """
    here = tuple(some_cards(name) if cards is None else cards)
    with short_folder() as root:
        config = KubeletConfig(
            node=name,
            folders=KubeletFolders.under(root),
            timing=QUICK,
            taints=tuple(taints),
            labels={names.SHARE_LABEL: "true", **(labels or {})},
            list_ended_pods=list_ended_pods,
            nri=nri,
        )
        kubelet = Kubelet(client, SystemClock(), config)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(kubelet.run(), name="kubelet")
            node = Node(
                name=name,
                root=root,
                client=client,
                kubeconfig=kubeconfig,
                kubelet=kubelet,
                cards=here,
                group=group,
                options=options,
                drain_wait_s=drain_wait_s,
            )
            node.write_cards(here)
            try:
                async with asyncio.timeout(60):
                    await kubelet.wait_ready()
                if agent:
                    node.start_agent()
                    await (node.wait_slice() if claims else node.wait_counted())
                yield node
            finally:
                await node.kill_agent()
                running.cancel()
