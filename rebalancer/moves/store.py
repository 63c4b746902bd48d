"""Stores move records in a ConfigMap, with its resourceVersion as an optimistic lock."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import CONFIGMAPS
from rebalancer.moves.record import MoveRecord, kept, read_records, write_records

NAME: Final = "fracgpu-rebalancer-state"
_KEY: Final = "moves"


class MovesUnreadable(Exception):  # noqa: N818 - says what it is
    """The ConfigMap cannot be parsed, so past moves are unknown."""


class MoveStore:
    """The persisted move records; read by :meth:`load`, then written through.

    Args:
        client: reaches the API server.
        namespace: of the ConfigMap.
        guard: raises where this process must not write any more.
    """

    def __init__(self, client: KubeClient, *, namespace: str, guard: Callable[[], None]) -> None:
        self._client = client
        self._guard = guard
        self._namespace = namespace
        self._object: dict[str, Any] | None = None
        self._records: tuple[MoveRecord, ...] = ()

    @property
    def records(self) -> tuple[MoveRecord, ...]:
        """The persisted records, oldest first."""
        return self._records

    async def load(self) -> None:
        """Read the records again.

        Raises:
            Unreadable: somebody wrote something else there.
            KubeError: the API server did not answer.
        """
        try:
            found = await self._client.get_object(CONFIGMAPS, NAME, namespace=self._namespace)
        except NotFound:
            self._object, self._records = None, ()
            return
        text = (found.get("data") or {}).get(_KEY)
        try:
            self._records = read_records(text) if text else ()
        except ValueError as error:
            where = f"ConfigMap {self._namespace}/{NAME}, key {_KEY}"
            raise MovesUnreadable(
                f"{where}: {error}; delete it to forget all past moves"
            ) from error
        self._object = found

    async def put(self, record: MoveRecord, *, now: datetime) -> None:
        """Add a record, or replace the one with its id; when this returns it is persisted.

        Raises:
            Conflict: the ConfigMap changed since it was read; load again.
            KubeError: the outcome is unknown; load again.
        """
        others = [other for other in self._records if other.id != record.id]
        await self._write(kept([*others, record], now=now))

    async def _write(self, records: Sequence[MoveRecord]) -> None:
        self._guard()
        data = {_KEY: write_records(records)}
        if self._object is None:
            body: dict[str, Any] = {
                "metadata": {"name": NAME, "namespace": self._namespace},
                "data": data,
            }
            self._object = await self._client.create(CONFIGMAPS, body)
        else:
            self._object = await self._client.replace(CONFIGMAPS, {**self._object, "data": data})
        self._records = tuple(records)
