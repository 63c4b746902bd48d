"""Certificates for a real kube-scheduler that calls our extender over mutual TLS."""

import base64
from datetime import timedelta
from pathlib import Path
from typing import Final

from certs.authority import make_ca, make_client, make_serving
from fracgpu import names
from kube.client import KubeClient
from kube.kinds import SECRETS
from process.clock import SystemClock
from simulator.envtest.scheduler_configuration import ExtenderTls

_LIFE: Final = timedelta(hours=1)


async def issue_extender_certificates(
    client: KubeClient, folder: Path, *, secret: str
) -> ExtenderTls:
    """Write the extender's certificate to a Secret, and kube-scheduler's to files in *folder*.

    The extender listens on 127.0.0.1; one authority has issued both, for an hour.

    Raises:
        KubeError: the Secret could not be created.
    """
    now = SystemClock().now()
    ca = make_ca(name="envtest CA", now=now, life=_LIFE)
    serving = make_serving(ca, names=("127.0.0.1",), now=now, life=_LIFE)
    caller = make_client(ca, name=names.SCHEDULER_NAME, now=now, life=_LIFE)
    parts = {"tls.crt": serving.cert_pem, "tls.key": serving.key_pem, "ca.crt": ca.cert_pem}
    stored = {
        "metadata": {"name": secret, "namespace": names.SYSTEM_NAMESPACE},
        "data": {key: base64.b64encode(pem).decode() for key, pem in parts.items()},
    }
    await client.create(SECRETS, stored)
    files = {"ca.crt": ca.cert_pem, "tls.crt": caller.cert_pem, "tls.key": caller.key_pem}
    for name, pem in files.items():
        (folder / name).write_bytes(pem)
    ca_file, cert_file, key_file = (str(folder / name) for name in files)
    return ExtenderTls(ca_file=ca_file, cert_file=cert_file, key_file=key_file)
