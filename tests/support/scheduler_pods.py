"""The scheduler's pods without nodes: stand-ins for kubelet and for kube-proxy.

The control plane is real, and so are kube-scheduler and extender: a process for every pod of
the Deployment, with the flags, files and service account of the pod; and likewise for the pods of
the DaemonSet that configures the cluster's own kube-scheduler. What kubelet does with a pod (start,
probe, stop, mount a Secret) and kube-proxy with a Service is done here.
"""

import asyncio
import contextlib
import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from certs.store import CertStore
from cli.commands.certs import main as fracgpu_certs
from fracgpu import names
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import Conflict, KubeError, NotFound
from kube.kinds import CONFIGMAPS, DEPLOYMENTS, ENDPOINT_SLICES, NODES, PDBS, PODS, SERVICES
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.background import background
from simulator.demo.service_accounts import token_of
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.ports import free_ports
from simulator.kubeconfig import write_kubeconfig
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.processes import Child
from tests.support.real_apiserver import WITHOUT_NODES, real_api_server
from tests.support.real_scheduler import is_ready
from tests.support.roles import running_roles
from tests.support.sticky_service import StickyService
from tests.support.waiting import until, until_true

SYSTEM: Final = names.SYSTEM_NAMESPACE
_NODE: Final = "control-plane-1"
_APP: Final = "app.kubernetes.io/name"
_SCHEDULER: Final = "fracgpu-scheduler"
_AGENT: Final = "fracgpu-kube-scheduler-files"
_LEADER: Final = "fracgpu-scheduler-leader"
_EVERY_S: Final = 0.25
_PYTHON: Final = (sys.executable, "-m", "cli")


async def write_secret(client: KubeClient, secret: str, folder: Path) -> None:
    """Write a Secret's values to files, as kubelet does for a volume.

    Raises:
        FileNotFoundError: there is no such Secret yet.
    """
    stored = await CertStore(client, namespace=SYSTEM).read(secret)
    if stored is None:
        raise FileNotFoundError(f"no Secret {secret}")
    await asyncio.to_thread(write_files, folder, stored.data)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files of mode 0600."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)


@dataclass
class Proxy:
    """kube-proxy for the leader's Service: each connection goes where the EndpointSlice says.

    Every pod is on loopback here, so only the port distinguishes them.
    """

    client: KubeClient
    announced: list[tuple[str, ...]] = field(default_factory=list)
    service: StickyService = field(default_factory=StickyService)

    async def follow(self) -> None:
        while True:
            with contextlib.suppress(KubeError):
                self._take(await self._slices())
            await asyncio.sleep(0.1)

    async def _slices(self) -> list[dict[str, Any]]:
        listed = await self.client.list(
            ENDPOINT_SLICES,
            namespace=SYSTEM,
            label_selector=f"kubernetes.io/service-name={_LEADER}",
        )
        return [decode_object(raw) for raw in listed.items]

    def _take(self, slices: list[dict[str, Any]]) -> None:
        ends = [
            (endpoint_slice, end)
            for endpoint_slice in slices
            for end in endpoint_slice.get("endpoints") or ()
        ]
        ports = [port["port"] for endpoint_slice, _ in ends for port in endpoint_slice["ports"]]
        self.service.endpoint = ports[0] if ports else 0
        addresses = tuple(address for _, end in ends for address in end["addresses"])
        if not self.announced or self.announced[-1] != addresses:
            self.announced.append(addresses)


@dataclass
class _Pod:
    children: dict[str, Child]
    telemetry: int
    secure: int | None = None
    ready: bool | None = None


