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
from simulator.background import background
from simulator.demo.client_certificate import (
    CLIENT_SECRET,
    SERVER_NAME,
    SERVING_SECRET,
    client_context,
    with_client_certificate,
)
from simulator.envtest.scheduler_configuration import ExtenderTls
from tests.support.kubectl import DEPLOY

NAMESPACE = "fracgpu-system"


def a_secret() -> dict[str, object]:
    """Return the Secret as the certs role writes it, of an authority of its own."""
    now, life = SystemClock().now(), timedelta(hours=1)
    authority = make_ca(name="ca", now=now, life=life)
    client = make_client(authority, name="fracgpu-scheduler", now=now, life=life)
    parts = {"tls.crt": client.cert_pem, "tls.key": client.key_pem, "ca.crt": authority.cert_pem}
    data = {name: base64.b64encode(pem).decode() for name, pem in parts.items()}
    return {"metadata": {"name": CLIENT_SECRET}, "data": data}


async def test_kube_scheduler_is_started_with_it_and_anew_with_another_authority(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "files"
    started: asyncio.Queue[str] = asyncio.Queue()
    ended: list[str] = []

    async def run(tls: ExtenderTls) -> None:
        (authority,) = client_context(tls).get_ca_certs()
        serial = str(authority["serialNumber"])
        assert tls.server_name == SERVER_NAME
        started.put_nowait(serial)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(serial)

    async with (
        ApiServer.start() as api,
        connect(api.kubeconfig(tmp_path / "kubeconfig")) as kube,
        background(with_client_certificate(kube, folder, run)),
    ):
        await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await kube.create(SECRETS, a_secret(), namespace=NAMESPACE)
        first = await started.get()
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        marks = {"metadata": {"annotations": {"fracgpu.io/rotate": "now"}}}
        await kube.patch(SECRETS, CLIENT_SECRET, marks, namespace=NAMESPACE)
        data = {"data": a_secret()["data"]}
        await kube.patch(SECRETS, CLIENT_SECRET, data, namespace=NAMESPACE)
        assert await started.get() != first
        assert ended == [first]

    assert started.empty(), "a mark alone starts nothing"


def test_the_names_are_those_that_are_deployed() -> None:
    assert f"--tls-secret={SERVING_SECRET}" in (DEPLOY / "scheduler.yaml").read_text()
    assert f"secretName: {CLIENT_SECRET}" in (DEPLOY / "scheduler.yaml").read_text()
    assert f"serverName: {SERVER_NAME}" in (DEPLOY / "scheduler-profile.yaml").read_text()
