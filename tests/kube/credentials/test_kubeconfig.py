"""What of a kubeconfig reaches the connection; the library reads it."""

import base64
import json
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.authority import make_ca
from kube.credentials.kubeconfig import namespace_of_kubeconfig, server_of_kubeconfig
from kube.errors import AccessError
from kube.transport import ApiServer
from tests.fakes.clock import NOON


def written(path: Path, *, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return str(path)


async def read(paths: str) -> ApiServer:
    return await server_of_kubeconfig(paths, context=None, user_agent="test")


async def test_address_token_and_authority_are_those_of_the_context(tmp_path: Path) -> None:
    authority = make_ca(name="test", now=NOON, life=timedelta(days=1)).cert_pem
    data: dict[str, Any] = {"certificate-authority-data": base64.b64encode(authority).decode()}

    server = await read(written(tmp_path / "kubeconfig", user={"token": "t"}, **data))

    assert (server.url, server.user_agent) == ("https://10.0.0.1:6443", "test")
    assert await server.authorization() == "Bearer t"
    assert server.tls is not None
    assert len(server.tls.get_ca_certs()) == 1
    assert server.tls.verify_mode is ssl.CERT_REQUIRED


async def test_without_credentials_nothing_is_presented(tmp_path: Path) -> None:
    server = await read(written(tmp_path / "kubeconfig"))

    assert await server.authorization() == ""


async def test_the_systems_authorities_are_read_for_an_api_server_with_tls_only(
    tmp_path: Path,
) -> None:
    trusting = await read(written(tmp_path / "with"))
    plain = await read(written(tmp_path / "without", server="http://127.0.0.1:8080"))

    assert trusting.tls is not None
    assert trusting.tls.verify_mode is ssl.CERT_REQUIRED
    assert plain.tls is None


async def test_what_the_cluster_says_of_tls_and_proxy_is_kept(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "insecure-skip-tls-verify": True,
        "tls-server-name": "kubernetes.default",
        "proxy-url": "http://p:3128",
    }

    server = await read(written(tmp_path / "kubeconfig", **odd))

    assert server.tls is not None
    assert server.tls.verify_mode is ssl.CERT_NONE
    assert (server.tls_server_name, server.proxy) == ("kubernetes.default", "http://p:3128")


async def test_a_client_certificate_that_is_none_is_an_access_error(tmp_path: Path) -> None:
    user = {
        "client-certificate-data": base64.b64encode(b"no PEM").decode(),
        "client-key-data": base64.b64encode(b"no PEM").decode(),
    }

    with pytest.raises(AccessError, match="cannot use the credentials for https:"):
        await read(written(tmp_path / "kubeconfig", user=user))


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    paths = written(tmp_path / "kubeconfig")

    assert namespace_of_kubeconfig(paths, context=None) == "ml"
