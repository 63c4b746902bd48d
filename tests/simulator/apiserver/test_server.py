import asyncio
import io
import stat
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from kube.access import connect, connect_to
from kube.client import KubeClient
from kube.errors import Invalid
from kube.kinds import CONFIGMAPS, PODS, VALIDATING_WEBHOOKS
from simulator.apiserver.admission.webhooks import Call, CallError
from simulator.apiserver.apimachinery.storage import Store
from simulator.apiserver.server import ApiServer, WebhookClient
from tests.support.objects import a_config, a_pod
from tests.support.waiting import until_true
from tests.support.webhook import an_admission_webhook


async def test_stopping_ends_open_watches_at_once() -> None:
    async with (
        ApiServer.start() as api,
        aiohttp.ClientSession() as session,
        session.get(f"{api.url}/api/v1/pods?watch=true") as stream,
    ):
        async with asyncio.timeout(20):
            await api.stop()
            assert await stream.content.read() == b""


async def test_a_watcher_that_goes_away_is_forgotten(api: ApiServer) -> None:
    async with aiohttp.ClientSession() as session:
        stream = await session.get(f"{api.url}/api/v1/pods?watch=true")
        assert len(api.store._subscriptions["pods"]) == 1
        stream.close()
        async with asyncio.timeout(60):
            while api.store._subscriptions["pods"]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


async def test_the_objects_outlive_a_restart() -> None:
    store = Store()
    async with ApiServer.start(store=store) as first, connect_to(first.url) as kube:
        made = await kube.create(CONFIGMAPS, a_config("a"), namespace="default")
    async with ApiServer.start(store=store) as second, connect_to(second.url) as kube:
        found = await kube.get_object(CONFIGMAPS, "a", namespace="default")

    assert found["metadata"]["uid"] == made["metadata"]["uid"]


async def test_the_kubeconfig_leads_here_and_is_nobody_elses(
    api: ApiServer, tmp_path: Path
) -> None:
    path = api.kubeconfig(tmp_path / "config")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with connect(path) as client:
        assert (await client.list(PODS)).items == []


async def test_the_token_says_who_asks(api: ApiServer, tmp_path: Path) -> None:
    account = "system:serviceaccount:fracgpu-system:rebalancer"
    async with (
        an_admission_webhook() as webhook,
        connect(api.kubeconfig(tmp_path / "config", user=account)) as client,
    ):
        await client.create(VALIDATING_WEBHOOKS, webhook.configuration("w", "pods"))
        await client.create(PODS, a_pod("a"), namespace="default")

    (request,) = webhook.requests
    assert request["userInfo"]["username"] == account
    assert "system:serviceaccounts:fracgpu-system" in request["userInfo"]["groups"]


async def test_warnings_come_in_headers(api: ApiServer, kube: KubeClient) -> None:
    async with an_admission_webhook() as webhook, aiohttp.ClientSession() as session:
        webhook.answer = lambda _: {"allowed": True, "warnings": ['say "please"', "two\nlines"]}
        await kube.create(VALIDATING_WEBHOOKS, webhook.configuration("w", "pods"))

        url = f"{api.url}/api/v1/namespaces/default/pods"
        async with session.post(url, json=a_pod("a")) as response:
            assert response.headers.getall("Warning") == [
                '299 - "say \\"please\\""',
                '299 - "two lines"',
            ]


async def test_a_broken_bundle_is_a_webhook_that_cannot_be_called() -> None:
    client = WebhookClient()
    call = Call(url="https://127.0.0.1:1/", body=b"", ca_pem=b"no certificate", timeout_s=1)

    with pytest.raises(CallError, match="unable to load root certificates"):
        await client.post(call)
    await client.close()


async def test_a_webhook_that_is_slow_is_cut_off() -> None:
    release = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = WebhookClient()
    call = Call(url=f"https://127.0.0.1:{port}/", body=b"", ca_pem=b"", timeout_s=0.1)
    async with server:
        with pytest.raises(CallError, match="context deadline exceeded"):
            await client.post(call)
        release.set()
    await client.close()


async def test_a_webhook_that_answers_with_an_error_is_told_with_its_words() -> None:
    async with an_admission_webhook() as webhook:
        client = WebhookClient()
        call = Call(
            url=webhook.url.replace("/review", "/elsewhere"),
            body=b"{}",
            ca_pem=webhook.ca_pem,
            timeout_s=5,
        )
        with pytest.raises(CallError, match="the webhook answered 404"):
            await client.post(call)
        await client.close()


async def test_an_idle_connection_that_the_webhook_dropped_is_opened_anew() -> None:
    connections = ended = 0

    async def once_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, ended
        connections += 1
        with suppress(asyncio.IncompleteReadError):  # the client closes the second connection
            for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b""):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
        writer.close()
        await writer.wait_closed()
        ended += 1

    server = await asyncio.start_server(once_each, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = WebhookClient()
    call = Call(url=f"http://127.0.0.1:{port}/", body=b"", ca_pem=b"", timeout_s=5)
    async with server:
        assert [await client.post(call) for _ in range(2)] == [b"ok", b"ok"]
        assert connections == 2
        await client.close()
        await until_true(lambda: ended == connections, what="both connections are closed")


async def test_a_body_larger_than_the_servers_limit_is_refused(api: ApiServer) -> None:
    async with aiohttp.ClientSession() as session:
        url = f"{api.url}/api/v1/namespaces/default/configmaps"
        async with session.post(url, data=io.BytesIO(b"x" * (3 * 1024**2 + 1))) as response:
            assert response.status == 413


async def test_a_watch_that_wants_a_list_first_is_refused_so_that_kubectl_lists(
    kube: KubeClient,
) -> None:
    with pytest.raises(Invalid, match="sendInitialEvents"):
        await kube.get_path("/api/v1/pods", query={"watch": "true", "sendInitialEvents": "true"})
