import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import Gone, KubeDecodeError, KubeError, Unavailable
from kube.informer import Change, Informer
from kube.kinds import CONFIGMAPS, PODS
from kube.objects import ObjectKey
from kube.retry import RetryPolicy
from kube.watch import Selection, WatchEvent, WatchLimits, read_event, watch
from tests.fakes.collection import Collection, HowGone, a_collection
from tests.support.scripted import Handler, a_server
from tests.support.waiting import until_true

FAST = RetryPolicy(attempts=1, first_pause_s=0.005, longest_pause_s=0.02)


def value_of(body: bytes) -> str:
    """Decode an object of the fake collection; the value "bad" cannot be decoded."""
    value = str(json.loads(body)["value"])
    if value == "bad":
        raise ValueError("it is bad")
    return value


@dataclass
class Rig:
    """A running informer, the collection it follows, and the changes it reported."""

    collection: Collection
    informer: Informer[str]
    changes: list[Change[str]] = field(default_factory=list)

    @property
    def reported(self) -> list[tuple[str, str, str]]:
        return [(one.type.value, one.key.name, one.object) for one in self.changes]

    async def tells(self, count: int) -> list[tuple[str, str, str]]:
        """Wait for *count* changes in all and return them."""
        await until_true(lambda: len(self.changes) >= count, what=f"{count} changes")
        return self.reported

    async def watching(self) -> None:
        await until_true(lambda: self.collection.open_watches == 1, what="an open watch")


@asynccontextmanager
async def following(
    *names: str, decode: Callable[[bytes], str] = value_of, limits: WatchLimits | None = None
) -> AsyncIterator[Rig]:
    """Follow a collection that begins with *names*; it is synced when the block begins."""
    changes: list[Change[str]] = []
    async with a_collection() as (collection, url), connect_to(url) as client:
        for name in names:
            collection.put(name, "old")
        informer = Informer(
            client.with_retry(FAST),
            CONFIGMAPS,
            decode=decode,
            on_change=changes.append,
            backoff=FAST,
            limits=limits or WatchLimits(),
        )
        rig = Rig(collection, informer, changes)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(informer.run(), name="informer")
            async with asyncio.timeout(10):
                await informer.wait_synced()
            await rig.watching()
            yield rig
            running.cancel()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with following("a") as rig:
        yield rig


async def test_the_first_list_is_told_as_added() -> None:
    async with following("a", "b") as rig:
        assert rig.reported == [("ADDED", "a", "old"), ("ADDED", "b", "old")]
        assert rig.informer.synced
        assert rig.informer.get("ml", "a") == "old"
        assert rig.informer.get("ml", "nobody") is None
        assert {str(key) for key in rig.informer.items()} == {"ml/a", "ml/b"}


async def test_a_run_that_lists_again_is_synced_anew_and_tells_only_what_differs() -> None:
    changes: list[Change[str]] = []
    async with a_collection() as (collection, url), connect_to(url) as client:
        informer = Informer(
            client.with_retry(FAST), CONFIGMAPS, decode=value_of, on_change=changes.append
        )
        collection.put("a", "old")
        for turn in (1, 2):
            async with asyncio.TaskGroup() as group:
                running = group.create_task(informer.run(), name=f"run {turn}")
                async with asyncio.timeout(10):
                    await informer.wait_synced()
                running.cancel()
            if turn == 1:
                changes.clear()
                collection.put("b", "new")
                collection.remove("a")
                informer.list_again()
                assert not informer.synced
                assert informer.get("ml", "a") == "old"

        reported = [(one.type.value, one.key.name, one.object) for one in changes]
        assert reported == [("ADDED", "b", "new"), ("DELETED", "a", "old")]


