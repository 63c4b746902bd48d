"""Remembered blocks of headers mean what the library itself says they mean."""

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from process.http2.header_blocks import RememberingDecoder, RememberingEncoder

Headers = list[tuple[bytes, bytes]]

NAMES = st.sampled_from([b":path", b"content-length", b"x-first", b"x-second"])
VALUES = st.sampled_from([b"/filter", b"1", b"2", b"a" * 100, b"b" * 3000, b"c" * 5000])
HEADERS = st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=4)
# What may happen to a table: a block, or another size of it.
HISTORIES = st.lists(HEADERS | st.sampled_from([0, 100, 4096]), max_size=30)


@given(HISTORIES)
def test_blocks_are_written_as_the_library_writes_them(history: list[Headers | int]) -> None:
    ours, theirs = RememberingEncoder(), Encoder()
    for step in history:
        if isinstance(step, int):
            ours.header_table_size = theirs.header_table_size = step
        else:
            for _ in range(2):
                assert ours.encode(step) == theirs.encode(step)


@given(HISTORIES)
def test_blocks_are_read_as_the_library_reads_them(history: list[Headers | int]) -> None:
    writer, ours, theirs = Encoder(), RememberingDecoder(), Decoder()
    for step in history:
        if isinstance(step, int):
            # Told the same size again, hpack's encoder forgets to announce the change before it.
            if step != writer.header_table_size:
                writer.header_table_size = step
        else:
            for _ in range(2):
                block = writer.encode(step)
                assert ours.decode(block, raw=True) == list(theirs.decode(block, raw=True))


@given(st.lists(st.binary(max_size=12), max_size=20))
def test_what_is_no_block_is_refused_as_by_the_library(blocks: list[bytes]) -> None:
    ours, theirs = RememberingDecoder(), Decoder()
    for block in blocks:
        for _ in range(2):
            try:
                expected = list(theirs.decode(block, raw=True))
            except HPACKError as error:
                with pytest.raises(type(error)):
                    ours.decode(block, raw=True)
                return
            assert ours.decode(block, raw=True) == expected


def test_the_same_block_is_not_decoded_again_until_a_field_enters_the_table() -> None:
    writer, reader = Encoder(), RememberingDecoder()
    asked = [(b":path", b"/filter"), (b"content-length", b"12")]
    reader.decode(writer.encode(asked), raw=True)
    block = writer.encode(asked)
    first = list(reader.decode(block, raw=True))

    assert all(
        one is other for one, other in zip(first, reader.decode(block, raw=True), strict=True)
    )
    reader.decode(writer.encode([(b"content-length", b"13")]), raw=True)
    assert list(reader.decode(block, raw=True)) != first


def test_a_field_that_must_not_enter_a_table_is_not_taken_for_one_that_may() -> None:
    ours, theirs = RememberingEncoder(), Encoder()
    for _ in range(3):
        for field in (NeverIndexedHeaderTuple(b"x-key", b"secret"), (b"x-key", b"secret")):
            assert ours.encode([field]) == theirs.encode([field])


def test_what_is_remembered_is_bounded() -> None:
    reader, writer = RememberingDecoder(), RememberingEncoder()
    for number in range(1, 100):
        reader.decode(bytes([0x82]) * number, raw=True)  # ":method: GET", again and again
        writer.encode([(b":method", b"GET")] * number)

    assert len(reader._blocks) == len(writer._blocks) == 16
