"""A real control plane whose kube-scheduler calls our extender, which is a separate process."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fracgpu import names
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import EVENTS, NAMESPACES, PODS, Kind
from kube.objects import decode_object
from simulator.demo.definitions import install_definitions
from simulator.demo.supervisor import Supervisor, why_not_ready
from simulator.envtest.control_plane import ADMIN, ControlPlane
from simulator.envtest.extender_certificates import issue_extender_certificates
from simulator.envtest.ports import free_ports
from simulator.envtest.scheduler_configuration import scheduler_configuration
from tests.support.gpu import Json, register
from tests.support.real_apiserver import WITHOUT_NODES, real_api_server
from tests.support.roles import running_roles
from tests.support.waiting import until

_SECRET: Final = "fracgpu-scheduler-tls"  # noqa: S105 - the name of a Secret, nothing secret
PRIORITY_CLASSES: Final = Kind(
    "scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", namespaced=False
)
GANG_GATES: Final = "GenericWorkload=true,GangScheduling=true"
_POD_GROUPS: Final = Kind("scheduling.k8s.io/v1alpha2", "podgroups", "PodGroup", namespaced=True)


async def create_pod_group(client: KubeClient, name: str, size: int) -> None:
    """Create a PodGroup of which *size* pods run or none; it needs `GANG_GATES`."""
    policy = {"schedulingPolicy": {"gang": {"minCount": size}}}
    metadata = {"name": name, "namespace": "default"}
    await client.create(_POD_GROUPS, {"metadata": metadata, "spec": policy})


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A real control plane with our extender beside its scheduler."""

    api: ControlPlane
    client: KubeClient
    roles: Supervisor
    telemetry_port: int
    extender_port: int

    def callers(self) -> set[str]:
        """Return the ports from which the extender was called within the last minute.

        A connection that was closed stays in the kernel's table that long (TIME_WAIT), at the end
        that closed it first. Source: proc_pid_net(5), and tcp(7).
        """
        own = f"{self.extender_port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ends = [{row[1].rpartition(":")[2], row[2].rpartition(":")[2]} for row in rows]
        return {port for both in ends if own in both for port in both} - {own, "0000"}

    async def pods(self) -> dict[str, PodInfo]:
        listing = await self.client.list(PODS)
        pods = [decode_pod_info(bytes(raw)) for raw in listing.items]
        return {pod.record.name: pod for pod in pods}

    async def bound(self) -> dict[str, PodInfo]:
        return {name: pod for name, pod in (await self.pods()).items() if pod.record.node}

    async def until_bound(
        self, wanted: int | Iterable[str], *, limit_s: float = 120
    ) -> dict[str, PodInfo]:
        """Wait until so many pods are bound, or those of these names; return all that are."""
        these = wanted if isinstance(wanted, int) else set(wanted)
        found: dict[str, PodInfo] = {}

        async def all_are() -> bool:
            found.clear()
            found.update(await self.bound())
            return len(found) == these if isinstance(these, int) else these <= found.keys()

        await until(all_are, what=f"bound: {these}", limit_s=limit_s)
        return found

    async def failures_of(self, pod: str) -> list[str]:
        listing = await self.client.list(EVENTS, namespace="default")
        events: list[dict[str, Any]] = [decode_object(raw) for raw in listing.items]
        return [
            event["message"]
            for event in events
            if event["involvedObject"].get("name") == pod and event["reason"] == "FailedScheduling"
        ]

    async def metric(self, name: str) -> float:
        """Return the value of one of the extender's metrics."""
        return (await metrics_of(self.telemetry_port))[name]


