"""The Moves in the API server.

A Move is written before the step that it announces, so that after a crash it shows what may have
happened: a planned move has disturbed nobody; an evicting one may have evicted its pod.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import structs

from fracgpu.errors import WireError
from fracgpu.state.move_object import ENDED, Move, decode_move, object_of
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, MOVES
from kube.objects import encode, identity

_DEFINITION: Final = f"{CUSTOM_RESOURCE_DEFINITIONS.kind} moves.fracgpu.io"

KEPT: Final = timedelta(days=7)  # the longest budget covers a day; people look back a week
MOST_KEPT: Final = 1000  # objects of some 2 KiB


def outlived(moves: Sequence[Move], *, now: datetime) -> list[Move]:
    """Return the ended moves to forget: those older than a week, and the oldest beyond 1000."""
    ended = sorted(
        (move for move in moves if move.phase in ENDED),
        key=lambda move: (move.phase_since, move.name),
    )
    surplus = max(0, len(moves) - MOST_KEPT)
    return [
        move
        for place, move in enumerate(ended)
        if place < surplus or now - move.phase_since >= KEPT
    ]


class MovesUnreadable(Exception):  # noqa: N818 - says what it is
    """A Move cannot be parsed, or none can be read, so past moves are unknown."""


class MoveStore:
    """The Moves; read by :meth:`load`, then written through.

    Only the leader writes Moves, and reads them all at the start of each cycle: a Move that
    somebody deleted is then forgotten.

    Args:
        client: reaches the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._moves: dict[str, Move] = {}

    @property
    def moves(self) -> tuple[Move, ...]:
        """The Moves, oldest first."""
        return tuple(sorted(self._moves.values(), key=lambda move: (move.planned_at, move.name)))

    async def load(self) -> None:
        """Read all Moves.

        Raises:
            MovesUnreadable: a Move of another version, or there is no such resource.
            KubeError: the API server did not answer.
        """
        try:
            listed = await self._client.list(MOVES)
        except NotFound as error:
            raise MovesUnreadable(f"{_DEFINITION} is not installed: {error}") from error
        found = [_readable(bytes(raw)) for raw in listed.items]
        self._moves = {move.name: move for move in found}

    async def put(self, move: Move) -> Move:
        """Create a Move, or replace its status; when this returns it is persisted.

        Returns:
            The Move with the resourceVersion that the next write needs.

        Raises:
            Conflict: the Move changed since it was read, or its name is taken; load again.
            NotFound: the Move was deleted meanwhile; load again.
            KubeError: the outcome is unknown; load again.
        """
        known = self._moves.get(move.name)
        if known is None:
            created = await self._client.create(MOVES, object_of(move))
            # A new object has no status: the API server drops it.
            known = self._keep(move, created)
        stored = await self._client.replace(
            MOVES, object_of(_with_metadata_of(move, known)), subresource="status"
        )
        return self._keep(move, stored)

    async def forget(self, move: Move) -> None:
        """Delete a Move; one that is gone already is no error.

        Raises:
            KubeError: the outcome is unknown; load again.
        """
        with suppress(NotFound):
            await self._client.delete(MOVES, move.name, uid=move.metadata.uid or None)
        self._moves.pop(move.name, None)

    def _keep(self, move: Move, stored: dict[str, Any]) -> Move:
        kept = _with_metadata_of(move, decode_move(encode(stored)))
        self._moves[kept.name] = kept
        return kept


def _with_metadata_of(move: Move, stored: Move) -> Move:
    """Return a Move with the metadata under which it was stored."""
    return structs.replace(move, metadata=stored.metadata)


def _readable(body: bytes) -> Move:
    try:
        return decode_move(body)
    except WireError as error:
        name = identity(body).name
        raise MovesUnreadable(f"Move {name}: {error}; delete it to forget it") from error
