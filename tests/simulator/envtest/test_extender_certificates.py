"""The Secret that the extender serves from and the files that kube-scheduler presents."""

import asyncio
import base64
import ssl
from pathlib import Path

from certs.authority import read
from fracgpu.names import SYSTEM_NAMESPACE
from kube.access import connect
from kube.kinds import NAMESPACES, SECRETS
from simulator.apiserver.server import ApiServer
from simulator.envtest.extender_certificates import issue_extender_certificates
from simulator.envtest.scheduler_configuration import ExtenderTls


async def issued(folder: Path) -> tuple[dict[str, bytes], ExtenderTls]:
    async with ApiServer.start() as api, connect(api.kubeconfig(folder / "kubeconfig")) as client:
        await client.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})

        tls = await issue_extender_certificates(client, folder, secret="extender-tls")

        stored = await client.get_object(SECRETS, "extender-tls", namespace=SYSTEM_NAMESPACE)
    return {key: base64.b64decode(text) for key, text in stored["data"].items()}, tls


def test_one_authority_has_issued_both_certificates(tmp_path: Path) -> None:
    parts, tls = asyncio.run(issued(tmp_path))

    serving, caller = read(parts["tls.crt"]), read(Path(tls.cert_file).read_bytes())
    authority = read(Path(tls.ca_file).read_bytes())
    assert parts["ca.crt"] == Path(tls.ca_file).read_bytes()
    assert (serving.issuer_key_id, caller.issuer_key_id) == (authority.key_id, authority.key_id)
    assert serving.names == {"127.0.0.1"}
    ssl.create_default_context(cafile=tls.ca_file).load_cert_chain(tls.cert_file, tls.key_file)
