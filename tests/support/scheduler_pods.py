"""The Deployment fracgpu-scheduler without nodes: stand-ins for kubelet and for kube-proxy.

The control plane is real, and so are kube-scheduler and extender: a process each for every pod that
the Deployment has, with the flags, the files and the account that the pod says. What kubelet does
with a pod (start, probe, end, mount a Secret) and kube-proxy with a Service is done here.
"""

import asyncio
import contextlib
import json
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from certs.store import CertStore
from fracgpu import names
from kube.client import KubeClient
from kube.errors import Conflict, KubeError, NotFound
from kube.kinds import CONFIGMAPS, ENDPOINT_SLICES, NODES, PODS
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.demo.accounts import token_of, write_kubeconfig
from simulator.ports import free_ports
from simulator.realapi import RealApiServer
from tests.support.processes import Child
from tests.support.real_scheduler import is_ready

SYSTEM: Final = names.SYSTEM_NAMESPACE
_NODE: Final = "control-plane-1"
_LABEL: Final = "app.kubernetes.io/name=fracgpu-scheduler"
_LEADER: Final = "fracgpu-scheduler-leader"
_EVERY_S: Final = 0.25


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


async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way until either end closes."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@dataclass
class Proxy:
    """kube-proxy for the leader's Service: each connection goes where the EndpointSlice says.

    Every pod is on loopback here, so the port alone tells them apart.
    """

    client: KubeClient
    seen: list[tuple[str, ...]] = field(default_factory=list)
    _ports: tuple[int, ...] = ()

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
        ends = [(it, end) for it in slices for end in it.get("endpoints") or ()]
        self._ports = tuple(port["port"] for it, _ in ends for port in it["ports"])
        addresses = tuple(address for _, end in ends for address in end["addresses"])
        if not self.seen or self.seen[-1] != addresses:
            self.seen.append(addresses)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._ports:
            writer.close()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self._ports[0])
        except OSError:
            writer.close()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(proxied(reader, there[1]), name="there")
            group.create_task(proxied(there[0], writer), name="back")


@dataclass
class _Pod:
    children: dict[str, Child]
    telemetry: int
    secure: int
    ready: bool | None = None


@dataclass
class Kubelet:
    """Runs each pod of the Deployment as its manifest says, in processes on loopback."""

    api: RealApiServer
    client: KubeClient
    workdir: Path
    proxy_port: int
    started: list[str] = field(default_factory=list)
    _pods: dict[str, _Pod] = field(default_factory=dict)
    _node_number: int = 0

    async def run(self) -> None:
        await self._register()
        try:
            while True:
                await self._sync()
                await asyncio.sleep(_EVERY_S)
        finally:
            async with asyncio.TaskGroup() as group:
                for child in [it for pod in self._pods.values() for it in _all(pod)]:
                    group.create_task(child.end(), name="end")

    async def _register(self) -> None:
        await self.client.create(NODES, {"metadata": {"name": _NODE}})

    async def _sync(self) -> None:
        listed = await self.client.list(PODS, namespace=SYSTEM, label_selector=_LABEL)
        for raw in listed.items:
            body = decode_object(raw)
            with contextlib.suppress(KubeError):
                await self._sync_pod(body["metadata"]["name"], body)

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
        folder = self.workdir / name
        try:
            await write_secret(self.client, "fracgpu-scheduler-client", folder)
        except FileNotFoundError:  # kubelet waits for it too
            return
        kubeconfig = write_kubeconfig(
            folder / "kubeconfig",
            server=self.api.url,
            token=await token_of(self.client, "scheduler"),
            ca_file=self.api.ca_file,
        )
        listen, telemetry, secure = free_ports(3)
        containers = {it["name"]: it for it in body["spec"]["containers"]}
        self._node_number += 1
        variables = {
            "POD_NAME": name,
            "POD_IP": f"192.0.2.{self._node_number}",
            "NODE_NAME": _NODE,
        }
        words = containers.get("extender", {}).get("args", [])
        flags = dict(_expand(it, variables).partition("=")[::2] for it in words[2:])
        flags |= {
            "--kubeconfig": str(kubeconfig),
            "--listen-host": "127.0.0.1",
            "--listen-port": str(listen),
            "--telemetry-host": "127.0.0.1",
            "--telemetry-port": str(telemetry),
            "--drain-wait-s": "0",
        }
        commands = {
            "extender": [
                *(sys.executable, "-m", "cli", *words[:2]),
                *(f"{flag}={value}" for flag, value in flags.items()),
            ],
            "kube-scheduler": [
                str(self.api.assets / "kube-scheduler"),
                f"--config={await self._profile(folder, kubeconfig)}",
                "--bind-address=127.0.0.1",
                f"--secure-port={secure}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                "--authentication-tolerate-lookup-failure",
            ],
        }
        children = {
            which: Child(command, log=self.workdir / f"{name}-{which}.log", env=os.environ)
            for which, command in commands.items()
        }
        self._pods[name] = _Pod(children, telemetry, secure)
        self.started.append(name)
        for child in children.values():
            await child.start()

    async def _profile(self, folder: Path, kubeconfig: Path) -> Path:
        """Write the shipped configuration; only the paths and the address are this machine's."""
        found = await self.client.list(CONFIGMAPS, namespace=SYSTEM)
        (profile,) = [
            body["data"]["profile.yaml"]
            for body in map(decode_object, found.items)
            if body["metadata"]["name"].startswith("fracgpu-scheduler-profile")
        ]
        text = profile.replace("/etc/fracgpu-client", str(folder))
        text = text.replace(f"https://{_LEADER}.{SYSTEM}.svc:9404", self._leader_url)
        configuration = yaml.safe_load(text)
        configuration["clientConnection"] = {"kubeconfig": str(kubeconfig)}
        path = folder / "profile.json"
        path.write_text(json.dumps(configuration))
        return path

    @property
    def _leader_url(self) -> str:
        return f"https://127.0.0.1:{self.proxy_port}"

    async def _probe(self, name: str, pod: _Pod) -> None:
        for child in _all(pod):
            if not child.alive:  # restartPolicy: Always
                await child.start()
        ready = await is_ready(pod.telemetry) and await _kube_scheduler_ready(pod.secure)
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
    return re.sub(r"\$\((\w+)\)", lambda it: variables[it[1]], word)


async def _kube_scheduler_ready(port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # kubelet's probes check none either

    def ask() -> bool:
        url = f"https://127.0.0.1:{port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    return await asyncio.to_thread(ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPods:
    """What the two stand-ins saw."""

    kubelet: Kubelet
    proxy: Proxy


@asynccontextmanager
async def scheduler_pods(
    api: RealApiServer, client: KubeClient, workdir: Path
) -> AsyncIterator[SchedulerPods]:
    """Hold up the Deployment's pods, and the leader's Service, until the block ends."""
    proxy = Proxy(client=client)
    server = await asyncio.start_server(proxy.carry, "127.0.0.1", 0)
    kubelet = Kubelet(
        api=api, client=client, workdir=workdir, proxy_port=server.sockets[0].getsockname()[1]
    )
    async with server, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(proxy.follow(), name="kube-proxy"),
            group.create_task(kubelet.run(), name="kubelet"),
        ]
        try:
            yield SchedulerPods(kubelet=kubelet, proxy=proxy)
        finally:
            for task in tasks:
                task.cancel()