@dataclass
class Kubelet:
    """Runs each pod of the Deployment as its manifest says, in processes on loopback."""

    api: ControlPlane
    client: KubeClient
    workdir: Path
    leader_url: str
    node_folder: Path
    started: list[str] = field(default_factory=list)
    _pods: dict[str, _Pod] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _node_number: int = 0

    async def run(self) -> None:
        await self._register()
        try:
            while True:
                await self._sync()
                await asyncio.sleep(_EVERY_S)
        finally:
            async with asyncio.TaskGroup() as group:
                for child in [process for pod in self._pods.values() for process in _all(pod)]:
                    group.create_task(child.end(), name="end")

    def running(self) -> Container[str]:
        """Return the names of the pods that run."""
        return self._pods.keys()

    async def lose(self, name: str) -> None:
        """Lose a pod with its node: its processes end without a status update."""
        pod = self._pods.pop(name)
        self._lost.add(name)
        for child in _all(pod):
            await child.kill()

    async def _register(self) -> None:
        labels = {"node-role.kubernetes.io/control-plane": ""}
        await self.client.create(NODES, {"metadata": {"name": _NODE, "labels": labels}})

    async def _sync(self) -> None:
        listed = await self.client.list(
            PODS, namespace=SYSTEM, label_selector=f"{_APP} in ({_SCHEDULER},{_AGENT})"
        )
        for raw in listed.items:
            body = decode_object(raw)
            name = body["metadata"]["name"]
            if name not in self._lost:
                with contextlib.suppress(KubeError):
                    await self._sync_pod(name, body)

    async def _sync_pod(self, name: str, body: Mapping[str, Any]) -> None:
        if body["metadata"].get("deletionTimestamp"):
            await self._end(name)
            return
        if not body["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": _NODE}
            with contextlib.suppress(Conflict):
                await self.client.bind({"target": target}, namespace=SYSTEM, name=name)
            return
        if name not in self._pods:
            await self._start(name, body)
        if name in self._pods:
            await self._probe(name, self._pods[name])

    async def _end(self, name: str) -> None:
        pod = self._pods.pop(name, None)
        for child in _all(pod):
            await child.end()
        with contextlib.suppress(NotFound):
            await self.client.delete(PODS, name, namespace=SYSTEM, grace_s=0)

    async def _start(self, name: str, body: Mapping[str, Any]) -> None:
        if body["metadata"]["labels"][_APP] == _AGENT:
            pod = await self._agent(name, body)
        else:
            try:
                await write_secret(self.client, "fracgpu-scheduler-client", self.workdir / name)
            except FileNotFoundError:  # kubelet waits for it too
                return
            pod = await self._scheduler(name, body)
        self._pods[name] = pod
        self.started.append(name)
        for child in _all(pod):
            await child.start()

    async def _agent(self, name: str, body: Mapping[str, Any]) -> _Pod:
        (container,) = body["spec"]["containers"]
        (telemetry,) = free_ports(1)
        text = await self._config_map("fracgpu-kube-scheduler", "config.yaml")
        # The paths of the control-plane node are this test's.
        text = text.replace("/etc/fracgpu/kube-scheduler", str(self.node_folder))
        text = text.replace("/etc/kubernetes", str(self.workdir))
        configuration = self.workdir / f"{name}.yaml"
        await asyncio.to_thread(configuration.write_text, text)
        flags = {
            "--kubeconfig": str(await self._credentials(self.workdir / name, _AGENT)),
            "--node-folder": str(self.node_folder),
            "--node-configuration": str(configuration),
            "--telemetry-host": "127.0.0.1",
            "--telemetry-port": str(telemetry),
        }
        command = [
            *_PYTHON,
            *container["args"],
            *(f"{flag}={value}" for flag, value in flags.items()),
        ]
        return _Pod({"files": self._child(name, "files", command)}, telemetry)

    def _child(self, pod: str, container: str, command: list[str]) -> Child:
        return Child(command, log=self.workdir / f"{pod}-{container}.log", env=os.environ)

    async def _credentials(self, folder: Path, account: str) -> Path:
        return write_kubeconfig(
            folder.with_suffix(".kubeconfig"),
            server=self.api.url,
            token=await token_of(self.client, account.removeprefix("fracgpu-")),
            ca_file=self.api.ca_file,
        )

    async def _scheduler(self, name: str, body: Mapping[str, Any]) -> _Pod:
        folder = self.workdir / name
        kubeconfig = await self._credentials(folder, _SCHEDULER)
        listen, telemetry, secure, page = free_ports(4)
        self._node_number += 1
        variables = {
            "POD_NAME": name,
            "POD_IP": f"192.0.2.{self._node_number}",
            "NODE_NAME": _NODE,
        }
        containers = {container["name"]: container for container in body["spec"]["containers"]}
        words = containers["extender"]["args"]
        flags = dict(_expand(word, variables).partition("=")[::2] for word in words[2:])
        flags |= {
            "--kubeconfig": str(kubeconfig),
            "--listen-host": "127.0.0.1",
            "--listen-port": str(listen),
            "--page-port": str(page),  # each pod has its own loopback; here they share one
            "--telemetry-host": "127.0.0.1",
            "--telemetry-port": str(telemetry),
            "--drain-wait-s": "0",
        }
        command = [*_PYTHON, *words[:2], *(f"{flag}={value}" for flag, value in flags.items())]
        children = {"extender": self._child(name, "extender", command)}
        if "kube-scheduler" not in containers:
            return _Pod(children, telemetry)
        command = [
            str(self.api.assets / "kube-scheduler"),
            f"--config={await self._profile(folder, kubeconfig)}",
            "--bind-address=127.0.0.1",
            f"--secure-port={secure}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--authentication-tolerate-lookup-failure",
        ]
        children["kube-scheduler"] = self._child(name, "kube-scheduler", command)
        return _Pod(children, telemetry, secure)

    async def _config_map(self, stem: str, key: str) -> str:
        """Return a value of the newest ConfigMap that kustomize named *stem* with a hash."""
        found = await self.client.list(CONFIGMAPS, namespace=SYSTEM)
        bodies = [
            body
            for body in map(decode_object, found.items)
            if body["metadata"]["name"].rpartition("-")[0] == stem
        ]
        newest = max(bodies, key=lambda body: str(body["metadata"]["creationTimestamp"]))
        return str(newest["data"][key])

    async def _profile(self, folder: Path, kubeconfig: Path) -> Path:
        """Write the shipped configuration; only the paths and the address are this machine's."""
        profile = await self._config_map("fracgpu-scheduler-profile", "profile.yaml")
        text = profile.replace("/etc/fracgpu-client", str(folder))
        text = text.replace(f"https://{_LEADER}.{SYSTEM}.svc:9404", self.leader_url)
        configuration = yaml.safe_load(text)
        configuration["clientConnection"] = {"kubeconfig": str(kubeconfig)}
        path = folder / "profile.json"
        path.write_text(json.dumps(configuration))
        return path

    async def _probe(self, name: str, pod: _Pod) -> None:
        for child in _all(pod):
            if not child.alive:  # restartPolicy: Always
                await child.start()
        ready = await is_ready(pod.telemetry)
        if pod.secure is not None:
            ready = ready and await _kube_scheduler_ready(pod.secure)
        if ready is pod.ready:
            return
        pod.ready = ready
        now = SystemClock().now().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": now}
        status = {"phase": "Running", "conditions": [condition]}
        await self.client.patch(
            PODS, name, {"status": status}, namespace=SYSTEM, subresource="status"
        )


