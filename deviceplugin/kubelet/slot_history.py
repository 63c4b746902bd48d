"""The verified owner and the open token of slot ids, from one Allocate to the next."""

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

_TOKEN_BYTES: Final = 8
_PREFIX: Final = "fracgpu-ask-"


def new_token() -> str:
    """Return a text that nobody can know before it is used."""
    return _PREFIX + secrets.token_hex(_TOKEN_BYTES)


@dataclass(slots=True)
class _Known:
    """What is known of one set of ids until one of them is allocated again."""

    pod_uid: str = ""
    token: str = ""


class SlotHistory:
    """Remembers the owners of slot ids: they change only by Allocate, which we answer.

    Where it is unclear which container starts, the start is rejected with a token in the text.
    Kubelet writes that text into the status of exactly the container that it wanted to start, so
    the container whose status carries the token is the one.

    Args:
        new_token: returns a token that cannot be guessed.
    """

    def __init__(self, new_token: Callable[[], str] = new_token) -> None:
        self._new_token = new_token
        self._known: dict[frozenset[str], _Known] = {}
        self._times_allocated: Counter[str] = Counter()
        self._takers: dict[str, Counter[str]] = {}
        self._started: dict[tuple[str, str], frozenset[str]] = {}

    def generation(self, slot_ids: frozenset[str]) -> int:
        """Return a number that differs once any of *slot_ids* has been allocated again."""
        return sum(self._times_allocated[slot_id] for slot_id in slot_ids)

    def takers(self, slot_ids: frozenset[str]) -> Mapping[str, Mapping[str, int]]:
        """Return how often each of *slot_ids* was allocated, by UID of the pod; "" is unknown."""
        return {slot_id: self._takers.get(slot_id, {}) for slot_id in slot_ids}

    @property
    def started(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """The slot ids with which a container was seen to start, by pod UID and name."""
        return self._started

    def has_started(
        self, slot_ids: frozenset[str], *, pod_uid: str, container: str, live: Collection[str]
    ) -> None:
        """Record the ids of a container; what is known of pods that are not *live* is dropped."""
        self._started = {key: ids for key, ids in self._started.items() if key[0] in live}
        self._started[pod_uid, container] = slot_ids

    def took(
        self, slot_ids: frozenset[str], *, pod_uid: str, most: int, live: Collection[str]
    ) -> None:
        """Record which pod *slot_ids* were allocated to.

        Args:
            slot_ids: what it starts with.
            pod_uid: the pod.
            most: how many of its containers each of the ids may have been allocated to.
            live: the UIDs of all pods to which one of the ids may have been allocated; empty if
                that is this pod alone.
        """
        for slot_id in slot_ids & self._takers.keys():
            before = self._takers[slot_id]
            named = min(before[""], max(0, most - before[pod_uid]))
            kept = {uid: times for uid, times in before.items() if uid in live}
            unknown = before[""] - named if live else 0
            own = before[pod_uid] + named
            self._takers[slot_id] = Counter({**kept, pod_uid: own, "": unknown})

    def allocated(self, slot_ids: frozenset[str]) -> None:
        """Forget every set that shares an id with *slot_ids*: kubelet has allocated them anew."""
        for slot_id in slot_ids:
            self._times_allocated[slot_id] += 1
            self._takers.setdefault(slot_id, Counter())[""] += 1
        for known_ids in [ids for ids in self._known if ids & slot_ids]:
            del self._known[known_ids]

    def owner_uid(self, slot_ids: frozenset[str]) -> str:
        """Return the UID of the pod that was last verified to hold *slot_ids*, or an empty text."""
        known = self._known.get(slot_ids)
        return known.pod_uid if known is not None else ""

    def token(self, slot_ids: frozenset[str]) -> str:
        """Return the token with which a start of *slot_ids* was rejected, or an empty text."""
        known = self._known.get(slot_ids)
        return known.token if known is not None else ""

    def issue_token(self, slot_ids: frozenset[str]) -> str:
        """Return the token to reject a start of *slot_ids* with: the open one, or a new one."""
        known = self._known.setdefault(slot_ids, _Known())
        known.token = known.token or self._new_token()
        return known.token

    def verified(self, slot_ids: frozenset[str], *, pod_uid: str) -> None:
        """Record the owner and drop the token: the next start needs a new one.

        After an init container, the same ids may start an app container of its pod.

        Args:
            slot_ids: what was verified.
            pod_uid: the owner; empty if there are several.
        """
        self._known[slot_ids] = _Known(pod_uid=pod_uid)

    def doubted(self, slot_ids: frozenset[str]) -> None:
        """Forget the owner: kubelet has given *slot_ids* to several pods."""
        if slot_ids in self._known:
            self._known[slot_ids].pod_uid = ""