async def test_a_list_that_may_not_be_read_says_which_right_is_missing_until_it_is_read() -> None:
    allowed: list[bool] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if not allowed:
            status = {"reason": "Forbidden", "message": 'User "agent" cannot list configmaps'}
            return web.json_response(status, status=403)
        if "watch" in request.query:
            await asyncio.Event().wait()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async with a_server(handler) as server, connect_to(server.url) as client:
        informer = Informer(client.with_retry(FAST), CONFIGMAPS, decode=value_of, backoff=FAST)
        assert informer.problem == "the API server has not listed configmaps yet"
        async with asyncio.TaskGroup() as group:
            running = group.create_task(informer.run())
            await until_true(lambda: bool(informer.failure), what="the refusal is known")
            begin, _, end = str(informer.problem).partition(": kube-apiserver answered 403 ")
            assert begin == "the API server has not listed configmaps yet"
            assert end.endswith('User "agent" cannot list configmaps')
            allowed.append(True)
            await until_true(lambda: informer.problem is None, what="it is read")
            running.cancel()


async def test_every_change_is_told_once_and_is_already_in_the_copy(rig: Rig) -> None:
    rig.collection.put("a", "new")
    rig.collection.put("b", "first")
    rig.collection.remove("a")

    assert (await rig.tells(4))[1:] == [
        ("MODIFIED", "a", "new"),
        ("ADDED", "b", "first"),
        ("DELETED", "a", "new"),
    ]
    assert dict(rig.informer.items()) == {ObjectKey("ml", "b"): "first"}


async def test_a_change_carries_the_uid_and_version_of_its_object(rig: Rig) -> None:
    rig.collection.put("a", "new")
    await rig.tells(2)

    assert [change.uid for change in rig.changes] == ["uid-1", "uid-1"]
    assert rig.changes[-1].resource_version == rig.collection.version


async def test_a_watch_that_ended_goes_on_where_it_was_without_a_list(rig: Rig) -> None:
    rig.collection.put("a", "1")
    await rig.tells(2)
    version = rig.collection.version
    rig.collection.cut()
    rig.collection.put("a", "2")

    assert await rig.tells(3) == [
        ("ADDED", "a", "old"),
        ("MODIFIED", "a", "1"),
        ("MODIFIED", "a", "2"),
    ]
    assert rig.collection.lists == 1
    assert rig.collection.watches[1] == version


async def test_a_bookmark_moves_the_place_to_go_on_from(rig: Rig) -> None:
    rig.collection.bookmark()
    rig.collection.cut()
    await until_true(lambda: len(rig.collection.watches) == 2, what="a second watch")

    assert rig.collection.watches[1] == rig.collection.version
    assert len(rig.changes) == 1


@pytest.mark.parametrize("how", HowGone)
async def test_after_gone_a_new_list_tells_only_what_was_missed(how: HowGone) -> None:
    async with following("kept", "changed", "vanished", "reborn") as rig:
        rig.collection.how_gone = how
        rig.collection.down = True
        rig.collection.cut()
        await until_true(lambda: rig.collection.open_watches == 0, what="no watch")
        rig.collection.put("changed", "new")
        rig.collection.remove("vanished")
        rig.collection.put("reborn", "second life", reborn=True)
        rig.collection.put("added", "first")
        rig.collection.forget()
        rig.collection.down = False
        await rig.watching()

        missed = (await rig.tells(9))[4:]
        assert sorted(missed) == [
            ("ADDED", "added", "first"),
            ("ADDED", "reborn", "second life"),
            ("DELETED", "reborn", "old"),
            ("DELETED", "vanished", "old"),
            ("MODIFIED", "changed", "new"),
        ]
        assert missed.index(("DELETED", "reborn", "old")) < missed.index(
            ("ADDED", "reborn", "second life")
        )
        assert rig.collection.lists == 2


async def test_an_outage_keeps_what_was_known_and_is_waited_out(rig: Rig) -> None:
    rig.collection.down = True
    with capture_logs() as logs:
        rig.collection.cut()
        await until_true(
            lambda: sum(one["event"] == "watch_failed" for one in logs) >= 3,
            what="three failed attempts",
        )

    assert rig.informer.synced
    assert rig.informer.get("ml", "a") == "old"

    rig.collection.put("a", "new")
    rig.collection.down = False
    assert await rig.tells(2) == [("ADDED", "a", "old"), ("MODIFIED", "a", "new")]


