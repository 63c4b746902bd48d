"""The flags that commands share: which cluster is asked, about which pods, in which format."""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, NoReturn, TypeVar

import yaml

from fracgpu import names
from fracgpu.spelling import did_you_mean

_DURATION: Final = re.compile(r"([0-9]{1,6})(ms|s|m|h)?")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NO_LIMIT_S: Final = 24 * 3600.0
_DEFAULT_TIMEOUT: Final = "30s"


_Number = TypeVar("_Number", int, float)


class Parser(argparse.ArgumentParser):
    """A parser whose errors say which flag or word may have been meant, as Python 3.14's do."""

    def error(self, message: str) -> NoReturn:
        """End with what is wrong and the nearest that would be right."""
        unknown, _, words = message.partition(": ")
        if unknown == "unrecognized arguments":
            hints = [did_you_mean(word.partition("=")[0], self.flags()) for word in words.split()]
            message = "; ".join([message, *filter(None, hints)])
        super().error(message)

    def flags(self) -> Iterator[str]:
        """Yield the flags, also those of subcommands."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action.choices, Mapping):
                for subcommand in action.choices.values():
                    yield from subcommand.flags()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), known)
            message = f"invalid choice: {str(value)!r}; want one of {', '.join(known)}"
            raise argparse.ArgumentError(action, f"{message}; {hint}" if hint else message)


class Output(Enum):
    """A format of the answer, as for ``kubectl get``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def structured(self) -> bool:
        """Whether programs read it: the whole answer, and nothing else on the output."""
        return self in (Output.JSON, Output.YAML)


ANSWERS: Final = (Output.TABLE, Output.JSON, Output.YAML)
"""The formats of a command that answers one question."""

LISTS: Final = tuple(Output)
"""The formats of a command that lists something."""


def add_cluster_flags(
    parser: argparse.ArgumentParser, *, formats: Sequence[Output] = ANSWERS
) -> None:
    """Add the flags of every command that reads a live cluster."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="default: the pod's own account, else $KUBECONFIG, else ~/.kube/config",
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig to use")
    parser.add_argument(
        "--request-timeout",
        type=_duration_s,
        default=_DEFAULT_TIMEOUT,
        metavar="TIME",
        help="longest wait for one answer of the API server, such as 5s or 1m; 0 means no limit "
        f"(default {_DEFAULT_TIMEOUT})",
    )
    add_output_flags(parser, formats=formats)


def add_output_flags(parser: argparse.ArgumentParser, *, formats: Sequence[Output]) -> None:
    """Add the flags that choose among *formats*."""
    words = [output.value for output in formats]

    def chosen(word: str) -> Output:
        # `text` is what the table was called at first.
        found = "table" if word == "text" else word
        if found not in words:
            raise argparse.ArgumentTypeError(f"{word!r}; want one of {', '.join(words)}")
        return Output(found)

    output = parser.add_argument(
        "-o",
        "--output",
        type=chosen,
        default=Output.TABLE,
        metavar="|".join(words),
        help="format of the answer (default table)",
    )
    # Read by argcomplete: `choices` would be compared with the parsed value.
    output.completer = lambda **_: words  # type: ignore[attr-defined]
    parser.add_argument(
        "--json", dest="output", action="store_const", const=Output.JSON, help="same as -o json"
    )


def add_pod_namespace_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that restrict a list to the pods of one namespace."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-n", "--namespace", metavar="NAME", help="only pods of this namespace")
    group.add_argument(
        "-A", "--all-namespaces", action="store_true", help="pods of all namespaces (the default)"
    )


def add_system_namespace_flag(parser: argparse.ArgumentParser, *older: str) -> None:
    """Add the flag that says where FracGPU runs; *older* are its earlier spellings."""
    parser.add_argument(
        "--system-namespace",
        *older,
        default=names.SYSTEM_NAMESPACE,
        metavar="NAME",
        help="where FracGPU runs (default %(default)s)",
    )


def encode(body: object, output: Output, *, stream: bool = False) -> str:
    """Return *body* as JSON or YAML; in a *stream*, one line or one document for each call."""
    if output is Output.YAML:
        text: str = yaml.safe_dump(as_json(body), sort_keys=False, allow_unicode=False)
        return ("---\n" if stream else "") + text.rstrip("\n")
    return json.dumps(as_json(body), indent=None if stream else 2)


def say(answer: object, words: str, output: Output) -> None:
    """Print what a command has done: in *words*, or as the object *answer* for programs."""
    print(encode(answer, output) if output.structured else words)


def as_json(value: object) -> Any:
    """Return *value* as JSON has it: dataclasses as objects with names in camelCase."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(inner) for inner in value]
    if is_dataclass(value):
        return {_camel(field.name): as_json(getattr(value, field.name)) for field in fields(value)}
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def number(
    kind: Callable[[str], _Number], low: int, high: int, *, unit: str = ""
) -> Callable[[str], _Number]:
    """Return what reads the value of a flag that is a number within these bounds."""

    def read(text: str) -> _Number:
        with suppress(ValueError):
            found = kind(text)
            if low <= found <= high:
                return found
        raise argparse.ArgumentTypeError(f"{text!r}; want {low} to {high}{unit}")

    return read


def _duration_s(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}; want a time such as 5s, 500ms, 1m, or 0")
    seconds = int(found[1]) * _UNITS_S[found[2] or "s"]
    return seconds or _NO_LIMIT_S


def slashed(text: str) -> tuple[str, str]:
    """Return the two words of ``A/B``, for argparse."""
    first, slash, second = text.partition("/")
    if not (first and slash and second) or "/" in second:
        raise argparse.ArgumentTypeError(f"{text!r}; want two names with a slash between them")
    return first, second
