"""Finds and changes fields of the objects, by paths such as ``spec.containers[web].image``."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tools.helm_chart.template import ABSENT, Choice

_PART: Final = re.compile(r"(?P<key>[^.\[\]]+)|\[(?P<name>[^\]]+)\]")


class MissingFieldError(Exception):
    """deploy/ no longer has a field that a value of the chart fills in."""


def parts_of(path: str) -> list[str]:
    """Return the keys of maps and the names of list items that lead to a field."""
    return [found["name"] or found["key"] for found in _PART.finditer(path)]


def read(body: Any, path: str) -> Any:
    """Return the value at *path*, or ABSENT."""
    value = body
    for part in parts_of(path):
        value = next(_inside(value, part), ABSENT)
        if value is ABSENT:
            return ABSENT
    return value


def write(body: Any, path: str, change: Callable[[Any], Any]) -> None:
    """Replace what is at *path* by what *change* makes of it; it gets ABSENT where nothing is.

    Raises:
        MissingFieldError: the object in which the field would be is not there.
    """
    *way, last = parts_of(path)
    holders = [body]
    for part in way:
        holders = [inner for each in holders for inner in _inside(each, part)]
    holders = [inner for each in holders for inner in _alternatives(each)]
    if not holders:
        raise MissingFieldError(path)
    for holder in holders:
        if not isinstance(holder, dict):
            raise MissingFieldError(path)
        holder[last] = change(holder.get(last, ABSENT))


def append(body: Any, path: str, items: Sequence[Any]) -> None:
    """Append *items* to the list at *path*.

    Raises:
        MissingFieldError: there is no list.
    """
    found = read(body, path)
    if not isinstance(found, list):
        raise MissingFieldError(path)
    found.extend(items)


def only_alternative(value: Any) -> Any:
    """Return *value*, or the only thing that stands under its conditions.

    Raises:
        MissingFieldError: there are several, which a value of the chart cannot all fill.
    """
    found = list(_alternatives(value))
    if len(found) != 1:
        raise MissingFieldError(f"{len(found)} alternatives of one object or item: {value!r:.100}")
    return found[0]


def _inside(value: Any, part: str) -> Iterator[Any]:
    for each in _alternatives(value):
        if isinstance(each, list):
            yield from (
                inner
                for item in each
                for inner in _alternatives(item)
                if isinstance(inner, dict) and inner.get("name") == part
            )
        elif isinstance(each, dict) and part in each:
            yield each[part]


def _alternatives(value: Any) -> Iterator[Any]:
    """Yield *value*, or what stands under each of its conditions."""
    if isinstance(value, Choice):
        for inner in (*(branch for _, branch in value.branches), value.otherwise):
            if inner is not ABSENT:
                yield from _alternatives(inner)
    elif value is not ABSENT:
        yield value
