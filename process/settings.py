"""A role's settings: one frozen dataclass, filled from flags, then environment, then defaults.

A flag is the field's name with dashes (``--listen-port 8443``), a variable the role and the name
in capitals (``FRACGPU_WEBHOOK_LISTEN_PORT``). All mistakes are reported at once.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

from process.sockets import ANY_ADDRESS

_KEY: Final = "fracgpu.setting"
_MASKED: Final = "***"
_MOST_WORD: Final = 63  # characters of a flag that is compared with all others
_WORDS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_TYPE_NAMES: Final = {int: "a whole number", float: "a number", bool: "true or false"}

# kubelet sets these for every Service in the pod's namespace, with our prefix for a Service named
# fracgpu-webhook. https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_LINK: Final = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_LINK_URL: Final = re.compile(r"(tcp|udp|sctp)://")


class Required:
    """The default of a required setting: ``setting(REQUIRED, "...")``."""


REQUIRED: Final = Required()


class SettingsError(Exception):
    """All mistakes in the flags and variables of a program."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class HelpRequested(Exception):  # noqa: N818 - an answer to --help, not an error
    """``--help`` was passed; ``str()`` is the text to print."""


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


S = TypeVar("S", bound=_Dataclass)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meta:
    meaning: str
    low: float | None
    high: float | None
    choices: tuple[str, ...] | None
    secret: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    name: str
    flag: str
    variable: str
    type: type
    many: bool
    optional: bool
    default: object
    meta: _Meta