async def test_an_informer_that_starts_during_an_outage_syncs_after_it() -> None:
    async with a_collection() as (collection, url), connect_to(url) as client:
        collection.down = True
        collection.put("a", "old")
        informer = Informer(client.with_retry(FAST), CONFIGMAPS, decode=value_of, backoff=FAST)
        async with asyncio.TaskGroup() as group:
            with capture_logs() as logs:
                running = group.create_task(informer.run())
                await until_true(lambda: len(logs) >= 2, what="two failed attempts")
            assert not informer.synced
            assert informer.last_contact_age_s == math.inf
            collection.down = False
            async with asyncio.timeout(10):
                await informer.wait_synced()
            running.cancel()

    assert informer.get("ml", "a") == "old"


async def test_silence_on_the_line_makes_a_new_watch() -> None:
    async with following("a", limits=WatchLimits(inactivity_s=0.1)) as rig:
        await until_true(lambda: len(rig.collection.watches) >= 3, what="three watches")

        assert rig.collection.lists == 1
        assert len(rig.changes) == 1


async def test_an_object_that_cannot_be_decoded_is_dropped_loudly_and_the_rest_goes_on(
    rig: Rig,
) -> None:
    with capture_logs() as logs:
        rig.collection.put("a", "bad")
        rig.collection.put("b", "good")
        await rig.tells(2)

    assert rig.reported == [("ADDED", "a", "old"), ("ADDED", "b", "good")]
    assert rig.informer.get("ml", "a") == "old"
    assert rig.informer.dropped == 1
    (line,) = [one for one in logs if one["event"] == "object_dropped"]
    assert (line["log_level"], line["object"], line["error"]) == ("error", "ml/a", "it is bad")


async def test_the_next_good_version_of_a_dropped_object_is_told(rig: Rig) -> None:
    rig.collection.put("a", "bad")
    rig.collection.put("a", "good again")

    assert (await rig.tells(2))[1] == ("MODIFIED", "a", "good again")


async def test_an_object_that_was_never_good_goes_without_a_word() -> None:
    async with following() as rig:
        rig.collection.put("a", "bad")
        rig.collection.remove("a")
        rig.collection.put("b", "good")

        assert await rig.tells(1) == [("ADDED", "b", "good")]


async def test_an_object_whose_last_words_are_garbled_is_still_deleted(rig: Rig) -> None:
    rig.collection.put("a", "bad")
    rig.collection.remove("a")

    assert (await rig.tells(2))[1] == ("DELETED", "a", "old")
    assert not rig.informer.items()


async def test_a_garbled_line_makes_a_new_list_and_nothing_is_told_twice(rig: Rig) -> None:
    rig.collection.inject(b"this is no JSON\n")
    await until_true(lambda: rig.collection.lists == 2, what="a second list")
    await rig.watching()
    rig.collection.put("a", "new")

    assert await rig.tells(2) == [("ADDED", "a", "old"), ("MODIFIED", "a", "new")]


async def test_an_event_that_comes_twice_is_told_once(rig: Rig) -> None:
    metadata = {"name": "b", "namespace": "ml", "uid": "u", "resourceVersion": "500"}
    line = json.dumps({"type": "ADDED", "object": {"metadata": metadata, "value": "x"}})
    rig.collection.inject(line.encode() + b"\n")
    rig.collection.inject(line.encode() + b"\n")
    rig.collection.put("c", "last")

    assert (await rig.tells(3))[1:] == [("ADDED", "b", "x"), ("ADDED", "c", "last")]


