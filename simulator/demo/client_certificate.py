"""The client certificate with which the demo's kube-scheduler calls the extender.

The certs role makes it, as on a cluster. There kubelet mounts the Secret, and starts
kube-scheduler only when the Secret is there; here it is written into a folder.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fracgpu import names
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import SECRETS
from process.clock import Clock
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY, read_secret
from simulator.envtest.scheduler_configuration import ExtenderTls

# As in deploy/scheduler.yaml and deploy/scheduler-profile.yaml.
SERVING_SECRET: Final = "fracgpu-scheduler-tls"  # noqa: S105 - a name
CLIENT_SECRET: Final = "fracgpu-scheduler-client"  # noqa: S105 - a name
SERVER_NAME: Final = f"fracgpu-scheduler.{names.SYSTEM_NAMESPACE}.svc"
_FILES: Final = (CERT_KEY, PRIVATE_KEY_KEY, CA_KEY)
_POLL_S: Final = 0.2
_NAMESPACE: Final = names.SYSTEM_NAMESPACE


async def wait_client_certificate(kube: KubeClient, clock: Clock, folder: Path) -> ExtenderTls:
    """Wait for the Secret, write its files into *folder*, and return where they are."""
    while True:
        try:
            found = read_secret(await kube.get(SECRETS, CLIENT_SECRET, namespace=_NAMESPACE))
        except (KubeError, ValueError):
            found = {}
        if all(found.get(name) for name in _FILES):
            break
        await clock.sleep(_POLL_S)
    _write(found, folder)
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
