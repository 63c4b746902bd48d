"""Kubernetes objects with parts that Helm fills in, and their text as a template."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

_STEP: Final = 2
_BRACES: Final = re.compile(r"\{\{|\}\}")
# As kubectl prints them; all other keys follow in the order of the alphabet.
_FIRST: Final = ("apiVersion", "kind", "metadata", "name", "namespace")


@dataclass(frozen=True, slots=True)
class Expression:
    """A scalar that a template expression returns, quoted if *quoted*."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Text of a list or map, as YAML, that a template expression returns."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A string of several lines that a template expression returns."""

    text: str


@dataclass(frozen=True, slots=True)
class Splice:
    """More items of a list, or more entries of a map under :data:`SPLICED`, if there are any."""

    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Different values under different conditions.

    Attributes:
        branches: pairs of a template condition and the value under it; the first that holds counts.
        otherwise: the value if none holds; :data:`ABSENT` for no entry at all.
    """

    branches: tuple[tuple[str, Any], ...]
    otherwise: Any


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
SPLICED: Final = ""  # no key of Kubernetes


def render(body: Mapping[str, Any]) -> str:
    """Return the text of one object in a template."""
    return "".join(f"{line}\n" for line in _map(body, 0))


def _map(body: Mapping[str, Any], indent: int) -> Iterator[str]:
    for key in sorted(body, key=_rank):
        yield from _entry(f"{_scalar(key)}:" if key != SPLICED else "", body[key], indent)


def _rank(key: str) -> tuple[int, str]:
    return (_FIRST.index(key), "") if key in _FIRST else (len(_FIRST), key)


def _entry(head: str, value: Any, indent: int) -> Iterator[str]:
    """Yield one entry of a map, or of a list where *head* is its dash."""
    match value:
        case Choice():
            yield from _choice(head, value, indent)
        case Expression() | Block() | Text() | Splice():
            yield from _filled(head, value, indent)
        case dict() | list() if value:
            yield from _nested(head, value, indent)
        case str() if "\n" in value:
            yield from _literal(f"{' ' * indent}{head}", value, indent + _STEP)
        case _:
            yield f"{' ' * indent}{head} {_scalar(value)}"


def _filled(head: str, value: Expression | Block | Text | Splice, indent: int) -> Iterator[str]:
    pad, inner = " " * indent, indent + _STEP
    match value:
        case Expression(text, quoted):
            yield f"{pad}{head} {{{{ {text}{' | quote' if quoted else ''} }}}}"
        case Block(text):
            yield f"{pad}{head}"
            yield f"{' ' * inner}{{{{- {text} | nindent {inner} }}}}"
        case Text(text):
            yield f"{pad}{head} |"
            yield f"{' ' * inner}{{{{- {text} | nindent {inner} }}}}"
        case Splice(text):
            yield f"{{{{- with {text} }}}}"
            yield f"{pad}{{{{- toYaml . | nindent {indent} }}}}"
            yield "{{- end }}"


def _nested(head: str, value: Mapping[str, Any] | list[Any], indent: int) -> Iterator[str]:
    pad, inner = " " * indent, indent + _STEP
    if isinstance(value, list):
        yield f"{pad}{head}"
        for item in value:
            yield from _entry("-", item, inner)
    elif head == "-":
        yield from _dashed(list(_map(value, inner)), pad)
    else:
        yield f"{pad}{head}"
        yield from _map(value, inner)


def _dashed(lines: list[str], pad: str) -> Iterator[str]:
    first = lines[0].strip(" ")
    if first.startswith("{{"):
        raise ValueError(f"an item of a list begins with a condition: {first}")
    yield f"{pad}- {first}"
    yield from lines[1:]


def _choice(head: str, choice: Choice, indent: int) -> Iterator[str]:
    if len(choice.branches) == 1 and choice.branches[0][1] is ABSENT:
        choice = Choice(((f"not ({choice.branches[0][0]})", choice.otherwise),), ABSENT)
    word = "if"
    for condition, value in choice.branches:
        yield f"{{{{- {word} {condition} }}}}"
        if value is not ABSENT:
            yield from _entry(head, value, indent)
        word = "else if"
    if choice.otherwise is not ABSENT:
        yield "{{- else }}"
        yield from _entry(head, choice.otherwise, indent)
    yield "{{- end }}"


def _literal(head: str, value: str, indent: int) -> Iterator[str]:
    body = value.rstrip("\n")
    trailing = len(value) - len(body)
    plain = body.replace("\n", "").isprintable()
    if body[:1] in ("", " ", "\n") or trailing > 1 or not plain:
        yield f"{head} {_scalar(value)}"
        return
    yield f"{head} |{'' if trailing else '-'}"
    for line in body.split("\n"):
        yield f"{' ' * indent}{_escaped(line)}" if line else ""


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, allow_unicode=True)
    return _escaped(text.removesuffix("\n").removesuffix("\n..."))


def _escaped(text: str) -> str:
    """Return *text* so that Helm prints it as it is."""
    return _BRACES.sub(lambda found: f'{{{{ "{found[0]}" }}}}', text)
