"""A delayed Binding never takes a card that the next leader has allocated.

On a real kube-apiserver, with the policies and permissions of deploy/, and extenders as processes
with the token of the scheduler's service account.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import pytest

from fracgpu import names
from fracgpu.state.allocation import write_assignment
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import LEASES, NAMESPACES, PODS
from simulator.envtest.control_plane import ControlPlane
from tests.support.api_gate import ApiGate, Write
from tests.support.core import a_record, on
from tests.support.gpu import Json, a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.replicas import Replica, replica
from tests.support.stalls import stalling_webhook
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SYSTEM = names.SYSTEM_NAMESPACE
LEASE = "fracgpu-scheduler-extender"
CARD_MIB = 24_000
FORBIDDEN: Final = 403
CONFLICT: Final = 409
SOON: Final = ("--lease-duration-s=6", "--bind-timeout-s=1.5")


class HeldUp(NamedTuple):
    """A Binding that its sender has sent; *release* lets it go on, and returns once it failed."""

    sent: asyncio.Event
    release: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A cluster with one card, the policies in force, and no scheduler."""

    api: ControlPlane
    admin: KubeClient
    scheduler: KubeClient
    token: str
    workdir: Path
    http: aiohttp.ClientSession
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def kubeconfig(self, name: str, *, url: str = "") -> Path:
        """Return a kubeconfig of the scheduler's account, for another server address if given."""
        path = self.workdir / f"{name}.kubeconfig"
        text = self.api.kubeconfig(path).read_text()
        text = text.replace(self.api.token, self.token)
        path.write_text(text.replace(self.api.url, url) if url else text)
        return path

    async def leading(self, name: str, *, url: str = "", identity: str = "") -> Replica:
        """Start an extender and wait until it leads and is ready."""
        config = self.kubeconfig(name, url=url)
        opened = replica(name, config, self.workdir, *SOON, identity=identity)
        started = await self.stack.enter_async_context(opened)

        async def leads() -> bool:
            # In this order: a replica that does not lead is ready as well.
            return await self.figure(started, "leader 1.0") and await started.ready()

        await until(leads, what=f"{name} leads", limit_s=90)
        return started

    async def marked(self, name: str) -> int:
        """Return how many pods an extender marked before it answered, which its log says."""
        text = await asyncio.to_thread((self.workdir / f"{name}.log").read_text)
        lines = [json.loads(line) for line in text.splitlines() if "fence_up" in line]
        return sum(int(line["marked"]) for line in lines)

    async def figure(self, extender: Replica, figure: str) -> bool:
        """Report whether a metric of an extender has this value, in Prometheus' text format."""
        url = f"http://127.0.0.1:{extender.telemetry}/metrics"
        try:
            async with self.http.get(url) as answer:
                return f"\nfracgpu_scheduler_{figure}\n" in await answer.text()
        except aiohttp.ClientError:
            return False

    async def create(self, name: str, *, mib: int = 20_000) -> PodInfo:
        await self.admin.create(PODS, a_gpu_pod(name, mib=mib))
        return await self.pod(name)

    async def pod(self, name: str) -> PodInfo:
        return decode_pod_info(await self.admin.get(PODS, name, namespace="default"))

    async def promised_mib(self) -> int:
        """Return the MiB that the pods of the cluster hold of the one card."""
        pods = [decode_pod_info(bytes(raw)) for raw in (await self.admin.list(PODS)).items]
        return sum(
            part.mib
            for pod in pods
            if pod.record.node
            for parts in (pod.record.assignment or {}).values()
            for part in parts
        )

    async def term(self) -> str:
        lease = await self.admin.get_object(LEASES, LEASE, namespace=SYSTEM)
        return f"{lease['metadata']['uid']}/{lease['spec']['leaseTransitions']}"


def order(pod: PodInfo, *, term: str | None, labelled: bool = True) -> Json:
    """Return a Binding of a pod with an assignment, as the extender writes it."""
    notes = {names.ASSIGNMENT: write_assignment(on("GPU-n-0", 20_000, container="train"))}
    metadata: Json = {
        "uid": pod.record.uid,
        "resourceVersion": pod.record.resource_version,
        "annotations": notes | ({} if term is None else {names.TERM: term}),
    }
    metadata |= {"labels": {names.ASSIGNED_LABEL: "true"}} if labelled else {}
    return {"metadata": metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": "n"}}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with (
        real_api_server(tmp_path) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as admin,
        aiohttp.ClientSession() as http,
        AsyncExitStack() as stack,
    ):
        kubectl = Kubectl.find(api.kubeconfig(tmp_path / "admin.kubeconfig"))
        await admin.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
        await register(admin, a_sharing_node("n", cards=some_cards("n", count=1, mib=CARD_MIB)))
        for manifest in ("scheduler.yaml", "policies.yaml", "flowschemas.yaml"):
            await kubectl("apply", "-f", str(DEPLOY / manifest))
        token = (await kubectl("create", "token", "fracgpu-scheduler", f"-n={SYSTEM}")).strip()
        opened = connect_to(api.url, token=token, ca_file=api.ca_file)
        scheduler = await stack.enter_async_context(opened)
        harness = Harness(
            api=api,
            admin=admin,
            scheduler=scheduler,
            token=token,
            workdir=tmp_path,
            http=http,
            stack=stack,
        )
        await until(lambda: in_force(harness), what="the policies in force", limit_s=60)
        yield harness


async def in_force(harness: Harness) -> bool:
    """Report whether the policies refuse already; without a Lease every assignment is refused."""
    binding = {**order(PodInfo(record=a_record("u")), term="x")}
    said = await refusal(harness.scheduler, binding, "no-such-pod")
    return "fracgpu-lease-term" in said


