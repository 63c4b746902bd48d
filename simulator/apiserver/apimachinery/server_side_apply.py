"""Server-side apply: who owns which field, what an apply changes, and when two appliers conflict.

Source: docs "Server-Side Apply" and sigs.k8s.io/structured-merge-diff. Only appliers own fields
here: what others write by update or patch belongs to nobody and conflicts with nobody. Lists that
have a merge key in a strategic merge patch are maps by that key; all others are replaced whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from simulator.apiserver.apimachinery.patches import merge_key
from simulator.objects import Json, thaw

# A step is a field's name, or the key and value of a list's item.
Step: TypeAlias = str | tuple[str, Any]
Path: TypeAlias = tuple[Step, ...]
Fields: TypeAlias = frozenset[Path]
_IDENTITY: Final[frozenset[Path]] = frozenset(
    {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}
)
_MISSING: Final = object()


class ApplyConflictError(Exception):
    """Another manager has applied some of the fields with another value."""

    def __init__(self, conflicts: Mapping[Path, str]) -> None:
        super().__init__(f"{len(conflicts)} conflicts")
        self.conflicts = conflicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The object after an apply, and the fields of each manager."""

    value: Json
    owners: Mapping[str, Fields]


@dataclass(slots=True)
class FieldOwners:
    """The fields that each manager has applied, by the object's uid; the oldest are dropped."""

    most: int = 10_000
    _owners: dict[str, Mapping[str, Fields]] = field(default_factory=dict)

    def of(self, uid: str) -> Mapping[str, Fields]:
        return self._owners.get(uid, {})

    def keep(self, uid: str, owners: Mapping[str, Fields]) -> None:
        self._owners.pop(uid, None)
        self._owners[uid] = owners
        while len(self._owners) > self.most:
            del self._owners[next(iter(self._owners))]


def apply(
    live: Json, wanted: Json, owners: Mapping[str, Fields], *, manager: str, force: bool
) -> Applied:
    """Return *live* with what *manager* wants, and without what it has wanted before only.

    Raises:
        ApplyConflictError: another manager owns a field with another value, and *force* is False.
    """
    fields = fields_of(wanted)
    others = {name: owned for name, owned in owners.items() if name != manager}
    conflicts = {
        path: name
        for name, owned in others.items()
        for path in fields & owned
        if _at(live, path) != _at(wanted, path) and _at(live, path) is not _MISSING
    }
    if conflicts and not force:
        raise ApplyConflictError(conflicts)
    others = {name: owned - conflicts.keys() for name, owned in others.items()}
    value = _merged(thaw(live), thaw(wanted))
    kept = fields.union(*others.values())
    # An item goes before its members: without the member that names it, it could not be found.
    for path in sorted(owners.get(manager, frozenset()) - kept, key=len):
        _remove(value, path)
    return Applied(value=value, owners={**others, manager: fields})


def fields_of(wanted: Json) -> Fields:
    """Return the fields that an applied object has, without those that name it."""
    return frozenset(_paths(wanted, ())) - _IDENTITY


def shown(path: Path) -> str:
    """Return a path as in messages: ``.spec.containers[name="a"].image``."""
    return "".join(
        f".{step}" if isinstance(step, str) else f'[{step[0]}="{step[1]}"]' for step in path
    )


def _paths(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _paths(inner, (*path, name))
        return
    key = _key(path, value)
    if key is None:
        yield path
        return
    for item in value:
        here = (*path, (key, item[key]))
        yield here
        for name, inner in item.items():
            yield from _paths(inner, (*here, name))


def _key(path: Path, value: Any) -> str | None:
    """Return the merge key of a list, or None if it is replaced whole."""
    name = path[-1] if path else ""
    if not isinstance(value, list) or not value or not isinstance(name, str):
        return None
    key = merge_key(name, value)
    if key is None or not all(isinstance(item, dict) and key in item for item in value):
        return None
    return key


def _at(value: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, str):
            value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
        else:
            value = next((item for item in value or () if _is(item, step)), _MISSING)
        if value is _MISSING:
            return _MISSING
    # Of an item only its presence is owned: its fields have paths of their own.
    return True if path and not isinstance(path[-1], str) else value


def _is(item: Any, step: tuple[str, Any]) -> bool:
    return isinstance(item, dict) and item.get(step[0]) == step[1]


def _merged(live: Any, wanted: Any, path: Path = ()) -> Any:
    if isinstance(live, dict) and isinstance(wanted, dict):
        for name, inner in wanted.items():
            live[name] = _merged(live.get(name), inner, (*path, name))
        return live
    key = _key(path, wanted)
    if key is None or not isinstance(live, list):
        return wanted
    for item in wanted:
        here = (*path, (key, item[key]))
        position = next((at for at, old in enumerate(live) if _is(old, (key, item[key]))), None)
        if position is None:
            live.append(item)
        else:
            live[position] = _merged(live[position], item, here)
    return live


def _remove(value: Any, path: Path) -> None:
    *way, last = path
    for step in way:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = next((item for item in value or () if _is(item, step)), None)
    if isinstance(last, str):
        if isinstance(value, dict):
            value.pop(last, None)
    elif isinstance(value, list):
        value[:] = [item for item in value if not _is(item, last)]
