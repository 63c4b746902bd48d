"""The real webhook as its own processes, beside an embedded API server with nodes of cards."""

import asyncio
import base64
import os
import random
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from certs.authority import Pair, make_ca, make_serving
from fracgpu import names
from fracgpu.cards.annotations import write_cards
from fracgpu.cards.card import Card, CardUuid
from fracgpu.units import Mib
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NAMESPACES, NODES, SECRETS
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from simulator.envtest.ports import free_ports

PLAIN: Final = "vision"
"""A namespace like most."""

POLYGLOT: Final = "polyglot"
"""A namespace where every dialect is on."""

_READY_LIMIT_S: Final = 30.0
_CARDS: Final = 8  # of a node
_POLL_S: Final = 0.1
_SECRET: Final = "fracgpu-webhook-tls"  # noqa: S105 - the name of a Secret, nothing secret


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWebhook:
    """One process of the role."""

    port: int
    process: asyncio.subprocess.Process
    log: Path

    @property
    def rss_mib(self) -> float:
        """Resident memory of the process, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(it for it in status.splitlines() if it.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    @property
    def cpu_s(self) -> float:
        """CPU time that all threads of the process have had, in seconds.

        ``schedstat`` counts in nanoseconds, where ``stat`` counts in hundredths of a second.
        Source: Linux, Documentation/scheduler/sched-stats.rst.
        """
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((it / "schedstat").read_text().split()[0]) for it in tasks) / 1e9

    @property
    def alive(self) -> bool:
        return self.process.returncode is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The processes, and what a caller needs to trust them."""

    webhooks: Sequence[LiveWebhook]
    ca: Pair

    def trust(self) -> ssl.SSLContext:
        """Make a caller's TLS."""
        return ssl.create_default_context(cadata=self.ca.cert_pem.decode())


@asynccontextmanager
async def live_webhooks(workdir: Path, *, count: int = 1, models: int = 0) -> AsyncIterator[Live]:
    """Run *count* processes until the context ends, over a node of A100 and :func:`odd_nodes`."""
    now = SystemClock().now()
    ca = make_ca(name="benchmark CA", now=now, life=timedelta(hours=6))
    called = ("localhost", "127.0.0.1", "fracgpu-webhook.fracgpu-system.svc")
    leaf = make_serving(ca, names=called, now=now, life=timedelta(hours=3))
    async with ApiServer.start() as api, AsyncExitStack() as stack:
        kubeconfig = api.kubeconfig(workdir / "kubeconfig")
        client = await stack.enter_async_context(connect(kubeconfig))
        await _prepare(client, leaf, models=models)
        webhooks = [
            await stack.enter_async_context(_webhook(kubeconfig, workdir / f"webhook-{number}.log"))
            for number in range(count)
        ]
        yield Live(webhooks=webhooks, ca=ca)


async def _prepare(client: KubeClient, leaf: Pair, *, models: int) -> None:
    space = names.SYSTEM_NAMESPACE
    await client.create(NAMESPACES, {"metadata": {"name": space}})
    data = {
        key: base64.b64encode(pem).decode()
        for key, pem in (("tls.crt", leaf.cert_pem), ("tls.key", leaf.key_pem))
    }
    await client.create(SECRETS, {"metadata": {"name": _SECRET}, "data": data}, namespace=space)
    a100s = [
        Card(uuid=CardUuid(f"GPU-{n}"), index=n, model="NVIDIA A100", total_mib=Mib(81_920))
        for n in range(_CARDS)
    ]
    for number, cards in enumerate([a100s, *odd_nodes(models)]):
        await client.create(NODES, _node(f"gpu-{number + 1}", cards))
    await client.create(NAMESPACES, {"metadata": {"name": PLAIN}})
    labels = {names.DIALECTS_LABEL: "all"}
    await client.create(NAMESPACES, {"metadata": {"name": POLYGLOT, "labels": labels}})


def odd_nodes(models: int) -> Iterator[list[Card]]:
    """Give the cards of a fleet that is as dear to look at as any: no two of them are alike.

    Each card is of a model of its own, with as long a name as a label holds, and of a size of its
    own: so there are as many classes as cards.
    """
    rng = random.Random(1)  # noqa: S311 - a test's dice, not a secret
    for first in range(0, models, _CARDS):
        yield [
            Card(
                uuid=CardUuid(f"GPU-odd-{n}"),
                index=n - first,
                model=f"{''.join(rng.choices('ABCdef01-', k=57))}-{n:05}",
                total_mib=Mib(8_000 + 80 * n),
            )
            for n in range(first, min(models, first + _CARDS))
        ]


def _node(name: str, cards: Sequence[Card]) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {names.SHARE_LABEL: "true"},
            "annotations": {names.NODE_CARDS: write_cards(cards)},
        }
    }


@asynccontextmanager
async def _webhook(kubeconfig: Path, log: Path) -> AsyncIterator[LiveWebhook]:
    port, telemetry_port = free_ports(2)
    flags = {
        "--kubeconfig": str(kubeconfig),
        "--listen-host": "127.0.0.1",
        "--listen-port": str(port),
        "--telemetry-host": "127.0.0.1",
        "--telemetry-port": str(telemetry_port),
        "--drain-wait-s": "0",
    }
    words = [word for flag in flags.items() for word in flag]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cli", "run", "webhook", *words, stdout=out, stderr=out,
            env={key: it for key, it in os.environ.items() if not key.startswith("FRACGPU_")},
        )  # fmt: skip
    try:
        await _until_ready(telemetry_port, process, log)
        yield LiveWebhook(port=port, process=process, log=log)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _until_ready(port: int, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(_READY_LIMIT_S):
        while not await _is_ready(port):
            if process.returncode is not None:
                raise RuntimeError(f"the webhook ended with {process.returncode}; see {log}")
            await asyncio.sleep(_POLL_S)


async def _is_ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.split(b" ", 2)[1] == b"200"