async def refusal(client: KubeClient, binding: Json, name: str) -> str:
    try:
        await client.bind(binding, namespace="default", name=name)
    except KubeError as error:
        return f"{type(error).__name__} {error.message}"
    return ""


async def test_a_binding_of_another_term_is_refused_and_one_without_an_assignment_is_not(
    harness: Harness,
) -> None:
    pod, plain = await harness.create("p"), await harness.create("plain")
    # Without a Lease no assignment is accepted, and every other Binding is.
    said = await refusal(harness.scheduler, order(pod, term="x"), "p")
    assert "no params found" in said
    assert said.startswith("Invalid")  # not 403: what comes before the expressions has no reason
    target = {"target": {"kind": "Node", "name": "n"}}
    await harness.admin.bind(target, namespace="default", name="plain")

    await harness.leading("a")
    term = await harness.term()
    pod = await harness.pod("p")
    for wrong in ("x", f"{term}0", None):
        said = await refusal(harness.scheduler, order(pod, term=wrong), "p")
        assert said.startswith("Forbidden"), wrong
        assert "fracgpu-lease-term" in said
    said = await refusal(harness.scheduler, order(pod, term=term, labelled=False), "p")
    assert "has the label fracgpu.io/assigned=true" in said
    assert "comes only from" in await refusal(harness.admin, order(pod, term=term), "p")
    assert (plain.record.node, (await harness.pod("plain")).record.node) == ("", "n")

    await harness.scheduler.bind(order(pod, term=term), namespace="default", name="p")

    assert (await harness.pod("p")).record.node == "n"


async def answered_bindings(harness: Harness) -> dict[str, int]:
    """Return how many Bindings the API server has answered, by HTTP status."""
    found: dict[str, int] = {}
    for line in (await harness.admin.get_path("/metrics")).decode().splitlines():
        if line.startswith("apiserver_request_total{") and 'subresource="binding"' in line:
            labels, _, count = line.rpartition(" ")
            code = labels.partition('code="')[2][:3]
            found[code] = found.get(code, 0) + int(count)
    return found


async def more(harness: Harness, before: dict[str, int]) -> bool:
    return sum((await answered_bindings(harness)).values()) > sum(before.values())


async def test_the_lease_and_bindings_go_before_the_other_requests_of_the_scheduler(
    harness: Harness,
) -> None:
    await harness.create("first")
    leader = await harness.leading("a")
    assert await leader.bind(harness.http, await harness.pod("first")) == ""

    text = (await harness.admin.get_path("/metrics")).decode()
    dispatched = "apiserver_flowcontrol_dispatched_requests_total"
    for level, schema in (
        ("leader-election", "fracgpu-leases"),
        ("workload-high", "fracgpu-bindings"),
        ("workload-low", "service-accounts"),
    ):
        assert f'{dispatched}{{flow_schema="{schema}",priority_level="{level}"}}' in text


def binding(write: Write) -> bool:
    """Select a Binding."""
    return write.verb == "POST" and write.target.endswith("/binding")


@asynccontextmanager
async def held_up_before_admission(harness: Harness) -> AsyncIterator[tuple[str, HeldUp]]:
    """Yield the URL of an API server that does not get the first Binding until it is released."""
    gate = ApiGate(harness.api.url, ca_file=harness.api.ca_file)
    gate.delay(binding)

    async def release() -> None:
        assert await gate.arrive() in (FORBIDDEN, CONFLICT)

    async with gate.open():
        yield gate.url, HeldUp(gate.sprung, release)


@asynccontextmanager
async def held_up_after_admission(harness: Harness) -> AsyncIterator[tuple[str, HeldUp]]:
    """Yield the URL of an API server that admits a Binding of the pod *first*, and stalls then."""
    async with stalling_webhook(harness.admin, "first") as webhook:

        async def release() -> None:
            answered = await answered_bindings(harness)
            webhook.release()
            await until(lambda: more(harness, answered), what="the late Binding is answered")
            after = await answered_bindings(harness)
            assert after.get("409", 0) == answered.get("409", 0) + 1

        yield "", HeldUp(webhook.asked, release)


@pytest.mark.parametrize(
    "held_up",
    [held_up_before_admission, held_up_after_admission],
    ids=["before admission", "after admission"],
)
@pytest.mark.parametrize("successor", ["b", "a"], ids=["another", "of the same name"])
async def test_a_held_up_binding_never_lands_and_of_many_pods_the_next_leader_marks_this_one_alone(
    harness: Harness,
    held_up: Callable[[Harness], AbstractAsyncContextManager[tuple[str, HeldUp]]],
    successor: str,
) -> None:
    await harness.create("first")
    second = await harness.create("second")
    for number in range(100):
        await harness.create(f"waits-{number}", mib=CARD_MIB + 1)
    async with held_up(harness) as (url, late):
        a = await harness.leading("a", url=url)
        first = await harness.pod("first")
        async with asyncio.TaskGroup() as group:
            group.create_task(a.bind(harness.http, first), name="the late Binding")
            async with asyncio.timeout(30):
                await late.sent.wait()
            a.process.send(signal.SIGSTOP)
            b = await harness.leading("successor", identity=successor)
            assert await b.bind(harness.http, second) == ""
            await late.release()
            await a.process.kill()

    assert await harness.promised_mib() == 20_000
    assert (await harness.pod("first")).record.node == ""
    assert [await harness.marked(name) for name in ("a", "successor")] == [102, 1]
