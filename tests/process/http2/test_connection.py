"""Requests of one HTTP/2 connection, with real TLS on loopback: none ends or starves the others."""

import asyncio
from contextlib import suppress

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import StreamEnded
from hyperframe.frame import PingFrame, RstStreamFrame, WindowUpdateFrame

from process.http2.connection import Http2Connection
from process.http2.request import Answerer, Bodies, Http2Limits, Request
from process.http2.state import STREAMS
from process.telemetry import Answer
from tests.support.http2_server import LIMIT, serving
from tests.support.waiting import until_true
from tests.support.work import counted_lines


async def test_a_request_is_answered_while_another_of_the_same_connection_waits() -> None:
    async with serving() as served, served.caller() as caller:
        waiting = await caller.begin("/wait")
        quick = await caller.ask("/echo", b"quick")
        assert not caller.answer_to(waiting).done.is_set()
        served.go.set()
        async with asyncio.timeout(20):
            await caller.answer_to(waiting).done.wait()

    assert bytes(quick.body) == b"over 2: quick"
    assert bytes(caller.answer_to(waiting).body) == b"over 2: "


async def test_a_body_above_the_limit_gets_413_and_the_connection_goes_on() -> None:
    async with serving() as served, served.caller() as caller:
        refused = await caller.ask("/echo", b"x" * (LIMIT + 1))
        largest = await caller.ask("/echo", b"x" * LIMIT)

    assert refused.status == 413
    assert bytes(refused.body) == b"want at most 100000 bytes\n"
    assert largest.status == 200
    assert [len(asked.body) for asked in served.asked] == [LIMIT]


async def test_bodies_that_are_not_ended_do_not_fill_the_memory() -> None:
    async with serving() as served, served.caller() as caller:
        open_ended = [await caller.begin("/echo", b"x" * LIMIT, end=False) for _ in range(4)]
        one_more = await caller.ask("/echo", b"x")
        for stream in open_ended:
            await caller.send(stream, b"")
        async with asyncio.timeout(20):
            await caller.answer_to(open_ended[-1]).done.wait()
        after = await caller.ask("/echo", b"x")

    assert one_more.status == 503  # it is not too large: it may be sent again
    assert [caller.answer_to(stream).status for stream in open_ended] == [200] * 4
    assert after.status == 200


async def test_an_answer_larger_than_the_callers_window_is_sent_as_the_window_opens() -> None:
    async with serving() as served, served.caller(window=10_000) as caller:
        caller.reads = False
        stream = await caller.begin("/large")
        answer = caller.answer_to(stream)
        await until_true(lambda: len(answer.body) == 10_000, what="the first window")
        quick = await caller.ask("/echo")  # the other is not in its way
        assert not answer.done.is_set()
        caller.reads = True
        caller.state.increment_flow_control_window(10_000, stream)
        caller.state.increment_flow_control_window(300_000)
        await caller.flush()
        async with asyncio.timeout(20):
            await answer.done.wait()

    assert quick.status == 200
    assert bytes(answer.body) == b"x" * 300_000


async def test_a_request_that_the_caller_gives_up_is_carried_out_and_not_answered() -> None:
    async with serving() as served, served.caller() as caller:
        given_up = await caller.begin("/wait")
        await until_true(lambda: bool(served.asked), what="the request")
        caller.state.reset_stream(given_up, ErrorCodes.CANCEL)
        await caller.flush()
        assert (await caller.ask("/echo")).status == 200
        served.go.set()
        await until_true(lambda: served.finished == 2, what="the end of the first request")
        assert (await caller.ask("/echo")).status == 200

    assert caller.answer_to(given_up).status == 0


async def test_a_fault_in_one_request_is_answered_with_500_and_ends_no_other() -> None:
    async with serving() as served, served.caller() as caller:
        failed = await caller.ask("/fail")
        fine = await caller.ask("/echo")

    assert (failed.status, fine.status) == (500, 200)


