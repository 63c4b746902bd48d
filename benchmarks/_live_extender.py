"""The real extender as its own process, over a canned API server, and a bare server beside it."""

import asyncio
import base64
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from certs.authority import Pair, make_ca, make_client, make_serving
from process.clock import SystemClock
from simulator.envtest.ports import free_ports

_READY_LIMIT_S: Final = 300.0
_POLL_S: Final = 0.02
_SECRET: Final = "fracgpu-scheduler-tls"  # noqa: S105 - the name of a Secret, nothing secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The processes, and what a caller needs.

    Attributes:
        started_s: from starting the process until it was ready.
    """

    port: int
    bare_port: int
    process: asyncio.subprocess.Process
    trust: ssl.SSLContext
    started_s: float

    @property
    def rss_mib(self) -> float:
        """Resident memory of the extender now, in MiB."""
        return self._status("VmRSS:")

    @property
    def peak_mib(self) -> float:
        """The most that it ever had resident, in MiB."""
        return self._status("VmHWM:")

    def _status(self, field: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(it for it in status.splitlines() if it.startswith(field))
        return int(line.split()[1]) / 1024


@asynccontextmanager
async def live_extender(workdir: Path, *, nodes: int, pods_per_node: int) -> AsyncIterator[Live]:
    """Run the extender over so many nodes with so many pods each, until the context ends."""
    now = SystemClock().now()
    ca = make_ca(name="benchmark CA", now=now, life=timedelta(hours=6))
    leaf = make_serving(ca, names=("localhost", "127.0.0.1"), now=now, life=timedelta(hours=3))
    client = make_client(ca, name="fracgpu-scheduler", now=now, life=timedelta(hours=3))
    secret = workdir / "secret.json"
    secret.write_text(json.dumps(_secret(leaf, ca)))
    pem = _private(workdir / "leaf.pem", leaf)
    api_port, port, telemetry_port, bare_port = free_ports(4)
    kubeconfig = workdir / "kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig(api_port)))
    async with AsyncExitStack() as stack:
        for module, *words in (
            ("benchmarks._canned_api", api_port, nodes, pods_per_node, secret),
            ("benchmarks._bare_server", bare_port, pem),
        ):
            argv = [str(word) for word in words]
            await stack.enter_async_context(_process(workdir, str(module), *argv))
        for listening in (api_port, bare_port):
            await _until(partial(_connects, listening))
        flags = {
            "--kubeconfig": kubeconfig,
            "--listen-port": port,
            "--telemetry-host": "127.0.0.1",
            "--telemetry-port": telemetry_port,
            "--tls-secret": _SECRET,
            "--drain-wait-s": 0,
        }
        argv = [str(word) for flag in flags.items() for word in flag]
        began_s = time.perf_counter()
        process = await stack.enter_async_context(
            _process(workdir, "cli", "run", "scheduler", *argv)
        )
        await _until(lambda: is_ready(telemetry_port))
        started_s = time.perf_counter() - began_s
        trust = ssl.create_default_context(cadata=ca.cert_pem.decode())
        trust.load_cert_chain(_private(workdir / "client.pem", client))
        yield Live(
            port=port, bare_port=bare_port, process=process, trust=trust, started_s=started_s
        )


def _secret(leaf: Pair, ca: Pair) -> dict[str, object]:
    parts = {"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem, "ca.crt": ca.cert_pem}
    return {
        "metadata": {
            "name": _SECRET, "namespace": "fracgpu-system", "uid": "s", "resourceVersion": "1",
        },
        "data": {key: base64.b64encode(pem).decode() for key, pem in parts.items()},
    }  # fmt: skip


def _kubeconfig(port: int) -> dict[str, object]:
    named = {"name": "canned"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "canned",
        "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{**named, "context": {"cluster": "canned", "user": "canned"}}],
        "users": [{**named, "user": {}}],
    }


def _private(path: Path, pair: Pair) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(pair.cert_pem + pair.key_pem)
    return path


@asynccontextmanager
async def _process(
    workdir: Path, module: str, *words: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    with (workdir / f"{module}.log").open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *words, stdout=out, stderr=out,
            env={key: it for key, it in os.environ.items() if not key.startswith("FRACGPU_")},
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_READY_LIMIT_S):
        while not await holds():  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(_POLL_S)


async def _connects(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def is_ready(port: int) -> bool:
    """Ask a role's probe."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.split(b" ", 2)[1] == b"200"
