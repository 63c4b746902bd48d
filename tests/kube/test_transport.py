import asyncio
import gc
import json
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kube.access import connect_to
from kube.errors import Conflict, Forbidden, KubeError, TooManyRequests, Unavailable
from kube.kinds import PODS
from kube.objects import ObjectKey, ObjectMeta, decode_object, identity, readable
from kube.retry import RetryPolicy
from kube.transport import split_lines
from kube.watch import read_event
from process.tls import private_file
from tests.certs.tls_harness import a_ca, a_leaf
from tests.support.scripted import (
    a_raw_server,
    a_server,
    answering,
    json_answer,
    status_answer,
)

ONCE = RetryPolicy(attempts=1)
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def saying(text: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)

    return talk


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the client gives up


async def collect(lines: AsyncGenerator[bytes, None]) -> list[bytes]:
    async with aclosing(lines) as stream:
        return [line async for line in stream]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
FAULTS: dict[str, Talk] = {
    "closes without a word": saying(b""),
    "does not speak HTTP": saying(b"\x15\x03\x01\x00\x02\x02\x16 no http here\r\n\r\n"),
    "breaks off in the head": saying(b"HTTP/1.1 200 OK\r\nContent-"),
    "breaks off in the body": saying(HEAD + b"Content-Length: 100\r\n\r\n{"),
    "breaks off in a chunk": saying(HEAD + b"Transfer-Encoding: chunked\r\n\r\n50\r\n{"),
    "sends a chunk of no size": saying(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{"),
    "sends what is not gzip": saying(
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope"
    ),
    "says nothing": silence,
    "says nothing after the head": saying(HEAD + b"Content-Length: 100\r\n\r\n"),
    "redirects for ever": saying(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_no_error_of_the_http_library_comes_out_of_a_request(fault: Talk) -> None:
    async with a_raw_server(fault) as url, connect_to(url) as client:
        with pytest.raises(Unavailable) as caught:
            await client.transport.request("GET", "/api/v1/pods", timeout_s=0.5)

    assert caught.value.__cause__ is not None
    assert (caught.value.verb, caught.value.path) == ("GET", "/api/v1/pods")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_no_error_of_the_http_library_comes_out_of_a_stream(fault: Talk) -> None:
    async with a_raw_server(fault) as url, connect_to(url) as client:
        lines = client.transport.stream_lines("/api/v1/pods", query={}, inactivity_s=0.3)
        with pytest.raises(Unavailable) as caught:
            await collect(lines)

    assert caught.value.__cause__ is not None


async def test_an_address_nobody_listens_on_is_unavailable() -> None:
    async with connect_to("http://127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match="no answer from kube-apiserver to GET /version"):
            await client.with_retry(ONCE).get_path("/version")


async def test_a_server_that_does_not_speak_tls_is_unavailable() -> None:
    async with a_raw_server(silence) as url, connect_to(f"https{url[4:]}") as client:
        with pytest.raises(Unavailable) as caught:
            await client.transport.request("GET", "/version", timeout_s=0.5)

    assert not isinstance(caught.value, ssl.SSLError)


async def test_a_refusal_is_read_from_its_status_object() -> None:
    details = {"causes": [{"reason": "UID", "message": "other", "field": "metadata.uid"}]}
    refusal = status_answer(409, "Conflict", "not the same", details=details)
    async with a_server(answering(refusal)) as server, connect_to(server.url) as client:
        with pytest.raises(Conflict) as caught:
            await client.transport.request("POST", "/x", body={}, timeout_s=5)

    assert (caught.value.status, caught.value.message) == (409, "not the same")
    assert [(one.type, one.field) for one in caught.value.causes] == [("UID", "metadata.uid")]


async def test_a_refusal_of_a_proxy_is_quoted() -> None:
    refusal = web.Response(status=403, text="<h1>Go away</h1>" + "x" * 200_000)
    async with a_server(answering(refusal)) as server, connect_to(server.url) as client:
        with pytest.raises(Forbidden) as caught:
            await client.transport.request("GET", "/x", timeout_s=5)

    assert caught.value.message.startswith("<h1>Go away</h1>")
    assert len(caught.value.message) == 1000


@pytest.mark.parametrize(
    ("answer", "wanted_s"),
    [
        (json_answer({}, status=429, Retry_After="7"), 7.0),
        (json_answer({"details": {"retryAfterSeconds": 10}}, status=429, Retry_After="7"), 10.0),
        (json_answer({}, status=429, Retry_After="Fri, 20 Nov 2026 12:00:00 GMT"), None),
        (json_answer({}, status=429), None),
    ],
    ids=["header", "body", "date", "nothing"],
)
async def test_a_busy_server_says_how_long_to_wait(
    answer: web.Response, wanted_s: float | None
) -> None:
    async with a_server(answering(answer)) as server, connect_to(server.url) as client:
        with pytest.raises(TooManyRequests) as caught:
            await client.transport.request("GET", "/x", timeout_s=5)

    assert caught.value.retry_after_s == wanted_s


async def test_a_request_says_who_asks() -> None:
    async with (
        a_server(answering(json_answer({}))) as server,
        connect_to(server.url, token="s3cret", user_agent="fracgpu/test") as client,
    ):
        await client.transport.request("GET", "/x", query={"a": "b c&d"}, timeout_s=5)

    (heard,) = server.heard
    assert heard.headers["Authorization"] == "Bearer s3cret"
    assert heard.headers["User-Agent"] == "fracgpu/test"
    assert "Impersonate-User" not in heard.headers
    assert heard.query == {"a": "b c&d"}


async def test_a_request_says_as_whom_it_asks() -> None:
    async with (
        a_server(answering(json_answer({}))) as server,
        connect_to(server.url, as_user="system:node:n1") as client,
    ):
        await client.transport.request("GET", "/x", timeout_s=5)

    (heard,) = server.heard
    assert heard.headers["Impersonate-User"] == "system:node:n1"


async def test_a_line_may_be_longer_than_any_buffer_on_the_way() -> None:
    long = b'{"x":"' + b"y" * (5 << 20) + b'"}'

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(long), 1 << 20):
            await response.write(long[start : start + (1 << 20)])
        await response.write(b"\nshort\n")
        return response

    async with a_server(handler) as server, connect_to(server.url) as client:
        found = await collect(client.transport.stream_lines("/x", query={}, inactivity_s=5))

    assert [len(line) for line in found] == [len(long), 5]
    assert found[0] == long


def nested(levels: int, *, beside: str = "null", key: str = "f:a") -> bytes:
    """Return a pod with as many levels of managed fields, as the API server stores them."""
    fields = f'{{"{key}":' * levels + "{}" + "}" * levels
    name = '"name":"p","namespace":"n","uid":"u","resourceVersion":"7"'
    return (
        f'{{"metadata":{{{name},"managedFields":[{{"fieldsV1":{fields}}}]}},"more":{beside}}}'
    ).encode()


@pytest.mark.parametrize("levels", [10, 400, 480, 900, 960, 9_000])
async def test_what_users_nest_too_deeply_to_be_decoded_is_cut_and_the_rest_is_read(
    levels: int,
) -> None:
    """The levels between those that are cut and those that are not are read from any stack."""
    pod = nested(levels)
    page = b'{"metadata":{"resourceVersion":"7"},"items":[' + pod + b"]}"
    event = b'{"type":"ADDED","object":' + pod + b"}\n"
    listed = answering(web.Response(body=page), web.Response(body=pod), web.Response(body=event))

    def read(raw: bytes, *, deeper: int = 400) -> ObjectMeta:
        return read(raw, deeper=deeper - 1) if deeper else identity(raw)

    async with a_server(listed) as server, connect_to(server.url) as client:
        (item,) = (await client.list(PODS)).items
        got = await client.get(PODS, "p", namespace="n")
        (line,) = await collect(client.transport.stream_lines("/x", query={}, inactivity_s=5))

    for found in (item, got, read_event(line, path="/x").object):
        assert read(bytes(found)).key == ObjectKey("n", "p")
        assert bytes(found).count(b"f:a") in {levels, 58, 59, 60}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_what_stands_beside_what_cannot_be_decoded_is_kept_as_it_is(value: Any) -> None:
    for written in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        text = written.encode(errors="replace").decode()
        half = nested(3, beside=text, key="\\ud800")
        odd = nested(3, beside=text).replace(b"f:a", b"\xff", 1)
        for body in (nested(2_000, beside=text), half, odd):
            assert decode_object(readable(body))["more"] == json.loads(text)
        assert readable(text.encode()) == text.encode()


@pytest.mark.parametrize(
    ("key", "read"),
    [
        (r"\ud800", "\ufffd"),
        (r"\udfff\udfff", "\ufffd\ufffd"),
        (r"\ud83d\ude00\ud83d", "\U0001f600\ufffd"),
        (r"\\ud800\uDC00", "\\ud800\ufffd"),
    ],
)
def test_a_half_of_a_surrogate_pair_is_a_replacement_character(key: str, read: str) -> None:
    assert list(decode_object(readable(f'{{"{key}":{{}}}}'.encode()))) == [read]


async def chunked(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@given(st.lists(st.binary(max_size=12)), st.binary(max_size=5), st.data())
def test_lines_are_the_same_wherever_the_stream_was_cut(
    wanted: list[bytes], rest: bytes, data: st.DataObject
) -> None:
    wanted = [line.replace(b"\n", b"") for line in wanted]
    text = b"".join(line + b"\n" for line in wanted) + rest.replace(b"\n", b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    edges = [0, *cuts, len(text)]
    chunks = [text[start:end] for start, end in pairwise(edges)]

    found = asyncio.run(collect(split_lines(chunked(chunks), path="/x")))

    assert found == [line for line in wanted if line.strip()]


def test_a_watch_over_tls_that_is_given_up_leaves_nothing_open_when_the_loop_ends(
    tmp_path: Path,
) -> None:
    """The server answers no end of TLS: whoever waits for that keeps the connection."""
    ca, checked = a_ca(), threading.Event()
    (tmp_path / "ca.crt").write_bytes(ca.cert_pem)
    leaf = a_leaf(ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with private_file(leaf.cert_pem + leaf.key_pem) as path:
        context.load_cert_chain(path)

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as raw, context.wrap_socket(raw, server_side=True) as connection:
            connection.recv(10_000)
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n")
            checked.wait()

    async def watch(url: str) -> None:
        async with connect_to(url, ca_file=tmp_path / "ca.crt") as client:
            lines = client.transport.stream_lines("/watch", query={}, inactivity_s=60)
            async with aclosing(lines):
                assert await anext(lines) == b"{}"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            asyncio.run(watch(f"https://127.0.0.1:{listener.getsockname()[1]}"))
            gc.collect()
        checked.set()
        server.join()

    assert [str(one.message) for one in warned] == []


async def test_a_line_without_end_is_given_up() -> None:
    async def flood() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * (1 << 22)

    with pytest.raises(KubeError, match="longer than"):
        await collect(split_lines(flood(), path=PODS.path()))


async def test_a_password_in_netrc_for_the_api_server_does_not_stop_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password something\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))

    async with (
        a_server(answering(json_answer({}))) as server,
        connect_to(server.url, token="ours") as client,
    ):
        await client.transport.request("GET", "/version", timeout_s=5)

    assert server.heard[0].headers["Authorization"] == "Bearer ours"


@pytest.mark.parametrize(
    ("spared", "by_proxy"), [("elsewhere.example", True), ("127.0.0.1", False)]
)
async def test_the_proxy_of_the_environment_is_used_unless_the_host_is_spared(
    spared: str, by_proxy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        a_server(answering(json_answer({}))) as proxy,
        a_server(answering(json_answer({}))) as server,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", spared)
        async with connect_to(server.url) as client:
            await client.transport.request("GET", "/version", timeout_s=5)

    assert (len(proxy.heard), len(server.heard)) == ((1, 0) if by_proxy else (0, 1))
