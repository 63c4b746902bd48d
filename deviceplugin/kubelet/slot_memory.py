"""What we know of slot ids from one Allocate to the next, and what we asked kubelet about them."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_TOKEN_BYTES: Final = 8
_PREFIX: Final = "fracgpu-ask-"


def _new_token() -> str:
    return _PREFIX + secrets.token_hex(_TOKEN_BYTES)


@dataclass(slots=True)
class _Known:
    """What holds for one set of ids until they are handed out again."""

    pod_uid: str = ""
    token: str = ""


class SlotHistory:
    """Ids change hands only through Allocate, which we answer: until then a verified owner stays.

    A question is a token in a refusal. Kubelet writes the refusal into the status of exactly the
    container that it wanted to start, so whoever carries the token there is the one.

    Args:
        new_token: makes a token that nobody can guess.
    """

    def __init__(self, new_token: Callable[[], str] = _new_token) -> None:
        self._new_token = new_token
        self._known: dict[frozenset[str], _Known] = {}
        self._times_allocated: dict[str, int] = {}

    def turn(self, slot_ids: frozenset[str]) -> int:
        """Give a number that differs once any of *slot_ids* was handed out again."""
        return sum(self._times_allocated.get(it, 0) for it in slot_ids)

    def allocated(self, slot_ids: frozenset[str]) -> None:
        """Forget whatever shares an id with *slot_ids*: kubelet hands them to somebody."""
        for slot_id in slot_ids:
            self._times_allocated[slot_id] = self._times_allocated.get(slot_id, 0) + 1
        for known in [it for it in self._known if it & slot_ids]:
            del self._known[known]

    def owner_uid(self, slot_ids: frozenset[str]) -> str:
        """Give the UID of the pod that was last verified to hold them, or an empty text."""
        known = self._known.get(slot_ids)
        return known.pod_uid if known is not None else ""

    def token(self, slot_ids: frozenset[str]) -> str:
        """Give the token of the open question about *slot_ids*, or an empty text."""
        known = self._known.get(slot_ids)
        return known.token if known is not None else ""

    def ask(self, slot_ids: frozenset[str]) -> str:
        """Ask whose start it is, unless that is asked already; return the token."""
        known = self._known.setdefault(slot_ids, _Known())
        known.token = known.token or self._new_token()
        return known.token

    def verified(self, slot_ids: frozenset[str], *, pod_uid: str) -> None:
        """Note the owner and close the question: the next start needs a new one.

        After an init container the same ids may start an app container of its pod.
        """
        self._known[slot_ids] = _Known(pod_uid=pod_uid)
