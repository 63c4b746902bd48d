"""Several builds of the same objects as one, with a condition wherever they differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from tools.helm_chart.template import ABSENT, Choice

Json = dict[str, Any]


class ConflictError(Exception):
    """Two overlays that can be chosen together change the same value in different ways."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One overlay's build.

    Attributes:
        switch: the value that chooses it; variants with the same switch exclude each other.
        condition: the template expression that holds if it is chosen.
        value: the build, or a part of it.
    """

    switch: str
    condition: str
    value: Any

    def at(self, value: Any) -> "Variant":
        """Return the same variant of a part."""
        return Variant(self.switch, self.condition, value)


def combine(base: Any, variants: Sequence[Variant], *, path: str = "") -> Any:
    """Return *base* with a :class:`Choice` wherever one of *variants* differs from it.

    Raises:
        ConflictError: variants with different switches change the same value differently.
    """
    changed = [variant for variant in variants if variant.value != base]
    if not changed:
        return base
    values = [base, *(variant.value for variant in changed)]
    if all(isinstance(value, dict) for value in values):
        return _maps(base, changed, path)
    # An empty list stays one: with all its items under conditions it would be null.
    if all(isinstance(value, list) and value for value in values):
        if all(_named(value) for value in values):
            return _named_lists(base, changed, path)
        return _lists(base, changed)
    return _scalars(base, changed, path)


def _scalars(base: Any, changed: Sequence[Variant], path: str) -> Choice:
    for one in changed:
        for other in changed:
            if one.switch != other.switch and one.value != other.value:
                raise ConflictError(
                    f"{path}: the overlays for {one.condition} and {other.condition} both change it"
                )
    return Choice(_branches(changed), base)


def _branches(changed: Sequence[Variant]) -> tuple[tuple[str, Any], ...]:
    """Return the branches; variants with the same value share one."""
    values: list[Any] = []
    for variant in changed:
        if variant.value not in values:
            values.append(variant.value)
    return tuple(
        (_any([each.condition for each in changed if each.value == value]), value)
        for value in values
    )


def _any(conditions: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(conditions))
    if len(distinct) == 1:
        return distinct[0]
    return "or " + " ".join(f"({condition})" for condition in distinct)


def _maps(base: Json, changed: Sequence[Variant], path: str) -> Json:
    keys = dict.fromkeys([*base, *(key for variant in changed for key in variant.value)])
    return {
        key: combine(
            base.get(key, ABSENT),
            [variant.at(variant.value.get(key, ABSENT)) for variant in changed],
            path=f"{path}.{key}",
        )
        for key in keys
    }


def _named(items: Sequence[Any]) -> bool:
    """Report whether the items of a list are told apart by their names, as containers are."""
    names = [item.get("name") for item in items if isinstance(item, Mapping)]
    return bool(items) and len(set(names) - {None}) == len(items)


def _named_lists(base: list[Json], changed: Sequence[Variant], path: str) -> list[Any]:
    merged = _maps(
        {item["name"]: item for item in base},
        [variant.at({item["name"]: item for item in variant.value}) for variant in changed],
        path,
    )
    return list(merged.values())


def _lists(base: list[Any], changed: Sequence[Variant]) -> list[Any]:
    """Compare item by item; what several variants do to one list happens side by side."""
    removed: dict[int, list[str]] = {}
    added: dict[int, list[Variant]] = {}
    for variant in changed:
        for start, end, items in _edits(base, variant.value):
            for index in range(start, end):
                removed.setdefault(index, []).append(variant.condition)
            # What replaces items stands where they stood.
            added.setdefault(end, []).append(variant.at(items))
    merged: list[Any] = []
    for index in range(len(base) + 1):
        for condition, items in _branches(added.get(index, [])):
            merged += [Choice(((condition, item),), ABSENT) for item in items]
        if index < len(base):
            item = base[index]
            gone = removed.get(index)
            merged.append(Choice(((_any(gone), ABSENT),), item) if gone else item)
    return merged


def _edits(before: list[Any], after: list[Any]) -> Iterator[tuple[int, int, list[Any]]]:
    """Yield which items of *before* are replaced by which of *after*."""
    seen = [repr(item) for item in before], [repr(item) for item in after]
    for what, start, end, first, last in SequenceMatcher(None, *seen, autojunk=False).get_opcodes():
        if what != "equal":
            yield start, end, after[first:last]
