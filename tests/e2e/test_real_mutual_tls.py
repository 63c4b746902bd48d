"""How the real kube-scheduler uses the certificates that we give it to call an extender."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from certs.authority import Pair, make_client
from certs.store import CertStore
from cli.commands.certs import main as fracgpu_certs
from fracgpu import names
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NAMESPACES, NODES, PODS
from process.telemetry import HttpServer
from process.tls import ServingTls
from simulator.envtest.ports import free_ports
from simulator.envtest.scheduler_configuration import scheduler_configuration
from tests.certs.tls_harness import HOUR, a_ca, a_leaf, now
from tests.support.gpu import a_gpu_pod, a_sharing_node
from tests.support.real_apiserver import real_api_server
from tests.support.roles import running_roles
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

SYSTEM = names.SYSTEM_NAMESPACE


@dataclass
class Extender:
    """Accepts every node, over mutual TLS, and records the client certificates."""

    tls: ServingTls = field(default_factory=lambda: ServingTls(require_client_certificate=True))
    asked_with: dict[str, str] = field(default_factory=dict)

    def serve(self, ca: Pair, *, trusting: bytes) -> None:
        leaf = a_leaf(ca, "127.0.0.1")
        self.tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=trusting)

    async def filter(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        args = json.loads(await request.read())
        self.asked_with[args["Pod"]["metadata"]["name"]] = peer["serialNumber"]
        # A handshake for each call, as after a lost connection.
        answer = {"NodeNames": args["NodeNames"]}
        return web.json_response(answer, headers={"Connection": "close"})

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_post("/filter", self.filter)
        server = HttpServer(app, host="127.0.0.1", port=0, ssl_context=self.tls.context)
        await server.start()
        try:
            yield server.port
        finally:
            await server.stop(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The Secret fracgpu-scheduler-client as kubelet mounts it."""

    folder: Path

    def write(self, client: Pair, *, bundle: bytes) -> None:
        for name, content in (
            ("tls.key", client.key_pem),
            ("tls.crt", client.cert_pem),
            ("ca.crt", bundle),
        ):
            path = self.folder / name
            path.touch(mode=0o600)
            path.write_bytes(content)

    def config(self) -> dict[str, str]:
        names_of = {"certFile": "tls.crt", "keyFile": "tls.key", "caFile": "ca.crt"}
        return {key: str(self.folder / name) for key, name in names_of.items()}


def a_client(ca: Pair) -> Pair:
    return make_client(ca, name="fracgpu-scheduler", now=now(), life=HOUR)


async def ask(client: KubeClient, extender: Extender, pod: str, *, limit_s: float = 30) -> str:
    """Have *pod* scheduled; return the serial number of the client certificate."""
    await client.create(PODS, a_gpu_pod(pod, mib=1))
    await until_true(
        lambda: pod in extender.asked_with, what=f"the extender asked about {pod}", limit_s=limit_s
    )
    return extender.asked_with[pod]


async def ask_until_other(client: KubeClient, extender: Extender, *, than: set[str]) -> str:
    """Have pods scheduled until a certificate is used that is not in *than*."""
    for attempt in range(20):
        serial = await ask(client, extender, f"q{len(than)}-{attempt}")
        if serial not in than:
            return serial
        await asyncio.sleep(1)  # it caches the files for a second
    raise AssertionError("the new client certificate is not taken up")