async def test_requests_that_come_together_begin_in_their_order() -> None:
    async with serving() as served, served.caller() as caller:
        state = caller.state
        head = [(":method", "GET"), (":scheme", "https"), (":authority", "x")]
        paths = ["/a", "/echo", "/b", "/wait", "/c"]
        streams = range(1, 2 * len(paths), 2)
        for stream, path in zip(streams, paths, strict=True):
            caller.expect(stream)
            state.send_headers(stream, [*head, (":path", path)], end_stream=True)
        await caller.flush()
        served.go.set()
        async with asyncio.timeout(20):
            for stream in streams:
                await caller.answer_to(stream).done.wait()

    assert [asked.path for asked in served.asked] == paths


class Written(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))


def connected(answer: Answerer) -> tuple[Http2Connection, Written, H2Connection]:
    """Return a connection, what it has written, and its caller."""
    connection = Http2Connection(
        answer,
        bodies=Bodies(largest=LIMIT, most=LIMIT),
        limits=Http2Limits(),
        opened=lambda _: None,
        closed=lambda _: None,
    )
    written, caller = Written(), H2Connection()
    connection.connection_made(written)
    caller.initiate_connection()
    return connection, written, caller


async def test_answers_that_become_ready_together_are_one_write() -> None:
    go = asyncio.Event()

    async def answer(_: Request) -> Answer:
        await go.wait()
        return Answer(200, b"gone")

    connection, written, caller = connected(answer)
    for stream in (1, 3, 5):
        head = [(":method", "POST"), (":scheme", "https"), (":authority", "x"), (":path", "/")]
        caller.send_headers(stream, head, end_stream=True)
    connection.data_received(caller.data_to_send())
    before = len(written.writes)
    go.set()
    await until_true(lambda: not connection.busy, what="the answers")
    await until_true(lambda: len(written.writes) > before, what="their bytes")

    (together,) = written.writes[before:]
    caller.receive_data(b"".join(written.writes[:before]))
    ended = [event for event in caller.receive_data(together) if isinstance(event, StreamEnded)]
    assert [event.stream_id for event in ended] == [1, 3, 5]
    connection.connection_lost(None)


async def test_of_requests_given_up_in_the_same_piece_few_are_answered() -> None:
    asked: list[Request] = []

    async def answer(request: Request) -> Answer:
        asked.append(request)
        return Answer(200, b"")

    connection, _, caller = connected(answer)
    for stream in range(1, 2000, 2):
        head = [(":method", "GET"), (":scheme", "https"), (":authority", "x"), (":path", "/")]
        caller.send_headers(stream, head, end_stream=True)
        caller.reset_stream(stream)
    connection.data_received(caller.data_to_send())
    await until_true(lambda: bool(asked), what="those that are answered")

    assert len(asked) == STREAMS
    connection.connection_lost(None)


async def test_requests_beyond_the_limit_are_refused_so_that_the_caller_may_send_them_again() -> (
    None
):
    async with serving() as served, served.caller() as caller:
        for _ in range(256):
            given_up = await caller.begin("/wait")
            caller.state.reset_stream(given_up, ErrorCodes.CANCEL)  # its work goes on
        await caller.flush()
        refused = await caller.ask("/echo")
        served.go.set()
        await until_true(lambda: served.finished == 256, what="the work for all of them")
        again = await caller.ask("/echo")

    assert refused.reset == ErrorCodes.REFUSED_STREAM
    assert again.status == 200
    assert len(served.asked) == 257


async def test_a_request_that_is_given_up_as_its_window_opens_ends_no_other() -> None:
    async with serving() as served, served.caller(window=1000) as caller:
        caller.reads = False
        waiting = await caller.begin("/wait")
        large = await caller.begin("/large")
        answer = caller.answer_to(large)
        await until_true(lambda: len(answer.body) == 1000, what="the first window")
        await caller.write_raw(
            WindowUpdateFrame(0, window_increment=1000).serialize()
            + WindowUpdateFrame(large, window_increment=1000).serialize()
            + RstStreamFrame(large, error_code=ErrorCodes.CANCEL).serialize()
        )
        served.go.set()
        async with asyncio.timeout(20):
            await caller.answer_to(waiting).done.wait()

    assert caller.answer_to(waiting).status == 200