async def test_the_age_of_the_last_contact_restarts_with_every_event() -> None:
    now_s = 1000.0
    changes: list[Change[str]] = []
    async with a_collection() as (collection, url), connect_to(url) as client:
        informer = Informer(
            client, CONFIGMAPS, decode=value_of, on_change=changes.append, monotonic=lambda: now_s
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(informer.run())
            async with asyncio.timeout(10):
                await informer.wait_synced()
            await until_true(lambda: collection.open_watches == 1, what="an open watch")
            now_s += 30
            assert informer.last_contact_age_s == 30
            collection.put("a", "x")
            await until_true(lambda: bool(changes), what="a change")
            assert informer.last_contact_age_s == 0
            running.cancel()


async def test_what_a_listener_raises_ends_the_informer() -> None:
    def listener(change: Change[str]) -> None:
        raise LookupError("a mistake of ours")

    async with a_collection() as (collection, url), connect_to(url) as client:
        collection.put("a", "old")
        informer = Informer(client, CONFIGMAPS, decode=value_of, on_change=listener)
        with pytest.raises(LookupError):
            async with asyncio.timeout(10):
                await informer.run()


async def test_the_copy_cannot_be_written_to(rig: Rig) -> None:
    with pytest.raises(TypeError):
        rig.informer.items()["x"] = "y"  # type: ignore[index]


@asynccontextmanager
async def following_an_optional_kind() -> AsyncIterator[tuple[Collection, Informer[str]]]:
    """Follow a collection of a kind that the API server does not serve yet."""
    async with a_collection() as (collection, url), connect_to(url) as client:
        collection.unserved = True
        informer = Informer(
            client.with_retry(FAST), CONFIGMAPS, decode=value_of, optional=True, backoff=FAST
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(informer.run(), name="informer")
            async with asyncio.timeout(10):
                await informer.wait_synced()
            yield collection, informer
            running.cancel()


async def test_an_optional_kind_that_is_not_served_is_empty_and_followed_once_it_is() -> None:
    async with following_an_optional_kind() as (collection, informer):
        assert not informer.served
        assert dict(informer.items()) == {}
        collection.put("a", "x")

        collection.unserved = False

        await until_true(lambda: bool(informer.items()), what="the object of a kind served now")
        await until_true(lambda: informer.served, what="the kind is said to be served")


async def test_an_optional_kind_that_is_served_no_more_has_no_objects() -> None:
    async with following_an_optional_kind() as (collection, informer):
        collection.put("a", "x")
        collection.unserved = False
        await until_true(lambda: bool(informer.items()), what="the object of a kind served now")

        collection.unserved = True
        collection.cut()

        await until_true(lambda: not informer.items(), what="nothing is left")
        assert not informer.served
        assert informer.synced


async def test_a_kind_that_is_not_optional_and_not_served_is_never_synced() -> None:
    async with a_collection() as (collection, url), connect_to(url) as client:
        collection.unserved = True
        informer = Informer(client.with_retry(FAST), CONFIGMAPS, decode=value_of, backoff=FAST)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(informer.run(), name="informer")
            await until_true(lambda: collection.refusals > 3, what="several attempts")
            assert not informer.synced
            running.cancel()


@dataclass
class PagedTransport:
    """Answers lists in pages of 300 objects; the first answer to *expires* is 410.

    It comes at once, or *late*: when all pages before it have been decoded.
    """

    count: int
    expires: str = ""
    late: bool = False
    log: list[str] = field(default_factory=list)

    async def request(
        self, verb: str, path: str, *, query: Mapping[str, str] | None = None, **_: Any
    ) -> bytes:
        token = (query or {}).get("continue", "")
        self.log.append(f"asked for {token or 'the first page'}")
        if token and token == self.expires:
            self.expires = ""
            if self.late:
                decoded = f"decoded {int(token) - 1}"
                await until_true(lambda: decoded in self.log, what="the page before is decoded")
                await asyncio.sleep(0)
            raise Gone(verb=verb, path=path, status=410, reason="Expired", message="too old")
        first = int(token or 0)
        last = min(first + 300, self.count)
        items = [
            {"metadata": {"name": f"n{at}", "uid": f"u{at}", "resourceVersion": "1"}, "value": at}
            for at in range(first, last)
        ]
        more = {"continue": str(last)} if last < self.count else {}
        return json.dumps({"metadata": {"resourceVersion": "7", **more}, "items": items}).encode()

    async def stream_lines(
        self, path: str, *, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncGenerator[bytes, None]:
        del path, query, inactivity_s
        await asyncio.Event().wait()
        yield b""


@asynccontextmanager
async def listing(transport: PagedTransport) -> AsyncIterator[Informer[str]]:
    """Follow what *transport* lists; it is synced when the block begins."""

    def decode(body: bytes) -> str:
        value = value_of(body)
        transport.log.append(f"decoded {value}")
        return value

    informer = Informer(KubeClient(transport), CONFIGMAPS, decode=decode, backoff=FAST)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run(), name="informer")
        async with asyncio.timeout(10):
            await informer.wait_synced()
        yield informer
        running.cancel()


async def test_the_next_page_is_asked_for_while_one_is_decoded() -> None:
    transport = PagedTransport(700)
    async with listing(transport) as informer:
        assert len(informer.items()) == 700

    asked = [transport.log.index(f"asked for {token}") for token in ("300", "600")]
    decoded = [transport.log.index(f"decoded {last}") for last in (299, 599)]
    assert asked[0] < decoded[0]
    assert decoded[0] < asked[1] < decoded[1]  # and no page is asked for before it is needed


@pytest.mark.parametrize("late", [False, True])
async def test_a_page_that_expired_makes_a_new_list(late: bool) -> None:
    transport = PagedTransport(700, expires="600", late=late)
    async with listing(transport) as informer:
        assert len(informer.items()) == 700

    assert transport.log.count("asked for the first page") == 2


ALL_PODS = Selection(kind=PODS)


def a_line(type_: str, **obj: Any) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def a_pod_line(type_: str, name: str, version: int) -> bytes:
    metadata = {"name": name, "namespace": "ml", "uid": "u", "resourceVersion": str(version)}
    return a_line(type_, metadata=metadata)


def streaming(*chunks: bytes) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    return handler


async def collect(
    handler: Handler, selected: Selection = ALL_PODS, limits: WatchLimits | None = None
) -> list[WatchEvent]:
    async with a_server(handler) as server, connect_to(server.url) as client:
        limits = limits or WatchLimits()
        events = watch(client, selected, resource_version="41", limits=limits)
        async with asyncio.timeout(10), aclosing(events) as stream:
            return [event async for event in stream]


async def test_a_watch_asks_for_bookmarks_an_end_and_what_is_selected() -> None:
    selected = Selection(
        kind=PODS, namespace="ml", label_selector="x=y", field_selector="spec.nodeName=n1"
    )
    async with a_server(streaming()) as server, connect_to(server.url) as client:
        limits = WatchLimits(server_s=33)
        events = watch(client, selected, resource_version="41", limits=limits)
        assert [event async for event in events] == []

    (heard,) = server.heard
    assert heard.path == "/api/v1/namespaces/ml/pods"
    assert heard.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "41",
        "timeoutSeconds": "33",
        "labelSelector": "x=y",
        "fieldSelector": "spec.nodeName=n1",
    }


async def test_a_line_the_server_did_not_finish_is_not_an_event() -> None:
    complete, part = a_pod_line("ADDED", "a", 42), a_pod_line("ADDED", "b", 43)[:-10]

    events = await collect(streaming(complete, part))

    assert [event.resource_version for event in events] == ["42"]


async def test_any_other_error_event_is_the_error_it_names() -> None:
    line = a_line("ERROR", kind="Status", code=500, reason="InternalError", message="etcd")

    with pytest.raises(Unavailable, match="etcd"):
        await collect(streaming(line))


async def test_a_watch_that_is_left_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for version in range(42, 100_000):
                await response.write(a_pod_line("MODIFIED", "a", version))
        except ConnectionError:
            closed.set()
        return response

    async with a_server(handler) as server, connect_to(server.url) as client:
        events = watch(client, ALL_PODS, resource_version="41", limits=WatchLimits())
        async with aclosing(events) as stream:
            await anext(stream)
        async with asyncio.timeout(10):
            await closed.wait()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b'{"type":"ADDED"}',
        b'{"type":"INVENTED","object":{"metadata":{"name":"a"}}}',
        b'{"type":"ADDED","object":{"metadata":{}}}',
        b'{"type":"BOOKMARK","object":{}}',
        b'{"type":"ERROR","object":3}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}',
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_event_is_a_decode_error(line: bytes) -> None:
    with pytest.raises(KubeDecodeError) as caught:
        read_event(line, path="/api/v1/pods")

    assert isinstance(caught.value, KubeError)
    assert caught.value.path == "/api/v1/pods"
