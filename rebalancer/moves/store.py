"""Keeps the records of moves as Moves in the API server, each locked by its resourceVersion."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from fracgpu.errors import WireError
from fracgpu.state.move_object import MoveObject, decode_move
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, MOVES
from kube.objects import encode, identity
from rebalancer.moves.record import MoveRecord

_DEFINITION: Final = f"{CUSTOM_RESOURCE_DEFINITIONS.kind} moves.fracgpu.io"


class MovesUnreadable(Exception):  # noqa: N818 - says what it is
    """A Move cannot be parsed, or none can be read, so past moves are unknown."""


class MoveStore:
    """The Moves; read by :meth:`load`, then written through.

    Only the leader writes Moves, and reads them all at the start of each cycle: a Move that
    somebody deleted is then forgotten.

    Args:
        client: reaches the API server.
        guard: raises where this process must not write any more.
    """

    def __init__(self, client: KubeClient, *, guard: Callable[[], None]) -> None:
        self._client = client
        self._guard = guard
        self._records: dict[str, MoveRecord] = {}

    @property
    def records(self) -> tuple[MoveRecord, ...]:
        """The records, oldest first."""
        return tuple(
            sorted(self._records.values(), key=lambda record: (record.planned_at, record.id))
        )

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
        self._records = {record.id: record for record in found}

    async def put(self, record: MoveRecord) -> MoveRecord:
        """Create a Move, or replace its status; when this returns it is persisted.

        Returns:
            The record with the resourceVersion that the next write needs.

        Raises:
            Conflict: the Move changed since it was read, or its name is taken; load again.
            NotFound: the Move was deleted meanwhile; load again.
            KubeError: the outcome is unknown; load again.
        """
        known = self._records.get(record.id)
        if known is None:
            self._guard()
            created = await self._client.create(MOVES, object_of(record))
            # A new object has no status: the API server drops it.
            known = self._keep(record, created)
        self._guard()
        stored = await self._client.replace(
            MOVES, object_of(_with_metadata_of(record, known.object)), subresource="status"
        )
        return self._keep(record, stored)

    async def forget(self, record: MoveRecord) -> None:
        """Delete a Move; one that is gone already is no error.

        Raises:
            KubeError: the outcome is unknown; load again.
        """
        self._guard()
        uid = record.object.metadata.uid or None
        with suppress(NotFound):
            await self._client.delete(MOVES, record.id, uid=uid)
        self._records.pop(record.id, None)

    def _keep(self, record: MoveRecord, stored: dict[str, Any]) -> MoveRecord:
        kept = _with_metadata_of(record, decode_move(encode(stored)))
        self._records[kept.id] = kept
        return kept


def object_of(record: MoveRecord) -> dict[str, Any]:
    """Return a record as the JSON object that the API server stores."""
    found: dict[str, Any] = msgspec.to_builtins(record.object)
    found["status"]["phase"] = record.phase.value  # shown even where it is the default
    return found


def _with_metadata_of(record: MoveRecord, stored: MoveObject) -> MoveRecord:
    """Return a record with the metadata under which it was stored."""
    merged = msgspec.structs.replace(record.object, metadata=stored.metadata)
    return MoveRecord(object=merged, dry_run=record.dry_run)


def _readable(body: bytes) -> MoveRecord:
    try:
        return MoveRecord(object=decode_move(body))
    except WireError as error:
        name = identity(body).name
        raise MovesUnreadable(f"Move {name}: {error}; delete it to forget it") from error