async def test_a_body_too_large_that_is_given_up_at_once_ends_no_other() -> None:
    async with serving() as served, served.caller() as caller:
        waiting = await caller.begin("/wait")
        state = caller.state
        stream = await caller.begin("/echo", end=False)
        for _ in range(LIMIT // 16_384 + 1):
            state.send_data(stream, b"x" * 16_384)
        state.reset_stream(stream, ErrorCodes.CANCEL)
        # A new request makes the library forget the one before: its answer has no stream any more.
        after = await caller.ask("/echo")
        served.go.set()
        async with asyncio.timeout(20):
            await caller.answer_to(waiting).done.wait()

    assert after.status == 200
    assert caller.answer_to(waiting).status == 200


async def test_a_413_that_the_callers_window_does_not_let_through_ends_no_other() -> None:
    async with serving() as served, served.caller(window=5) as caller:
        refused = await caller.begin("/echo", b"x" * 60_000, end=False)
        await caller.settled()
        await caller.send(refused, b"x" * (LIMIT + 1 - 60_000), end=False)
        async with asyncio.timeout(20):
            await caller.answer_to(refused).done.wait()
        caller.state.increment_flow_control_window(1000)
        await caller.flush()
        after = await caller.ask("/head", method="HEAD")

    assert caller.answer_to(refused).status == 413
    assert after.status == 200


async def test_a_caller_that_does_not_read_is_not_read_either_and_ended_at_last() -> None:
    limits = Http2Limits(answer_s=0.2)
    pings = PingFrame(0, b"12345678").serialize() * 2000
    async with serving(limits) as served, served.caller() as caller, served.caller() as other:
        caller.stop_reading()
        async with asyncio.timeout(60):
            with suppress(ConnectionError):  # when the server ends it
                while True:
                    await caller.write_raw(pings)
        answer = await other.ask("/echo")

    assert answer.status == 200


async def test_a_request_whose_end_does_not_come_is_answered_with_408() -> None:
    async with serving(Http2Limits(request_s=0.05)) as served, served.caller() as caller:
        stream = await caller.begin("/echo", b"a part", end=False)
        async with asyncio.timeout(20):
            await caller.answer_to(stream).done.wait()
        after = await caller.ask("/echo")

    assert caller.answer_to(stream).status == 408
    assert after.status == 200
    assert len(served.asked) == 1


async def test_an_answer_that_is_not_read_is_given_up() -> None:
    limits = Http2Limits(answer_s=0.05)
    async with serving(limits) as served, served.caller(window=1000) as caller:
        caller.reads = False
        stream = await caller.begin("/large")
        async with asyncio.timeout(20):
            await caller.answer_to(stream).done.wait()
        after = await caller.ask("/echo")

    assert caller.answer_to(stream).reset == ErrorCodes.CANCEL
    assert after.status == 200


async def test_a_head_request_is_answered_without_a_body() -> None:
    async with serving() as served, served.caller() as caller:
        answer = await caller.ask("/echo", method="HEAD")

    assert (answer.status, bytes(answer.body), answer.reset) == (200, b"", None)


async def test_a_query_is_no_part_of_the_path() -> None:
    async with serving() as served, served.caller() as caller:
        await caller.ask("/echo?timeout=5s")

    assert [asked.path for asked in served.asked] == ["/echo"]


async def test_many_small_window_updates_do_not_hold_up_the_event_loop() -> None:
    async with serving() as served, served.caller(window=0) as caller:
        for _ in range(250):
            await caller.begin("/echo")
        await until_true(lambda: served.finished == 250, what="the answers, which are unsent")
        await caller.settled()
        updates = WindowUpdateFrame(0, window_increment=1).serialize() * 2000
        with counted_lines() as lines:
            await caller.write_raw(updates)
            await caller.settled()

    assert lines.count < 2000 * 250, "no update looks at all answers"
