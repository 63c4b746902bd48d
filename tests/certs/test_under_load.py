"""Certificates rotate while the webhook, in its own process, answers a steady load."""

import asyncio
import sys
from pathlib import Path

import pytest

from cli.commands.certs import main as fracgpu_certs
from kube.client import KubeClient
from kube.kinds import MUTATING_WEBHOOKS
from simulator.apiserver.server import ApiServer
from simulator.envtest.ports import free_ports
from tests.certs.webhooks import a_webhook, apply
from tests.support.gpu import a_sharing_node, register
from tests.support.roles import running_roles
from tests.support.traffic import Traffic, flowing
from tests.support.waiting import until_true


def logs_in(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.log"))


async def another_leaf(traffic: Traffic, *, known: int) -> None:
    await until_true(lambda: len(traffic.leaves) > known, what="a new leaf met by the traffic")


@pytest.mark.slow
async def test_authority_and_leaf_are_rotated_twice_under_traffic_without_one_failed_request(
    api: ApiServer, kube: KubeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"))
    await register(kube, a_sharing_node("n1"))
    (port,) = free_ports(1)
    flags = {
        "certs": ("--overlap-s=2",),
        "webhook": ("--listen-host=127.0.0.1", f"--listen-port={port}"),
    }
    traffic = Traffic(url=f"https://127.0.0.1:{port}/mutate")

    async with running_roles(flags, kubeconfig=kubeconfig, log_dir=tmp_path) as roles:
        await roles.until_ready("webhook")
        async with flowing(traffic, kube):
            for words in (["--ca"], [], ["--ca"], []):
                argv = ["rotate", *words, "--timeout-s=60", f"--kubeconfig={kubeconfig}"]
                known = len(traffic.leaves)
                assert await asyncio.to_thread(fracgpu_certs, argv) == 0
                # The command returns when the replicas serve it; the load sees it a little later.
                await another_leaf(traffic, known=known)

    with capsys.disabled():
        sys.stdout.write(f"\n{traffic.figures}\n")
    assert traffic.failures == []
    assert min(traffic.answered.values()) > 50
    assert len(traffic.issuers) == 3
    assert len(traffic.leaves) > 3
    assert "certificate_renewed" in logs_in(tmp_path)
    assert "PRIVATE KEY" not in logs_in(tmp_path)