async def metrics_of(port: int) -> dict[str, float]:
    """Return the metrics of the process whose telemetry is at *port*; OSError if nobody answers."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    lines = [line for line in (await asyncio.to_thread(read)).splitlines() if line[:1] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@asynccontextmanager
async def real_scheduler(  # noqa: PLR0913 - what a test may choose, each with a default
    workdir: Path,
    nodes: Sequence[Json],
    *,
    send_nodes: bool = False,
    controllers: bool = False,
    mutual_tls: bool = False,
    narrow: bool = True,
    gates: str = "",
    configure: Callable[[Json], None] = lambda _: None,
    before: Callable[[KubeClient], Awaitable[None]] | None = None,
    user: str = ADMIN,
) -> AsyncIterator[Harness]:
    """Start a control plane with *nodes* and our extender, or skip the test without binaries.

    Args:
        workdir: for state and logs.
        nodes: what to register.
        send_nodes: send whole nodes instead of their names.
        controllers: start kube-controller-manager as well.
        mutual_tls: kube-scheduler and the extender know each other by certificate.
        gates: feature gates of kube-apiserver, which serves all alpha APIs then, and of
            kube-scheduler.
        narrow: filter names the best node alone, as in deploy/.
        configure: changes kube-scheduler's configuration, which is that of deploy/.
        before: called before our role and kube-scheduler start; it makes our namespace.
        user: the name of both, whose rights have no limit.
    """
    api_flags = {"feature-gates": gates, "runtime-config": "api/alpha=true"} if gates else None
    users = {} if user == ADMIN else {user: "system:masters"}
    async with (
        real_api_server(workdir, flags=api_flags, users=users) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        if before is None:
            await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
        else:
            await before(client)
        await install_definitions(client)  # an extender that starts without them looks again later
        for node in nodes:
            await register(client, node)
        if controllers:
            await api.start_controller_manager(WITHOUT_NODES)
        (listen,) = free_ports(1)
        kubeconfig = api.kubeconfig(workdir / f"{user.rpartition(':')[2]}.kubeconfig", user=user)
        flags = [f"--listen-port={listen}", "--cache-comparison-period-s=1"]
        tls = None
        if mutual_tls:
            tls = await issue_extender_certificates(client, workdir, secret=_SECRET)
            flags.append(f"--tls-secret={_SECRET}")
        flags += ["--narrow-filter"] if narrow else []
        config = workdir / "kube-scheduler.json"
        url = f"http://127.0.0.1:{listen}" if tls is None else f"https://127.0.0.1:{listen}"
        written = scheduler_configuration(
            extender_url=url, kubeconfig=kubeconfig, send_nodes=send_nodes, tls=tls
        )
        configure(written)
        config.write_text(json.dumps(written))
        async with running_roles(
            {"scheduler": flags}, kubeconfig=kubeconfig, log_dir=workdir
        ) as roles:
            await roles.until_ready("scheduler")
            await api.start_scheduler(config, *([f"--feature-gates={gates}"] if gates else []))
            yield Harness(
                api=api,
                client=client,
                roles=roles.supervisor,
                telemetry_port=roles.telemetry["scheduler"],
                extender_port=listen,
            )


async def is_ready(port: int) -> bool:
    return await why_not_ready(f"127.0.0.1:{port}") is None


def assert_cards_hold(
    pods: dict[str, PodInfo], wanted: dict[str, tuple[int, int]], *, card_mib: int
) -> None:
    """Assert that every pod has what it requested on its own node, and no card is overcommitted."""
    held: dict[str, int] = {}
    for name, pod in pods.items():
        mib, cards = wanted[name]
        assignment = pod.record.assignment
        assert assignment is not None, f"{name} is bound without an assignment"
        (slices,) = assignment.values()
        assert [card_slice.mib for card_slice in slices] == [mib] * cards, name
        assert len({card_slice.card for card_slice in slices}) == cards, name
        assert all(
            card_slice.card.startswith(f"GPU-{pod.record.node}-") for card_slice in slices
        ), name
        for card_slice in slices:
            held[card_slice.card] = held.get(card_slice.card, 0) + card_slice.mib
    assert max(held.values()) <= card_mib
