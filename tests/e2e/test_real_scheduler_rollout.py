"""Pods are placed without interruption by a new authority, an update or the leader's loss.

Everything is as shipped and real but the nodes: ``tests/support/scheduler_pods.py`` says
what stands in for kubelet and kube-proxy.
"""

import sys
from collections.abc import Callable, Container
from pathlib import Path

import pytest

from certs.authority import read
from certs.store import CertStore
from kube.client import KubeClient
from kube.kinds import LEASES
from tests.support.scheduler_pods import SYSTEM, TIMEOUT_S, installed, settled, users
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]


async def issuers(client: KubeClient) -> set[str]:
    store = CertStore(client, namespace=SYSTEM)
    found = [
        await store.read(name) for name in ("fracgpu-scheduler-tls", "fracgpu-scheduler-client")
    ]
    return {read(secret.data["tls.crt"]).issuer_key_id for secret in found if secret is not None}


async def leader(client: KubeClient, running: Callable[[], Container[str]]) -> str:
    """Return the name of the running pod whose extender leads; the Lease may name an ended one."""
    holder = ""

    async def somebody() -> bool:
        nonlocal holder
        lease = await client.get_object(LEASES, "fracgpu-scheduler-extender", namespace=SYSTEM)
        holder = lease["spec"].get("holderIdentity") or ""
        return holder in running()

    await until(somebody, what="somebody leads")
    return holder


async def test_a_new_authority_an_update_and_the_loss_of_the_leader_never_stop_placing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with installed(tmp_path) as harness:
        before = set(harness.pods.kubelet.started)
        async with users(harness.client) as applicants:
            await applicants.until_placed(5)
            first = await issuers(harness.client)
            await harness.rotate()
            after_rotation = set(harness.pods.kubelet.started)
            second = await issuers(harness.client)
            # A client that trusts only the earlier authority can no longer call any replica.
            harness.pods.proxy.service.cut()
            await applicants.until_placed(10)
            rotated = applicants.figures

            await harness.kubectl(
                "-n", SYSTEM, "rollout", "restart", "deployment/fracgpu-scheduler"
            )
            await until(lambda: settled(harness), what="the update ends", limit_s=120)
            updated, started = applicants.figures, set(harness.pods.kubelet.started)

            await harness.pods.kubelet.lose(
                await leader(harness.client, harness.pods.kubelet.running)
            )
            await applicants.until_placed(5)
            await applicants.finish()
        with capsys.disabled():
            sys.stdout.write(
                f"\na new authority: {rotated}; and an update: {updated}; "
                f"and the leader's node lost: {applicants.figures}\n"
            )

    assert applicants.longest_s < TIMEOUT_S
    assert not first & second
    # Two more pods for the authority, two more for the update.
    assert len(after_rotation - before) == 2
    assert len(started - after_rotation) == 2
    # Never two endpoints.
    assert max(map(len, harness.pods.proxy.announced)) == 1