def setting(
    default: object,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    secret: bool = False,
) -> Any:
    """Declare one setting: its default (or ``REQUIRED``), meaning and range.

    Args:
        default: the value if neither flag nor variable is given.
        meaning: a phrase for ``--help``; the unit is in the field's name.
        low: the smallest number allowed.
        high: the largest number allowed.
        choices: the only texts allowed.
        secret: never print the value.
    """
    meta = _Meta(
        meaning=meaning,
        low=low,
        high=high,
        choices=tuple(choices) if choices is not None else None,
        secret=secret,
    )
    if isinstance(default, Required):
        return dataclasses.field(metadata={_KEY: meta})
    return dataclasses.field(default=default, metadata={_KEY: meta})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The settings of every role."""

    kubeconfig: str | None = setting(
        None, "kubeconfig file; else in-cluster, else $KUBECONFIG or ~/.kube/config"
    )
    log_level: str = setting(
        "info", "least severe log line", choices=("debug", "info", "warning", "error")
    )
    log_json: bool | None = setting(None, "JSON log lines; default: unless on a terminal")
    # kubelet and Prometheus connect from outside the pod.
    telemetry_host: str = setting(
        ANY_ADDRESS, "address of /metrics, /livez, /readyz; :: means every address of IPv4 and IPv6"
    )
    telemetry_port: int = setting(
        9400, "port of /metrics, /livez, /readyz; 0 takes a free one", low=0, high=65535
    )
    drain_wait_s: float = setting(
        3.0, "between not ready and not accepting, so that callers notice", low=0, high=60
    )
    drain_timeout_s: float = setting(
        10.0, "longest wait for requests in flight at stop", low=0, high=300
    )


def load(cls: type[S], argv: Sequence[str], environ: Mapping[str, str], *, program: str) -> S:
    """Return *cls* filled from flags, then variables, then defaults.

    Args:
        cls: a dataclass whose fields are made by ``setting``.
        argv: the flags alone, without the program's name.
        environ: usually ``os.environ``.
        program: the role; names the variables: ``FRACGPU_<PROGRAM>_<FIELD>``.

    Raises:
        SettingsError: something is unknown, missing, repeated or invalid.
        HelpRequested: ``--help`` or ``-h`` is among the flags.
    """
    if "--help" in argv or "-h" in argv:
        raise HelpRequested(usage(cls, program=program))
    specs = _specs(cls, program)
    mistakes: list[str] = []
    flags = _read_flags(argv, specs, mistakes)
    variables = _read_variables(environ, specs, _prefix(program), mistakes)
    values: dict[str, object] = {}
    for spec in specs:
        given = flags.get(spec.name) or variables.get(spec.name)
        if given is not None:
            source, text = given
            try:
                values[spec.name] = _parse(spec, text)
            except ValueError as error:
                shown = _MASKED if spec.meta.secret else repr(text)
                mistakes.append(f"{source} is {shown}; want {error}")
        elif spec.default is dataclasses.MISSING:
            mistakes.append(f"{spec.flag} (or {spec.variable}) is missing; want {_wanted(spec)}")
    if mistakes:
        raise SettingsError(mistakes)
    try:
        return cast("Callable[..., S]", cls)(**values)
    except ValueError as error:  # from a __post_init__ that compares fields
        raise SettingsError([str(error)]) from error


def describe(settings: _Dataclass) -> dict[str, object]:
    """Return the settings as fields of the start-up log line, with secrets masked."""
    shown: dict[str, object] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        meta = cast("_Meta | None", field.metadata.get(_KEY))
        if meta is not None and meta.secret and value:
            value = _MASKED
        shown[field.name] = str(value) if isinstance(value, Path) else value
    return shown


def usage(cls: type[_Dataclass], *, program: str) -> str:
    """Return the help text: each flag with meaning, default, range and variable."""
    lines = [f"usage: fracgpu run {program} [flags]", ""]
    for spec in _specs(cls, program):
        word = spec.flag if spec.type is bool else f"{spec.flag} {_placeholder(spec)}"
        lines.append(f"  {word}")
        lines.append(f"      {spec.meta.meaning} ({', '.join(_facts(spec))})")
    return "\n".join(lines)


def _prefix(program: str) -> str:
    return f"FRACGPU_{program.upper().replace('-', '_')}_"


def _specs(cls: type[_Dataclass], program: str) -> list[_Spec]:
    hints = typing.get_type_hints(cls)
    return [_spec(field, hints[field.name], program) for field in dataclasses.fields(cls)]


def _spec(field: "dataclasses.Field[Any]", hint: object, program: str) -> _Spec:
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    plain = [option for option in options if option is not types.NoneType]
    assert len(plain) == 1, f"{field.name}: a setting has one type, or one type and None"  # noqa: S101
    many = plain[0] == tuple[str, ...]
    kind = str if many else plain[0]
    assert kind in (int, float, str, bool, Path), f"{field.name}: no setting can be {kind}"  # noqa: S101
    variable = _prefix(program) + field.name.upper()
    assert not _is_service_link(field.name.upper(), ""), (  # noqa: S101
        f"{field.name}: kubelet may set {variable} for a Service"
    )
    meta = field.metadata.get(_KEY)
    assert isinstance(meta, _Meta), f"{field.name}: declare it with setting()"  # noqa: S101
    return _Spec(
        name=field.name,
        flag="--" + field.name.replace("_", "-"),
        variable=variable,
        type=cast("type", kind),
        many=many,
        optional=len(options) > 1,
        default=field.default,
        meta=meta,
    )


def _is_union(hint: object) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def _is_service_link(tail: str, value: str) -> bool:
    if _SERVICE_LINK.fullmatch(tail):
        return True
    # LISTEN_PORT=8443 is ours; LISTEN_PORT=tcp://10.0.0.1:443 is a Service called ...-listen.
    return tail.rpartition("_")[2] == "PORT" and bool(_SERVICE_LINK_URL.match(value))


def _read_flags(
    argv: Sequence[str], specs: Sequence[_Spec], mistakes: list[str]
) -> dict[str, tuple[str, str]]:
    by_flag = {spec.flag: spec for spec in specs}
    found: dict[str, tuple[str, str]] = {}
    words = list(argv)
    while words:
        word, equals, text = words.pop(0).partition("=")
        spec = by_flag.get(word)
        negated = by_flag.get("--" + word.removeprefix("--no-"))
        if spec is None and negated is not None and negated.type is bool and not equals:
            spec, equals, text = negated, "=", "false"
        if spec is None:
            mistakes.append(f"{word} is not a flag here{_nearest(word, by_flag)}")
            continue
        if not equals:
            if spec.type is bool:
                text = "true"
            elif words and words[0].partition("=")[0] not in by_flag:
                text = words.pop(0)
            else:
                mistakes.append(f"{word} has no value; want {_wanted(spec)}")
                continue
        if spec.name in found:
            mistakes.append(f"{spec.flag} is given twice; want it once")
        found[spec.name] = (word, text)
    return found


def _read_variables(
    environ: Mapping[str, str], specs: Sequence[_Spec], prefix: str, mistakes: list[str]
) -> dict[str, tuple[str, str]]:
    by_variable = {spec.variable: spec for spec in specs}
    found: dict[str, tuple[str, str]] = {}
    for variable in sorted(name for name in environ if name.startswith(prefix)):
        text = environ[variable]
        spec = by_variable.get(variable)
        if _is_service_link(variable.removeprefix(prefix), text):
            continue
        if spec is not None:
            found[spec.name] = (variable, text)
        else:
            mistakes.append(f"{variable} is not a setting{_nearest(variable, by_variable)}")
    return found


def _nearest(word: str, known: Mapping[str, _Spec]) -> str:
    # A word much longer than any flag is no typo, and slow to compare.
    near = difflib.get_close_matches(word, known, n=1) if len(word) <= _MOST_WORD else ()
    return f"; did you mean {near[0]}?" if near else "; see --help"


def _parse(spec: _Spec, text: str) -> object:
    """Return *text* as the setting's type; a ValueError says what was wanted."""
    wanted = _wanted(spec)
    if text == "" and spec.optional:
        return None
    if spec.many:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if spec.type is bool:
        if text.lower() not in _WORDS:
            raise ValueError(wanted)
        return _WORDS[text.lower()]
    if spec.type is int or spec.type is float:
        return _parse_number(spec, text, wanted)
    if spec.meta.choices is not None and text not in spec.meta.choices:
        raise ValueError(wanted)
    if text == "" and spec.default is dataclasses.MISSING:
        raise ValueError(wanted)
    return spec.type(text)


