"""What the leader's Lease says of the Bindings under way, so that the next leader knows.

A Binding is sent only once the Lease names its pod. Whoever acquires the Lease replaces the version
that it has read, so it has read all that its predecessor could record, and a record that comes
later is refused, as is the Binding that would have followed.
See docs/decisions/0010-bindings-are-fenced-by-lease-term.md.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fracgpu import names

MOST: Final = 1_000  # pods; an annotation of 40 kB that each write of the Lease carries


class BindingRecord:
    """The pods whose Bindings may still take effect; a ``kube.leader_election.LeaseNotes``.

    Args:
        under_way: returns the UIDs of the pods that this leader may have sent a Binding of.
    """

    def __init__(self, under_way: Callable[[], Iterable[str]]) -> None:
        self._under_way = under_way
        self._inherited: frozenset[str] | None = None

    def inherit(self, annotations: Mapping[str, str], *, term: str) -> None:
        """Take over what the last leader recorded in its *term*.

        Where it recorded nothing that can be read, any pod may be concerned: it was of a version
        that keeps no record, had too many Bindings under way, or the Lease is a new one.
        """
        self._inherited = _read(annotations.get(names.BINDINGS_UNDER_WAY), term=term)

    def concerns(self, uid: str) -> bool:
        """Report whether a Binding of this pod by an earlier leader may still take effect."""
        return self._inherited is None or uid in self._inherited

    def names(self, uid: str) -> bool:
        """Report whether an earlier leader recorded this very pod."""
        return self._inherited is not None and uid in self._inherited

    def settle(self, *, left: Iterable[str]) -> None:
        """Forget the earlier leaders' Bindings, except those of the pods *left*."""
        self._inherited = frozenset(left)

    def annotations(self, *, term: str) -> Mapping[str, str | None]:
        """Return the annotation that the Lease is to have now; None for none."""
        if self._inherited is None:
            return {names.BINDINGS_UNDER_WAY: None}
        pods = sorted(self._inherited.union(self._under_way()))
        text = json.dumps({"term": term, "pods": pods}) if len(pods) <= MOST else None
        return {names.BINDINGS_UNDER_WAY: text}


def _read(text: str | None, *, term: str) -> frozenset[str] | None:
    """Return the UIDs that a leader recorded in its *term*, or None."""
    try:
        record = json.loads(text or "null")
        pods = record["pods"]
        # A version without a record leaves the annotation of the term before its own.
        if record["term"] != term or not all(isinstance(uid, str) for uid in pods):
            return None
        return frozenset(pods)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