async def test_kube_scheduler_takes_up_a_new_client_certificate_but_a_new_authority_at_start_only(
    tmp_path: Path,
) -> None:
    ca, later = a_ca(), a_ca()
    extender, files = Extender(), Files(folder=tmp_path)
    extender.serve(ca, trusting=ca.cert_pem)
    files.write(a_client(ca), bundle=ca.cert_pem)
    async with (
        real_api_server(tmp_path) as api,
        connect(str(api.kubeconfig(tmp_path / "admin.kubeconfig"))) as client,
        extender.listening() as port,
    ):
        await client.create(NODES, a_sharing_node("n1"))
        config = scheduler_configuration(
            extender_url=f"https://127.0.0.1:{port}", kubeconfig=tmp_path / "admin.kubeconfig"
        )
        (asks,) = config["extenders"]
        asks |= {"enableHTTPS": True, "tlsConfig": files.config()}
        del asks["prioritizeVerb"], asks["bindVerb"]
        path = tmp_path / "config.json"
        await asyncio.to_thread(path.write_text, json.dumps(config))
        await api.start_scheduler(path)

        first = await ask(client, extender, "p1")
        extender.serve(ca, trusting=ca.cert_pem)
        files.write(a_client(ca), bundle=ca.cert_pem)
        second = await ask_until_other(client, extender, than={first})

        both = later.cert_pem + ca.cert_pem
        extender.serve(ca, trusting=both)
        files.write(a_client(later), bundle=both)
        await ask_until_other(client, extender, than={first, second})

        # The bundle that it has loaded is not read again.
        extender.serve(later, trusting=both)
        with pytest.raises(AssertionError, match="the extender asked about p4"):
            await ask(client, extender, "p4", limit_s=10)

        await api.start_scheduler(path)
        await ask(client, extender, "p5")


async def mount(client: KubeClient, files: Files) -> None:
    """Update the files as kubelet updates a Secret volume, once there is the Secret."""
    store = CertStore(client, namespace=SYSTEM)

    async def is_issued() -> bool:
        return await store.read("fracgpu-scheduler-client") is not None

    await until(is_issued, what="a certificate for kube-scheduler", limit_s=40)
    stored = await store.read("fracgpu-scheduler-client")
    assert stored is not None
    pair = Pair(cert_pem=stored.data["tls.crt"], key_pem=stored.data["tls.key"])
    files.write(pair, bundle=stored.data["ca.crt"])


async def bound(client: KubeClient, pod: str) -> None:
    """Create *pod* and wait until it is bound with a card."""
    await client.create(PODS, a_gpu_pod(pod, mib=1))

    async def has_a_card() -> bool:
        found = await client.get_object(PODS, pod, namespace="default")
        return names.ASSIGNMENT in (found["metadata"].get("annotations") or {})

    await until(has_a_card, what=f"{pod} bound to a card", limit_s=40)


async def test_pods_are_bound_over_mutual_tls_before_and_after_new_certificates(
    tmp_path: Path,
) -> None:
    """With the roles themselves: extender and kube-scheduler accept what ``certs`` issues."""
    files = Files(folder=tmp_path)
    (port,) = free_ports(1)
    flags = {
        "certs": ("--overlap-s=1",),
        "scheduler": (f"--listen-port={port}", "--tls-secret=fracgpu-scheduler-tls"),
    }
    async with real_api_server(tmp_path) as api:
        kubeconfig = api.kubeconfig(tmp_path / "admin.kubeconfig")
        config = scheduler_configuration(
            extender_url=f"https://127.0.0.1:{port}", kubeconfig=kubeconfig
        )
        config["extenders"][0] |= {"enableHTTPS": True, "tlsConfig": files.config()}
        path = tmp_path / "config.json"
        await asyncio.to_thread(path.write_text, json.dumps(config))
        async with connect(str(kubeconfig)) as client:
            await client.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
            await client.create(NODES, a_sharing_node("n1"))
            async with running_roles(flags, kubeconfig=kubeconfig, log_dir=tmp_path) as roles:
                await roles.until_ready("scheduler")
                await mount(client, files)
                await api.start_scheduler(path)
                await bound(client, "before")
                for words in ([], ["--ca"]):
                    argv = ["rotate", *words, "--timeout-s=60", f"--kubeconfig={kubeconfig}"]
                    argv += ["--webhook-configurations="]  # none is installed here
                    assert await asyncio.to_thread(fracgpu_certs, argv) == 0
                    await mount(client, files)
                    if words:
                        await api.start_scheduler(path)
                    await bound(client, f"after-{len(words)}")