def _parse_number(spec: _Spec, text: str, wanted: str) -> float:
    try:
        number: float = spec.type(text)
    except ValueError:
        raise ValueError(wanted) from None
    low = -math.inf if spec.meta.low is None else spec.meta.low
    high = math.inf if spec.meta.high is None else spec.meta.high
    if not math.isfinite(number) or not low <= number <= high:
        raise ValueError(wanted)
    return number


def _wanted(spec: _Spec) -> str:
    if spec.meta.choices is not None:
        return f"one of {', '.join(spec.meta.choices)}"
    if spec.many:
        return "texts separated by commas"
    words = _TYPE_NAMES.get(spec.type, "a file name" if spec.type is Path else "a text")
    return f"{words} {limits}" if (limits := _range(spec)) else words


def _range(spec: _Spec) -> str:
    low, high = spec.meta.low, spec.meta.high
    if low is not None and high is not None:
        return f"from {low} to {high}"
    if low is not None:
        return f"of at least {low}"
    return f"of at most {high}" if high is not None else ""


def _placeholder(spec: _Spec) -> str:
    if spec.many:
        return "A,B"
    return {int: "N", float: "N", Path: "FILE"}.get(spec.type, "TEXT")


def _facts(spec: _Spec) -> list[str]:
    facts = [f"{_wanted(spec)}"]
    match spec.default:
        case dataclasses.MISSING:
            facts.append("required")
        case None | "" | ():
            facts.append("default: none")
        case tuple() as many:
            facts.append(f"default: {','.join(many)}")
        case value:
            facts.append(f"default: {_MASKED if spec.meta.secret else value}")
    facts.append(spec.variable)
    return facts
