"""The page on a real cluster with the shipped manifests: kubectl port-forward leads to it alone."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from scheduler.page.server import LOOPBACK
from tests.support.documented import documented
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_cluster import (
    SYSTEM,
    RealCluster,
    a_cluster_with_our_images,
    a_long_half,
    install,
    wait_counted,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

ALL_MIB: Final = 2 * 40_960  # as in overlays/simulated-cards
PAGE_PORT: Final = 9405
TELEMETRY_PORT: Final = 9403
Json = dict[str, Any]

# Run in another pod: the telemetry's port shows that the way to the address is open.
_TRY: Final = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), 10).close()
        print(port, "open")
    except OSError as error:
        print(port, error.strerror)
"""


@asynccontextmanager
async def forwarded(kubectl: Kubectl, command: str) -> AsyncIterator[str]:
    """Forward a port to the page of a pod by *command*; yield its address.

    The local port is any that is free.
    """
    assert command.endswith(f" {PAGE_PORT}")
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f"exec {command.removesuffix(str(PAGE_PORT))}:{PAGE_PORT}"),
        env={**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        yield f"http://localhost:{found[1]}"
    finally:
        process.terminate()
        await process.wait()


async def read_until(http: aiohttp.ClientSession, url: str, text: str) -> None:
    read = b""
    async with asyncio.timeout(60), http.get(f"{url}/events") as answer:
        assert answer.status == 200, await answer.text()
        while text.encode() not in read:
            read += await answer.content.readany()


async def settled_replicas(cluster: RealCluster) -> list[Json]:
    """Return the scheduler's two pods, once none of an older template is left."""
    found: list[Json] = []

    async def two() -> bool:
        pods = await cluster.pods(SYSTEM, app="fracgpu-scheduler")
        found[:] = pods
        return len(pods) == 2 and not any("deletionTimestamp" in pod["metadata"] for pod in pods)

    await until(two, what="two replicas of the scheduler", limit_s=90)
    return found


async def test_the_page_is_reached_by_port_forward_and_by_no_address_of_the_pod(
    tmp_path: Path,
) -> None:
    async with a_cluster_with_our_images(tmp_path) as cluster:
        await install(cluster)
        await wait_counted(cluster, mib=ALL_MIB)
        await cluster.kubectl("apply", "-f", "-", stdin=a_long_half())
        await cluster.wait_pod("half")
        replicas = await settled_replicas(cluster)
        (command,) = documented("docs/page.md", "forward")
        leader = await cluster.kubectl(
            *("-n", SYSTEM, "get", "lease", "fracgpu-scheduler-extender"),
            *("-o", "jsonpath={.spec.holderIdentity}"),
        )
        others = [pod["metadata"]["name"] for pod in replicas if pod["metadata"]["name"] != leader]
        addresses = [pod["status"]["podIP"] for pod in replicas]

        async with forwarded(cluster.kubectl, command) as url, aiohttp.ClientSession() as http:
            answer = await http.get(f"{url}/")
            assert "<title>FracGPU: cards</title>" in await answer.text()
            await read_until(http, url, '"pod":"default/half"')
        other = f"kubectl -n {SYSTEM} port-forward pod/{others[0]} {PAGE_PORT}"
        async with forwarded(cluster.kubectl, other) as url, aiohttp.ClientSession() as http:
            answer = await http.get(f"{url}/")
            assert answer.status == 503
            assert "another replica leads" in await answer.text()
        tried = [
            await cluster.kubectl(
                *("-n", SYSTEM, "exec", "deployment/fracgpu-webhook", "--"),
                *("python", "-c", _TRY, address, str(TELEMETRY_PORT), str(PAGE_PORT)),
            )
            for address in addresses
        ]

    assert tried == [f"{TELEMETRY_PORT} open\n{PAGE_PORT} Connection refused\n"] * len(replicas)

    assert LOOPBACK not in addresses
    assert f"--page-port={PAGE_PORT}" in (DEPLOY / "scheduler.yaml").read_text()
