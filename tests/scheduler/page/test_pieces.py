"""The documents and their versions: a client that follows them has what the server has."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from scheduler.page.pieces import Pieces

_KEYS: Final = st.sampled_from(["node/a", "node/b", "move/a", "about"])
_CHANGES: Final = st.lists(st.tuples(_KEYS, st.sampled_from([b"1", b"2", b"3", None])), max_size=30)


def apply(pieces: Pieces, changes: list[tuple[str, bytes | None]]) -> None:
    for key, body in changes:
        if body is None:
            pieces.remove(key)
        else:
            pieces.put(key, body)


def follow(pieces: Pieces, known: dict[str, bytes], version: int, *, most_bytes: int) -> int:
    """Bring a client up to date; return its new version."""
    while batch := pieces.since(version, most_bytes=most_bytes):
        for piece in batch:
            assert piece.version > version
            version = piece.version
            if piece.body is None:
                known.pop(piece.key, None)
            else:
                known[piece.key] = piece.body
    return version


@given(_CHANGES, _CHANGES, st.integers(0, 5), st.integers(0, 3))
def test_who_follows_from_any_version_has_what_there_is(
    before: list[tuple[str, bytes | None]],
    after: list[tuple[str, bytes | None]],
    most_bytes: int,
    most_removed: int,
) -> None:
    pieces = Pieces("e", most_removed=most_removed)
    apply(pieces, before)
    known: dict[str, bytes] = {}
    version = follow(pieces, known, 0, most_bytes=most_bytes)

    apply(pieces, after)
    if not pieces.resumable("e", version):
        known, version = {}, 0
    follow(pieces, known, version, most_bytes=most_bytes)

    assert known == {
        piece.key: piece.body for piece in pieces.since(0, most_bytes=10**6) if piece.body
    }
    assert sorted(known) == sorted(pieces.keys(""))


def test_what_stays_the_same_is_not_sent_again() -> None:
    pieces = Pieces("e")

    assert pieces.put("a", b"1")
    assert not pieces.put("a", b"1")
    assert pieces.since(1, most_bytes=10) == []


def test_a_client_of_another_instance_starts_anew() -> None:
    pieces = Pieces("e")
    pieces.put("a", b"1")

    assert pieces.resumable("e", 1)
    assert not pieces.resumable("f", 1)
    assert not pieces.resumable("e", 2)