def _all(pod: _Pod | None) -> list[Child]:
    return [] if pod is None else list(pod.children.values())


def _expand(word: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word)


async def _kube_scheduler_ready(port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # kubelet's probes check no certificates either

    def ask() -> bool:
        url = f"https://127.0.0.1:{port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()  # its body is an open response, too
            return False
        except OSError:
            return False

    return await asyncio.to_thread(ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPods:
    """The two stand-ins, and what they saw."""

    kubelet: Kubelet
    proxy: Proxy


@asynccontextmanager
async def scheduler_pods(
    api: ControlPlane,
    client: KubeClient,
    workdir: Path,
    *,
    listen: tuple[str, int] = ("127.0.0.1", 0),
) -> AsyncIterator[SchedulerPods]:
    """Run the pods, and the leader's Service at *listen*, until the block ends."""
    proxy = Proxy(client=client)
    async with proxy.service.open(*listen) as (host, port):
        kubelet = Kubelet(
            api=api,
            client=client,
            workdir=workdir,
            leader_url=f"https://{host}:{port}",
            node_folder=workdir / "etc-fracgpu",
        )
        async with background(proxy.follow(), kubelet.run()):
            yield SchedulerPods(kubelet=kubelet, proxy=proxy)


# Services on loopback, so that kube-proxy's stand-in can listen where they are.
_SERVICES: Final = {"service-cluster-ip-range": "127.77.0.0/24"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A cluster with FracGPU in it."""

    api: ControlPlane
    client: KubeClient
    kubectl: Kubectl
    kubeconfig: Path
    pods: SchedulerPods

    async def rotate(self) -> None:
        """Issue a new authority, and what it issues."""
        argv = ["rotate", "--ca", "--timeout-s=240", f"--kubeconfig={self.kubeconfig}"]
        argv += ["--webhook-configurations="]  # none is here
        assert await asyncio.to_thread(fracgpu_certs, argv) == 0


async def install(api: ControlPlane, client: KubeClient, kubectl: Kubectl, folder: Path) -> None:
    for number in range(2):
        name = f"gpu-{number}"
        await register(client, a_sharing_node(name, cards=some_cards(name, mib=80_000)))
    await apply(kubectl, folder)
    await api.start_controller_manager(WITHOUT_NODES)


async def apply(kubectl: Kubectl, folder: Path) -> None:
    """Apply a kustomization; a new API server may have no schemas for kubectl to check by yet."""
    await kubectl("apply", "--server-side", "--validate=false", "-k", str(folder))
    await without_webhooks(kubectl)


async def without_webhooks(kubectl: Kubectl) -> None:
    """Delete the webhook's configurations: its pods are not run here, so they fail requests."""
    for kind in ("mutating", "validating"):
        await kubectl("delete", f"{kind}webhookconfiguration", "fracgpu-webhook")


async def certs_flags(client: KubeClient) -> tuple[str, ...]:
    """Return the installed flags with a shorter overlap: a single API server reads at once."""
    deployment = await client.get_object(DEPLOYMENTS, "fracgpu-certs", namespace=SYSTEM)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return (*container["args"][2:], "--overlap-s=2")


async def leader_address(client: KubeClient) -> tuple[str, int]:
    """Return the address of the leader's Service."""
    service = await client.get_object(SERVICES, "fracgpu-scheduler-leader", namespace=SYSTEM)
    (port,) = service["spec"]["ports"]
    return service["spec"]["clusterIP"], port["port"]


@asynccontextmanager
async def installed(folder: Path, *, manifests: Path = DEPLOY) -> AsyncIterator[Harness]:
    """Install *manifests* and run the certificates role and the scheduler's pods."""
    async with (
        real_api_server(folder, flags=_SERVICES) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        kubeconfig = api.kubeconfig(folder / "admin.kubeconfig")
        kubectl = Kubectl.find(kubeconfig)
        await install(api, client, kubectl, manifests)
        own = write_kubeconfig(
            folder / "certs.kubeconfig",
            server=api.url,
            token=await token_of(client, "certs"),
            ca_file=api.ca_file,
        )
        async with (
            running_roles({"certs": await certs_flags(client)}, kubeconfig=own, log_dir=folder),
            scheduler_pods(api, client, folder, listen=await leader_address(client)) as pods,
        ):
            harness = Harness(
                api=api, client=client, kubectl=kubectl, kubeconfig=kubeconfig, pods=pods
            )
            await until(lambda: settled(harness), what="certificates and scheduler", limit_s=150)
            yield harness


async def settled(harness: Harness) -> bool:
    """Report whether both replicas are of the newest template and ready, also in the budget."""
    try:
        budget = await harness.client.get_object(PDBS, "fracgpu-scheduler", namespace=SYSTEM)
    except NotFound:
        return False
    status = budget.get("status", {})
    if (status.get("currentHealthy"), status.get("expectedPods")) != (2, 2):
        return False
    said = await harness.kubectl.ask(
        *("-n", SYSTEM, "rollout", "status", "deployment/fracgpu-scheduler", "--watch=false")
    )
    return said.ok and "successfully rolled out" in said.out


PAUSE_S: Final = 0.5
TIMEOUT_S: Final = 60.0  # the promise: no pod waits longer


@dataclass
class Users:
    """Create pods, measure how long each waits for its card, and delete them."""

    client: KubeClient
    scheduler: str = names.SCHEDULER_NAME
    waited_s: dict[str, float] = field(default_factory=dict)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _created_s: dict[str, float] = field(default_factory=dict)

    async def create(self) -> None:
        for number in range(10_000):
            if self.stopped.is_set():
                return
            name = f"user-{number}"
            await self.client.create(PODS, a_gpu_pod(name, mib=1_000, schedulerName=self.scheduler))
            self._created_s[name] = time.monotonic()
            await asyncio.sleep(PAUSE_S)

    async def look(self) -> None:
        while not (self.stopped.is_set() and not self._created_s):
            listed = await self.client.list(PODS, namespace="default")
            for body in map(decode_object, listed.items):
                name = body["metadata"]["name"]
                if not body["spec"].get("nodeName") or name not in self._created_s:
                    continue
                assert names.ASSIGNMENT in body["metadata"]["annotations"], name
                self.waited_s[name] = time.monotonic() - self._created_s.pop(name)
                await self.client.delete(PODS, name, namespace="default", grace_s=0)
            await asyncio.sleep(0.1)

    async def until_placed(self, more: int) -> None:
        """Wait until *more* pods than now have been placed."""
        wanted = len(self.waited_s) + more
        await until_true(
            lambda: len(self.waited_s) >= wanted, what=f"{more} more pods placed", limit_s=90
        )

    async def finish(self) -> None:
        """Stop creating pods, and wait until none waits any more."""
        self.stopped.set()
        await until_true(
            lambda: not self._created_s, what="every pod has its card", limit_s=2 * TIMEOUT_S
        )

    @property
    def figures(self) -> str:
        return f"{len(self.waited_s)} pods placed, the longest waited {self.longest_s:.1f} s"

    @property
    def longest_s(self) -> float:
        return max(self.waited_s.values())


@asynccontextmanager
async def users(
    client: KubeClient, *, scheduler: str = names.SCHEDULER_NAME
) -> AsyncIterator[Users]:
    """Run the users until the block ends."""
    applicants = Users(client=client, scheduler=scheduler)
    async with background(applicants.create(), applicants.look()):
        yield applicants
