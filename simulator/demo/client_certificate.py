"""The client certificate with which the demo's kube-scheduler calls the extender.

The certs role makes it, as on a cluster. There kubelet mounts the Secret, and starts
kube-scheduler only when the Secret is there; here it is written into a folder.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from fracgpu import names
from kube.client import KubeClient
from kube.informer import Informer
from kube.kinds import SECRETS
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY, read_secret
from simulator.envtest.scheduler_configuration import ExtenderTls

# As in deploy/scheduler.yaml and deploy/scheduler-profile.yaml.
SERVING_SECRET: Final = "fracgpu-scheduler-tls"  # noqa: S105 - a name
CLIENT_SECRET: Final = "fracgpu-scheduler-client"  # noqa: S105 - a name
SERVER_NAME: Final = f"fracgpu-scheduler.{names.SYSTEM_NAMESPACE}.svc"
_FILES: Final = (CERT_KEY, PRIVATE_KEY_KEY, CA_KEY)


async def with_client_certificate(
    kube: KubeClient, folder: Path, run: Callable[[ExtenderTls], Coroutine[Any, Any, None]]
) -> None:
    """Write the Secret's files into *folder* and run kube-scheduler with them, until cancelled.

    It is started anew with each change: it reads the CA of an extender only when it starts.
    """
    changed = asyncio.Event()
    secrets = Informer(
        kube,
        SECRETS,
        decode=read_secret,
        namespace=names.SYSTEM_NAMESPACE,
        field_selector=f"metadata.name={CLIENT_SECRET}",
        on_change=lambda _: changed.set(),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(secrets.run(), name="kube-scheduler certificate")
        running: asyncio.Task[None] | None = None
        written: Mapping[str, bytes] = {}
        while True:
            await changed.wait()
            changed.clear()
            found = secrets.get(names.SYSTEM_NAMESPACE, CLIENT_SECRET) or {}
            if found == written or not all(found.get(name) for name in _FILES):
                continue
            if running is not None:
                running.cancel()
                await asyncio.wait([running])
            _write(found, folder)
            written = found
            running = group.create_task(run(_tls(folder)), name="kube-scheduler")


def _tls(folder: Path) -> ExtenderTls:
    return ExtenderTls(
        ca_file=str(folder / CA_KEY),
        cert_file=str(folder / CERT_KEY),
        key_file=str(folder / PRIVATE_KEY_KEY),
        server_name=SERVER_NAME,
    )


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in _FILES:
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(files[name])


def client_context(tls: ExtenderTls) -> ssl.SSLContext:
    """Return the context of a client that trusts the authority in *tls* and no other."""
    context = ssl.create_default_context(cafile=tls.ca_file)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    return context
