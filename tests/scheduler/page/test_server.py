"""The page's server, on real sockets."""

import asyncio
import json
import socket
import zlib
from collections.abc import Callable

import aiohttp
import pytest

from fracgpu.errors import WireError
from process.clock import SystemClock
from scheduler.page.pieces import Piece
from scheduler.page.requests import SECURITY_HEADERS
from scheduler.page.server import MOST_STREAMS
from tests.support.gpu import some_cards
from tests.support.page import Event, PageCluster, Served, serving
from tests.support.waiting import until_true


def synced(event: Event) -> bool:
    return event.kind == "synced"


def piece(key: str) -> Callable[[Event], bool]:
    return lambda event: event.kind == "piece" and event.data["key"] == key


def a_cluster() -> PageCluster:
    cluster = PageCluster(SystemClock())
    cluster.node("n")
    return cluster


async def test_a_new_client_gets_everything_and_then_every_change() -> None:
    cluster = a_cluster()
    async with serving(cluster) as page, page.events() as events:
        first = await events.until(synced)
        cluster.pod("p", on="n")
        later = await events.until(piece("node/n"))

    assert first[0].kind == "reset"
    assert {event.data["key"] for event in first if event.kind == "piece"} == {"about", "node/n"}
    assert [event.kind for event in later] == ["piece"]
    assert later[0].data["value"]["cards"][0]["slices"][0]["pod"] == "default/p"


async def test_a_document_that_is_gone_comes_without_a_value() -> None:
    cluster = a_cluster()
    async with serving(cluster) as page, page.events() as events:
        await events.until(synced)
        cluster.drop_node("n")
        gone = (await events.until(piece("node/n")))[-1]

    assert gone.data == {"key": "node/n"}


@pytest.mark.parametrize("how", ["header", "query"])
async def test_a_client_that_comes_back_gets_only_what_it_missed(how: str) -> None:
    cluster = a_cluster()
    cluster.node("m")
    async with serving(cluster) as page:
        async with page.events() as events:
            last = [event for event in await events.until(synced) if event.id][-1].id
        cluster.pod("p", on="m")
        path, headers = (
            ("/events", {"Last_Event_ID": last})
            if how == "header"
            else (f"/events?since={last}", {})
        )
        async with page.events(path, **headers) as events:
            missed = await events.until(piece("node/m"))  # the board may hear of it only now

    assert {event.kind for event in missed} <= {"piece", "synced"}
    assert [event.data["key"] for event in missed if event.kind == "piece"] == ["node/m"]


@pytest.mark.parametrize("last", ["other.1", "e1.999999", "e1.-1", "e1.9e9", "e1." + "9" * 99, "."])
async def test_an_id_that_means_nothing_here_begins_anew(last: str) -> None:
    async with serving(a_cluster()) as page, page.events(Last_Event_ID=last) as events:
        assert (await events.next()).kind == "reset"


async def test_a_quiet_cluster_is_heard_of_all_the_same() -> None:
    async with serving(a_cluster(), beat_s=0.05) as page, page.events() as events:
        await events.until(synced)
        beat = await events.next()

    assert beat.kind == "beat"
    assert beat.data["now"].endswith("+00:00")


async def test_the_stream_is_compressed_and_still_comes_at_once() -> None:
    cluster = a_cluster()
    async with (
        serving(cluster) as page,
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.get(f"{page.url}/events", headers={"Accept-Encoding": "gzip"}) as answer,
    ):
        assert answer.headers["Content-Encoding"] == "gzip"
        plain = b""
        unzip = zlib.decompressobj(31)
        async with asyncio.timeout(10):
            while b"event: synced" not in plain:
                plain += unzip.decompress(await answer.content.readany())

    assert b'"key":"node/n"' in plain


async def test_only_so_many_pages_can_be_open_and_one_that_closes_makes_room() -> None:
    cluster = a_cluster()
    async with serving(cluster) as page:
        opened = [page.events() for _ in range(MOST_STREAMS)]
        for each in opened:
            await (await each.__aenter__()).until(synced)

        status, text = await page.get("/events")
        assert (status, "no more are served" in text) == (503, True)

        await opened.pop().__aexit__(None, None, None)

        await until_true(lambda: page.server.streams < MOST_STREAMS, what="its place is free")
        async with page.events() as events:
            assert (await events.next()).kind == "reset"
        for each in opened:
            await each.__aexit__(None, None, None)


async def test_others_have_a_turn_between_two_parts_of_a_large_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = a_cluster()
    for number in range(100):
        cluster.node(f"big-{number}", cards=some_cards(f"big-{number}", count=32))
    turn, taken_in = 0, []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with serving(cluster) as page, asyncio.TaskGroup() as group:
        since = cluster.board.pieces.since

        def noted(version: int, *, most_bytes: int) -> list[Piece]:
            taken_in.append(turn)
            return since(version, most_bytes=most_bytes)

        monkeypatch.setattr(cluster.board.pieces, "since", noted)
        counting = group.create_task(count_turns())
        async with page.events() as events:
            await events.until(synced)
        counting.cancel()

    assert len(taken_in) > 5, "the page comes in several parts"
    # After the last part there is nothing to write but that this was all.
    parts = taken_in[:-2]
    assert len(set(parts)) == len(parts)


