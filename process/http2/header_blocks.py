"""Blocks of headers that were read or written before on the same connection.

HPACK (RFC 7541) keeps the fields of earlier blocks in a table, so a caller that asks again and
again sends the same few bytes as the head of each request, and gets the same as the head of each
answer. The library looks each field up anew. As long as no field has entered or left the table
since, the same block means the same headers, so it is remembered until then.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from hpack import Decoder, Encoder, HeaderTuple
from hpack.table import HeaderTable

_MOST_BLOCKS: Final = 16
_MOST_BYTES: Final = 512  # of a block; one of fields in the table alone is much shorter

_Headers: TypeAlias = Any  # the library's own union, whose members are not exported


class _Moment:
    """A table as it is now; later it tells whether the table is still the same."""

    def __init__(self, table: HeaderTable) -> None:
        entries = table.dynamic_entries
        self._table = table
        self._newest = entries[0] if entries else None
        self._length = len(entries)
        self._size = table.maxsize

    def lasts(self) -> bool:
        # An entry that is added is a new object in front, and one leaves only as another is
        # added or the size changes.
        table, entries = self._table, self._table.dynamic_entries
        return (
            len(entries) == self._length
            and (entries[0] if entries else None) is self._newest
            and table.maxsize == self._size
        )


class RememberingDecoder(Decoder):
    """Decodes as the library does, and no block twice that leaves the table as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[tuple[bytes, bool], list[HeaderTuple]] = {}
        self._as_of = _Moment(self.header_table)

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:  # noqa: FBT001, FBT002 - the library's signature
        """Return the headers of a block; see ``hpack.Decoder.decode``, also for what it raises."""
        if not self._as_of.lasts():
            self._blocks.clear()
            self._as_of = _Moment(self.header_table)
        known = self._blocks.get((data, raw))
        if known is not None:
            return list(known)
        found = list(super().decode(data, raw))
        fits = len(data) <= _MOST_BYTES and len(self._blocks) < _MOST_BLOCKS
        if fits and self._as_of.lasts():
            self._blocks[data, raw] = found
        return list(found)


class RememberingEncoder(Encoder):
    """Encodes as the library does, and no headers twice that leave the table as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[tuple[Any, ...], bytes] = {}
        self._as_of = _Moment(self.header_table)

    def encode(self, headers: _Headers, huffman: bool = True) -> bytes:  # noqa: FBT001, FBT002 - the library's signature
        """Return the block of these headers; see ``hpack.Encoder.encode``."""
        if not self._as_of.lasts():
            self._blocks.clear()
            self._as_of = _Moment(self.header_table)
        # The next block alone tells another size. Others than tuples may say that a field must not
        # be in a table, which their equality does not show.
        if self.header_table.resized or not all(type(header) is tuple for header in headers):
            return super().encode(headers, huffman)
        key = (huffman, *headers)
        known = self._blocks.get(key)
        if known is not None:
            return known
        block = super().encode(headers, huffman)
        fits = len(block) <= _MOST_BYTES and len(self._blocks) < _MOST_BLOCKS
        if fits and self._as_of.lasts():
            self._blocks[key] = block
        return block
