import asyncio
import base64
import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kube.access import connect, connect_to, own_namespace
from kube.errors import AccessError, Unavailable
from kube.kinds import NODES
from tests.support.scripted import a_server, answering, json_answer


def a_kubeconfig(path: Path, *, server: str, user: dict[str, Any], **cluster: Any) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without any configuration of an API server."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


async def bearer(kubeconfig: Path | None, server_heard: list[Any]) -> str:
    async with connect(kubeconfig) as client:
        await client.get_path("/version")
    authorization: str = server_heard[-1].headers["Authorization"]
    return authorization


@pytest.mark.parametrize("where", ["an argument", "the environment", "the home directory"])
async def test_a_kubeconfig_is_named_or_in_the_home_directory(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path = nowhere / ".kube" / "config" if where == "the home directory" else nowhere / "mine"
    path.parent.mkdir(exist_ok=True)
    if where == "the environment":
        monkeypatch.setenv("KUBECONFIG", f"{nowhere / 'missing'}{os.pathsep}{path}")
    async with a_server(answering(json_answer({}))) as server:
        a_kubeconfig(path, server=server.url, user={"token": "t"})

        used = await bearer(path if where == "an argument" else None, server.heard)

    assert used == "Bearer t"


async def test_without_any_kubeconfig_the_error_says_what_to_do(nowhere: Path) -> None:
    with pytest.raises(AccessError, match=r"no kubeconfig at '~/\.kube/config' that can be read"):
        async with connect():
            pass


async def test_the_kubeconfig_of_nobodys_home_is_none(nowhere: Path) -> None:
    with pytest.raises(AccessError, match="no kubeconfig at '~no-such-user/config'"):
        async with connect("~no-such-user/config"):
            pass


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "just words", '{"current-context": "x"}', "clusters: 3\ncurrent-context: x"],
)
async def test_a_broken_kubeconfig_is_named(nowhere: Path, text: str) -> None:
    path = nowhere / "broken"
    path.write_text(text)

    with pytest.raises(AccessError, match=r"cannot use kubeconfig '.*broken'"):
        async with connect(path):
            pass
    with pytest.raises(AccessError, match=r"cannot use kubeconfig '.*broken'"):
        own_namespace(path)


async def test_a_certificate_that_is_none_is_an_access_error(nowhere: Path) -> None:
    path = a_kubeconfig(
        nowhere / "mine",
        server="https://127.0.0.1:1",
        user={"token": "t"},
        **{"certificate-authority-data": base64.b64encode(b"no PEM").decode()},
    )

    with pytest.raises(AccessError, match="cannot use the credentials"):
        async with connect(path):
            pass


async def test_inside_a_cluster_a_missing_service_account_is_named(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")

    with pytest.raises(AccessError, match="in-cluster service account"):
        async with connect():
            pass


PLUGIN = """#!{python}
import json, pathlib
count = pathlib.Path({count!r})
runs = int(count.read_text()) + 1
count.write_text(str(runs))
if runs > {most}:
    raise SystemExit("no more tokens")
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {{"token": f"run-{{runs}}", "expirationTimestamp": {expiry!r}}}}}))
"""


def an_exec_plugin(folder: Path, *, life: timedelta, most: int = 99) -> dict[str, Any]:
    """A credential plugin that counts its runs; its tokens are good for *life*."""
    now = datetime.now(tz=UTC)  # noqa: TID251 - the library looks at the real time
    count, plugin = folder / "count", folder / "plugin"
    count.write_text("0")
    expiry = (now + life).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = PLUGIN.format(python=sys.executable, count=str(count), expiry=expiry, most=most)
    plugin.write_text(text)
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}}


@pytest.mark.parametrize(
    ("hours", "runs"),
    [pytest.param(1, (1, 1), id="is kept"), pytest.param(-1, (2, 3), id="has expired")],
)
async def test_an_exec_plugins_token_is_kept_while_it_is_good(
    nowhere: Path, hours: int, runs: tuple[int, int]
) -> None:
    user = an_exec_plugin(nowhere, life=timedelta(hours=hours))
    async with a_server(answering(json_answer({}))) as server:
        path = a_kubeconfig(nowhere / "mine", server=server.url, user=user)
        async with connect(path) as client:
            await client.get_path("/version")
            await client.get_path("/version")

    tokens = [heard.headers["Authorization"] for heard in server.heard]
    assert tokens == [f"Bearer run-{run}" for run in runs]


async def test_an_exec_plugin_that_fails_later_is_an_access_error(nowhere: Path) -> None:
    user = an_exec_plugin(nowhere, life=timedelta(hours=-1), most=1)
    async with a_server(answering(json_answer({}))) as server:
        path = a_kubeconfig(nowhere / "mine", server=server.url, user=user)
        async with connect(path) as client:
            with pytest.raises(AccessError, match="the exec plugin returned no credentials"):
                await client.get_path("/version")

    assert server.heard == []


def test_only_those_who_connect_pay_for_loading_the_client_library() -> None:
    program = (
        "import sys, kube.client, kube.events, kube.informer, kube.leader_election\n"
        "print([name for name in ('aiohttp', 'kubernetes_asyncio') if name in sys.modules])"
    )

    loaded = subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert loaded.stdout == "[]\n"


async def test_a_plain_address_needs_no_configuration(nowhere: Path) -> None:
    async with (
        a_server(answering(json_answer({"a": 1}))) as server,
        connect_to(f"{server.url}/") as client,
    ):
        assert await client.get_path("/version") == b'{"a": 1}'

    assert server.heard[0].path == "/version"


def two_contexts(path: Path, servers: dict[str, str]) -> Path:
    """Write a kubeconfig with a context for each server, by its token; the first is current."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server}} for name, server in servers.items()
        ],
        "users": [{"name": name, "user": {"token": name}} for name in servers],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}
            for name in servers
        ],
        "current-context": next(iter(servers)),
    }
    path.write_text(json.dumps(content))
    return path


async def test_a_context_is_chosen_by_its_name_even_inside_of_a_cluster(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_server(answering(json_answer({}))) as server:
        path = two_contexts(nowhere / "two", {"a": server.url, "b": server.url})
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        async with connect(context="b") as client:
            await client.get_path("/version")

    assert server.heard[-1].headers["Authorization"] == "Bearer b"


async def test_a_context_that_does_not_exist_is_an_error(nowhere: Path) -> None:
    path = two_contexts(nowhere / "two", {"a": "http://127.0.0.1:1"})

    message = "it has no context 'zz'; want one of its contexts: a$"
    with pytest.raises(AccessError, match=message):
        async with connect(path, context="zz"):
            pass
    with pytest.raises(AccessError, match=message):
        own_namespace(path, context="zz")


def test_the_namespace_is_that_of_the_context(nowhere: Path) -> None:
    path = two_contexts(nowhere / "two", {"a": "http://x", "b": "http://y"})
    plain = a_kubeconfig(nowhere / "plain", server="http://x", user={})

    assert own_namespace(path) == "of-a"
    assert own_namespace(path, context="b") == "of-b"
    assert own_namespace(plain) == "default"
    with pytest.raises(AccessError, match="no kubeconfig at"):
        own_namespace(nowhere / "missing")


async def test_a_request_is_given_up_after_the_time_that_was_asked_for(nowhere: Path) -> None:
    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with a_server(silent) as server:
        path = a_kubeconfig(nowhere / "mine", server=server.url, user={})
        async with connect(path, timeout_s=0.2) as client:
            with pytest.raises(Unavailable) as caught:
                await client.create(NODES, {"metadata": {"name": "n"}})

    assert caught.value.reason == "Timeout"
