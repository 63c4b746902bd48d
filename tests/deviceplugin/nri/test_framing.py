"""Messages survive any cut of the bytes; what is no NRI is an error and never a message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.nri.framing import (
    MAX_MESSAGE,
    ConnectionId,
    FrameError,
    FrameReader,
    Message,
    MessageType,
    encode,
)

_U32 = st.integers(0, 2**32 - 1)
messages = st.builds(
    Message,
    st.sampled_from([int(connection) for connection in ConnectionId]),
    _U32,
    st.integers(0, 255),
    st.one_of(st.binary(max_size=64), st.binary(min_size=4000, max_size=9000)),
)


def read(reader: FrameReader, pieces: list[bytes]) -> list[Message]:
    return [message for piece in pieces for message in reader.feed(piece)]


def test_a_request_is_written_as_the_protocol_has_it() -> None:
    message = Message(ConnectionId.TO_RUNTIME, 3, MessageType.REQUEST, b"body")

    assert (
        encode(message)
        == bytes.fromhex(
            "00000002"  # the plugin calls the runtime
            "0000000e"  # header and body
            "00000004"  # the body alone
            "00000003"  # stream
            "01"  # a request
            "00"  # no flags
        )
        + b"body"
    )


@given(sent=st.lists(messages, max_size=5), data=st.data())
def test_messages_arrive_in_whatever_pieces_their_bytes_do(
    sent: list[Message], data: st.DataObject
) -> None:
    raw = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    pieces = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    reader = FrameReader()

    assert read(reader, pieces) == sent
    assert not reader.in_message


@given(message=messages, data=st.data())
def test_until_the_last_byte_there_is_no_message(message: Message, data: st.DataObject) -> None:
    raw = encode(message)
    end = data.draw(st.integers(1, len(raw) - 1))
    reader = FrameReader()

    assert read(reader, [raw[:end]]) == []
    assert reader.in_message


@given(first=messages, second=messages, data=st.data())
def test_messages_of_two_connections_may_be_interleaved_frame_by_frame(
    first: Message, second: Message, data: st.DataObject
) -> None:
    def frames(message: Message, connection: ConnectionId) -> list[bytes]:
        own = Message(connection, message.stream, message.type, message.body)
        body = encode_body(own)
        cut = data.draw(st.integers(0, len(body)))
        return [frame(connection, part) for part in (body[:cut], body[cut:])]

    one, two = frames(first, ConnectionId.TO_PLUGIN), frames(second, ConnectionId.TO_RUNTIME)
    found = read(FrameReader(), [one[0], two[0], two[1], one[1]])

    assert {message.connection: message.body for message in found} == {
        ConnectionId.TO_PLUGIN: first.body,
        ConnectionId.TO_RUNTIME: second.body,
    }


def encode_body(message: Message) -> bytes:
    header = len(message.body).to_bytes(4) + message.stream.to_bytes(4)
    return header + bytes([message.type, 0]) + message.body


def frame(connection: int, payload: bytes) -> bytes:
    return connection.to_bytes(4) + len(payload).to_bytes(4) + payload


@given(connection=st.integers(3, 2**32 - 1), payload=st.binary(max_size=100), message=messages)
def test_connections_of_later_versions_are_skipped(
    connection: int, payload: bytes, message: Message
) -> None:
    assert read(FrameReader(), [frame(connection, payload) + encode(message)]) == [message]


@given(garbage=st.lists(st.binary(max_size=200), max_size=10))
def test_garbage_is_an_error_or_nothing_and_never_takes_much_memory(garbage: list[bytes]) -> None:
    reader = FrameReader()
    try:
        found = read(reader, garbage)
    except FrameError:
        return
    assert sum(len(message.body) for message in found) <= sum(map(len, garbage))


@pytest.mark.parametrize(
    "raw",
    [
        frame(1, b"")[:4] + (MAX_MESSAGE + 11).to_bytes(4),
        frame(1, (MAX_MESSAGE + 1).to_bytes(4) + b"\0\0\0\1\1\0"),
    ],
    ids=["frame", "message"],
)
def test_a_length_beyond_the_limit_is_an_error_before_its_bytes_arrive(raw: bytes) -> None:
    with pytest.raises(FrameError, match="are allowed"):
        read(FrameReader(), [raw])


def test_the_longest_message_passes_and_a_longer_one_is_not_written() -> None:
    longest = Message(ConnectionId.TO_PLUGIN, 1, MessageType.RESPONSE, bytes(MAX_MESSAGE))

    assert read(FrameReader(), [encode(longest)]) == [longest]
    with pytest.raises(ValueError, match="at most"):
        encode(Message(ConnectionId.TO_PLUGIN, 1, MessageType.RESPONSE, bytes(MAX_MESSAGE + 1)))
