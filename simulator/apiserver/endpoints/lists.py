"""Lists, whole or in pages that all show one revision."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simulator.apiserver.apimachinery.errors import bad_request, expired
from simulator.apiserver.apimachinery.request_info import ListSelection
from simulator.apiserver.endpoints.bodies import encoded_item
from simulator.objects import decode, encode

if TYPE_CHECKING:
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.apiserver.apimachinery.storage import Store, Stored

_SNAPSHOTS: Final = 100  # paged lists that are kept until they are finished; older tokens get 410


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """A list request."""

    selection: ListSelection = field(default_factory=ListSelection)
    limit: int = 0
    token: str = ""


class Lister:
    """Serves lists; keeps the rest of a paged list until its client requests it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rests: dict[int, tuple[int, list[Stored]]] = {}
        self._next_id = 0

    def page(self, resource: Resource, options: ListOptions) -> bytes:
        """Return a list object as JSON.

        Raises:
            ApiError: 410 for an expired token.
        """
        if options.token:
            revision, found = self._resume(options.token)
        else:
            revision, found = self._start(resource, options)
        shown = found[: options.limit] if options.limit else found
        rest = found[len(shown) :]
        meta: dict[str, object] = {"resourceVersion": str(revision)}
        if rest:
            meta["continue"] = self._remember(revision, rest)
            if not options.selection.is_narrowed:
                meta["remainingItemCount"] = len(rest)
        opening = f'{{"kind":"{resource.kind}List","apiVersion":"{resource.group_version}",'
        items = b",".join(encoded_item(resource, stored) for stored in shown)
        return opening.encode() + b'"metadata":%s,"items":[%s]}' % (encode(meta), items)

    def forget(self) -> None:
        """Drop every paged list, as compaction does."""
        self._rests.clear()

    def _start(self, resource: Resource, options: ListOptions) -> tuple[int, list[Stored]]:
        found = self._store.list(resource.qualified, options.selection.namespace)
        return self._store.revision, [
            stored for stored in found if options.selection.matches(stored.object)
        ]

    def _remember(self, revision: int, rest: list[Stored]) -> str:
        self._next_id += 1
        self._rests[self._next_id] = revision, rest
        while len(self._rests) > _SNAPSHOTS:
            del self._rests[min(self._rests)]
        return base64.urlsafe_b64encode(encode({"v": "sim", "id": self._next_id})).decode()

    def _resume(self, token: str) -> tuple[int, list[Stored]]:
        try:
            number = int(decode(base64.urlsafe_b64decode(token))["id"])
        except (binascii.Error, ValueError, KeyError, TypeError) as error:
            raise bad_request(f"continue key is not valid: {error}") from error
        found = self._rests.get(number)
        if found is None:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        return found