async def test_a_client_that_does_not_read_is_dropped_and_holds_up_nobody() -> None:
    cluster = a_cluster()
    for number in range(400):
        cluster.node(f"big-{number}", cards=some_cards(f"big-{number}", count=32))
    async with serving(cluster, write_limit_s=0.5) as page:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", page.port))
            lazy.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with page.events() as events:
                await events.until(synced)
                await until_true(lambda: page.server.streams == 1, what="the lazy one is dropped")


async def test_stopping_ends_the_streams_at_once() -> None:
    cluster = a_cluster()
    async with serving(cluster) as page, page.events() as events:
        await events.until(synced)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(page.server.stop(600.0))
            with pytest.raises((WireError, aiohttp.ClientError)):
                await events.until(lambda _: False)


@pytest.mark.parametrize("path", ["/", "/app.js", "/style.css", "/icon.svg", "/nothing", "/events"])
async def test_every_answer_tells_the_browser_to_be_strict(path: str) -> None:
    async with serving(a_cluster()) as page, page.http.get(f"{page.url}{path}") as answer:
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value


async def test_the_page_and_its_modules_are_served_with_their_types() -> None:
    async with serving(a_cluster()) as page:
        async with page.http.get(f"{page.url}/") as answer:
            assert answer.content_type == "text/html"
            tag = answer.headers["ETag"]
        async with page.http.get(f"{page.url}/app.js") as answer:
            assert answer.content_type == "text/javascript"
        status, _ = await page.get("/", If_None_Match=tag)

    assert status == 304


@pytest.mark.parametrize(
    "path", ["/index.html", "/../server.py", "/static/app.js", "/metrics", "/bind"]
)
async def test_nothing_else_is_served(path: str) -> None:
    async with serving(a_cluster()) as page:
        assert (await page.get(path))[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/events", "/explain"])
async def test_nothing_can_be_written(method: str, path: str) -> None:
    async with serving(a_cluster()) as page:
        assert (await page.get(path, method=method))[0] == 405


async def test_a_head_request_opens_no_stream() -> None:
    async with serving(a_cluster()) as page:
        assert (await page.get("/", method="HEAD"))[0] == 200
        assert (await page.get("/events", method="HEAD"))[0] == 405


@pytest.mark.parametrize("path", ["/", "/app.js", "/events", "/explain?namespace=a&pod=b"])
async def test_another_host_name_and_another_site_are_refused(path: str) -> None:
    async with serving(a_cluster()) as page:
        assert (await page.get(path, Host="evil.example"))[0] == 403
        assert (await page.get(path, Origin="http://evil.example"))[0] == 403
        assert (await page.get(path, Sec_Fetch_Site="cross-site"))[0] == 403


async def test_it_listens_on_loopback_alone() -> None:
    async with serving(a_cluster()) as page:
        listening = await listening_addresses(page)

    assert listening == ["127.0.0.1"]


async def listening_addresses(page: Served) -> list[str]:
    runner = page.server._runner
    assert runner is not None
    return [address[0] for address in runner.addresses]


async def test_a_replica_that_waits_says_why_it_serves_nothing() -> None:
    async with serving(a_cluster(), why_not=lambda: "another replica leads") as page:
        for path in ("/", "/events", "/explain"):
            assert await page.get(path) == (503, "another replica leads\n")


async def test_why_a_pod_waits_is_answered_as_json() -> None:
    cluster = a_cluster()
    cluster.pod("p", mib=30_000)
    async with serving(cluster) as page:
        status, text = await page.get("/explain?namespace=default&pod=p")
        missing, _ = await page.get("/explain?namespace=default&pod=q")

    assert (status, missing) == (200, 404)
    found = json.loads(text)
    assert found["explanation"]["verdict"] == "does not fit"
    assert (
        found["explanation"]["nodes"][0]["cards"][0]["reason"]
        == "too little free memory for 30000 MiB"
    )


async def test_what_is_asked_is_bounded() -> None:
    async with serving(a_cluster()) as page:
        status, _ = await page.get(f"/explain?namespace=default&pod={'p' * 100_000}")

    assert status == 400


async def test_texts_of_the_cluster_arrive_as_they_are() -> None:
    cluster = a_cluster()
    odd = "</script><img src=x onerror=alert(1)>\n\ndata: x\u2028"
    cluster.node("n", cordons=odd)
    async with serving(cluster) as page, page.events() as events:
        found = await events.until(piece("node/n"))

    assert found[-1].data["value"]["name"] == "n"
    assert "cordons" in found[-1].data["value"]["trouble"]
