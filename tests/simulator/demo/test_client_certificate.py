"""kube-scheduler's certificate in the demo: waited for, written for us alone, and presented."""

import asyncio
import base64
import stat
from datetime import timedelta
from pathlib import Path

from certs.authority import make_ca, make_client
from kube.access import connect
from kube.kinds import NAMESPACES, SECRETS
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from simulator.demo.client_certificate import (
    CLIENT_SECRET,
    SERVER_NAME,
    SERVING_SECRET,
    client_context,
    wait_client_certificate,
)
from tests.support.kubectl import DEPLOY

NAMESPACE = "fracgpu-system"


def a_secret() -> dict[str, object]:
    now, life = SystemClock().now(), timedelta(hours=1)
    authority = make_ca(name="ca", now=now, life=life)
    client = make_client(authority, name="fracgpu-scheduler", now=now, life=life)
    parts = {"tls.crt": client.cert_pem, "tls.key": client.key_pem, "ca.crt": authority.cert_pem}
    data = {name: base64.b64encode(pem).decode() for name, pem in parts.items()}
    return {"metadata": {"name": CLIENT_SECRET}, "data": data}


async def test_it_is_waited_for_and_can_be_presented(tmp_path: Path) -> None:
    async with (
        ApiServer.start() as api,
        connect(api.kubeconfig(tmp_path / "kubeconfig")) as kube,
        asyncio.TaskGroup() as group,
    ):
        folder = tmp_path / "files"
        waiting = group.create_task(wait_client_certificate(kube, SystemClock(), folder))
        await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        assert not waiting.done()
        await kube.create(SECRETS, a_secret(), namespace=NAMESPACE)
        tls = await waiting

    assert client_context(tls).get_ca_certs()
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert tls.server_name == SERVER_NAME


def test_the_names_are_those_that_are_deployed() -> None:
    assert f"--tls-secret={SERVING_SECRET}" in (DEPLOY / "scheduler.yaml").read_text()
    assert f"secretName: {CLIENT_SECRET}" in (DEPLOY / "scheduler.yaml").read_text()
    assert f"serverName: {SERVER_NAME}" in (DEPLOY / "scheduler-profile.yaml").read_text()
