"""What of a kubeconfig reaches the connection: read here, handled by the library."""

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from certs.authority import make_ca
from kube.credentials.in_cluster import in_cluster_server
from kube.credentials.kubeconfig import server_of_kubeconfig
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


PLAIN: Final[Mapping[str, Any]] = {
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"}}],
    "users": [{"name": "u", "user": {"token": "secret"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


def but(**changes: Any) -> bytes:
    return json.dumps({**PLAIN, **changes}).encode()


def context(**fields: Any) -> list[Any]:
    return [{"name": "x", "context": {"cluster": "c", "user": "u", **fields}}]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty; want a kubeconfig as `kubectl config view --raw` prints it"),
        (b"# nothing yet\n", "it is empty; want"),
        (b"- a\n", "it is a list; want"),
        (bytes(range(256)), "it is no YAML ('utf-8' codec can't decode byte 0x80"),
        (
            b"users: [{name: u, user: {token: secret}\n",
            "it is no YAML (while parsing a flow mapping",
        ),
        (b"[" * 5000, "it is no YAML ("),
        (b"current-context: !!timestamp noon", "it is no YAML ("),
        (but(clusters={"c": 1}), "it has clusters that are a dict; want"),
        (but(contexts=[{"context": {}}]), "it has an entry without a name in contexts; want"),
        (but(users=[{"name": "u", "user": "me"}]), "it has a user 'u' without fields; want"),
        (
            but(**{"current-context": ""}),
            "it has no current-context; want one of its contexts: x",
        ),
        (but(**{"current-context": "y"}), "it has no context 'y'; want one of its contexts: x"),
        (
            but(contexts=context(cluster="d")),
            "it has context 'x' with cluster 'd', which is not there; want one of its clusters: c",
        ),
        (
            but(contexts=context(user="v")),
            "it has context 'x' with user 'v', which is not there; want one of its users: u",
        ),
        (but(users=None), "it has context 'x' with user 'u', which is not there; it has no users"),
        (
            but(contexts=context(user=None)),
            "it has context 'x' with user None, which is not there; want one of its users: u",
        ),
        (
            but(clusters=[{"name": "c", "cluster": {"server": 5}}]),
            "it has cluster 'c' with server 5; want an address, e.g. https://10.0.0.1:6443",
        ),
    ],
)
async def test_an_unusable_file_is_named_with_what_was_there_and_what_was_wanted(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)

    with pytest.raises(AccessError) as caught:
        await read(str(path))

    assert str(caught.value).startswith(f"cannot use kubeconfig '{path}': {problem}")
    assert "secret" not in str(caught.value)


async def test_of_several_files_the_one_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    good, missing = written(tmp_path / "good"), tmp_path / "missing"
    assert (await read(f"{missing}{os.pathsep}{good}")).url == "https://10.0.0.1:6443"

    (tmp_path / "folder").mkdir()
    with pytest.raises(AccessError, match=r"cannot use kubeconfig '.*folder': it cannot be read"):
        await read(f"{good}{os.pathsep}{tmp_path / 'folder'}")


async def test_of_several_files_the_first_says_which_context_is_current(tmp_path: Path) -> None:
    """As kubectl takes it: a command of ours reaches the cluster that one of kubectl's does."""
    none, one, other = (tmp_path / name for name in ("none", "one", "other"))
    none.write_bytes(but(clusters=[], users=[], contexts=[], **{"current-context": ""}))
    one.write_bytes(but())
    server = {"server": "https://10.0.0.2:6443"}
    other.write_bytes(
        but(
            clusters=[{"name": "d", "cluster": server}],
            contexts=[{"name": "y", "context": {"cluster": "d", "user": "u"}}],
            **{"current-context": "y"},
        )
    )

    urls = [
        (await read(os.pathsep.join(map(str, paths)))).url
        for paths in ((none, one, other), (none, other, one))
    ]

    assert urls == ["https://10.0.0.1:6443", "https://10.0.0.2:6443"]


async def test_address_token_and_authority_are_those_of_the_context(tmp_path: Path) -> None:
    authority = make_ca(name="test", now=NOON, life=timedelta(days=1)).cert_pem
    data: dict[str, Any] = {"certificate-authority-data": base64.b64encode(authority).decode()}

    server = await read(written(tmp_path / "kubeconfig", user={"token": "t"}, **data))

    assert (server.url, server.user_agent) == ("https://10.0.0.1:6443", "test")
    assert await server.authorization() == "Bearer t"
    assert server.tls is not None
    assert len(server.tls.get_ca_certs()) == 1
    assert server.tls.verify_mode is ssl.CERT_REQUIRED


async def test_a_file_is_looked_for_beside_the_kubeconfig_that_names_it(tmp_path: Path) -> None:
    authority = make_ca(name="test", now=NOON, life=timedelta(days=1))
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    (one / "ca.crt").write_bytes(authority.cert_pem)
    (other / "client.crt").write_bytes(authority.cert_pem)
    (other / "client.key").write_bytes(authority.key_pem)
    (other / "token").write_text("t")
    files = {"client-certificate": "client.crt", "client-key": "client.key", "tokenFile": "token"}
    user = json.dumps({"users": [{"name": "u", "user": files}]})
    (other / "config").write_text(user)
    cluster = json.loads(but())
    cluster["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
    del cluster["users"]
    (one / "config").write_text(json.dumps(cluster))
    paths = f"{one / 'config'}{os.pathsep}{os.pathsep}{other / 'config'}"

    server = await read(paths)

    assert server.tls is not None
    assert len(server.tls.get_ca_certs()) == 1
    assert await server.authorization() == "Bearer t"
    (other / "client.key").write_text("no PEM")
    with pytest.raises(AccessError, match="cannot use the credentials for https:"):
        await read(paths)


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


VARIABLES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture(scope="module")
def ca_text() -> bytes:
    return make_ca(name="test", now=NOON, life=timedelta(days=1)).cert_pem


@pytest.fixture
def folder(tmp_path: Path, ca_text: bytes) -> Path:
    """The files of a service account."""
    (tmp_path / "ca.crt").write_bytes(ca_text)
    (tmp_path / "token").write_text("first\n")
    return tmp_path


def server_in(
    folder: Path, *, variables: Mapping[str, str] = VARIABLES, now_s: list[float] | None = None
) -> ApiServer:
    times = [0.0] if now_s is None else now_s
    return in_cluster_server(
        user_agent="test", environment=variables, folder=folder, monotonic=lambda: times[0]
    )


def presented(server: ApiServer) -> str:
    async def asked() -> str:
        return await server.authorization()

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
def test_the_address_is_that_of_the_variables(folder: Path, host: str, url: str) -> None:
    server = server_in(folder, variables={**VARIABLES, "KUBERNETES_SERVICE_HOST": host})

    assert server.url == url
    assert presented(server) == "Bearer first"


def test_a_token_is_presented_for_a_minute_and_then_read_again(folder: Path) -> None:
    now_s = [1000.0]
    server = server_in(folder, now_s=now_s)
    (folder / "token").write_text("second")

    now_s[0] += 59
    assert presented(server) == "Bearer first"
    now_s[0] += 1
    assert presented(server) == "Bearer second"


@pytest.mark.parametrize("text", [None, "", " \n", "nö"])
def test_a_token_that_cannot_be_read_again_is_presented_as_it_was(
    folder: Path, text: str | None
) -> None:
    now_s = [0.0]
    server = server_in(folder, now_s=now_s)
    if text is None:
        (folder / "token").unlink()
    else:
        (folder / "token").write_text(text)

    now_s[0] += 61
    assert presented(server) == "Bearer first"
    (folder / "token").write_text("third")
    assert presented(server) == "Bearer third"


def test_only_the_clusters_own_authority_is_trusted(folder: Path, ca_text: bytes) -> None:
    tls = server_in(folder).tls

    assert tls is not None
    assert len(tls.get_ca_certs()) == 1
    assert tls.check_hostname


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_missing_is_named(folder: Path, name: str, value: str | None) -> None:
    variables = {key: text for key, text in VARIABLES.items() if key != name}
    if value is not None:
        variables[name] = value

    with pytest.raises(AccessError, match=f"in-cluster service account: .*{name} is ''"):
        server_in(folder, variables=variables)


@pytest.mark.parametrize("name", ["token", "ca.crt"])
@pytest.mark.parametrize("text", [None, ""])
def test_a_file_that_is_missing_or_empty_is_an_access_error(
    folder: Path, name: str, text: str | None
) -> None:
    file = folder / name
    file.unlink()
    if text is not None:
        file.write_text(text)

    with pytest.raises(AccessError, match="cannot use the in-cluster service account"):
        server_in(folder)


def test_a_role_in_a_pod_loads_nothing_of_the_client_library() -> None:
    program = (
        "import sys, webhook.service, scheduler.service, rebalancer.service, certs.service\n"
        "import deviceplugin.service\n"
        "print([name for name in sys.modules if name.startswith('kubernetes_asyncio')])"
    )

    loaded = subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=110
    )

    assert loaded.stdout == "[]\n"
