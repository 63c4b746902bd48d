"""Which dialects are enabled: two keys of the ConfigMap's ``admission``, and a namespace label."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fracgpu import names
from fracgpu.errors import WireError
from fracgpu.request.dialects.dialect import MemoryUnit, Options
from fracgpu.request.dialects.registry import NAMES
from fracgpu.spelling import did_you_mean

DIALECTS: Final = "dialects"

DIALECT_OPTIONS: Final = "dialectOptions"

_MOST_PARTS: Final = 128

_MOST_CARDS: Final = 64

_MOST_FACTOR: Final = 1024

_FLAG: Final[Mapping[str, object]] = {"type": "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectSettings:
    """The dialects enabled in namespaces without a label of their own, and their options."""

    dialects: frozenset[str] = frozenset()
    options: Options = field(default_factory=Options)


def read_dialect_settings(admission: Mapping[str, object]) -> DialectSettings:
    """Parse ``dialects`` and ``dialectOptions``; other keys are ignored.

    Raises:
        WireError: a dialect or an option does not exist, or a value is invalid.
    """
    dialects = admission.get(DIALECTS, [])
    if not isinstance(dialects, list) or not all(isinstance(name, str) for name in dialects):
        raise WireError(what=DIALECTS, message=f"want a list of {', '.join(NAMES)}")
    for name in dialects:
        _known(name, NAMES, what=DIALECTS)
    options = admission.get(DIALECT_OPTIONS, {})
    if not isinstance(options, Mapping):
        raise WireError(what=DIALECT_OPTIONS, message=f"want a mapping of {', '.join(_OPTIONS)}")
    values: dict[str, Any] = {}
    for key, value in options.items():
        _known(key, _OPTIONS, what=DIALECT_OPTIONS)
        attribute, read, _ = _OPTIONS[key]
        values[attribute] = read(value, f"{DIALECT_OPTIONS}.{key}")
    return DialectSettings(dialects=frozenset(dialects), options=Options(**values))


def _known(name: object, known: Iterable[str], *, what: str) -> None:
    if isinstance(name, str) and name in known:
        return
    hint = did_you_mean(str(name), known)
    hint = f"; {hint}" if hint else ""
    message = f"'{str(name)[:60]}' does not exist; want some of {', '.join(known)}{hint}"
    raise WireError(what=what, message=message)


def _number(high: int) -> Callable[[object, str], int]:
    def read(value: object, what: str) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high:
            return value
        raise WireError(what=what, message=f"want a whole number from 1 to {high}, got {value!r}")

    return read


def _whole(high: int) -> Mapping[str, object]:
    return {"type": "integer", "minimum": 1, "maximum": high}


def _unit(value: object, what: str) -> MemoryUnit:
    for unit in MemoryUnit:
        if unit.value == value:
            return unit
    known = " or ".join(unit.value for unit in MemoryUnit)
    raise WireError(what=what, message=f"want {known}, got {value!r}")


def _flag(value: object, what: str) -> bool:
    if isinstance(value, bool):
        return value
    raise WireError(what=what, message=f"want true or false, got {value!r}")


# The attribute that each option sets, what reads it, and its JSON schema.
_OPTIONS: Final[Mapping[str, tuple[str, Callable[[object, str], Any], Mapping[str, object]]]] = {
    "gpushareUnit": ("gpushare_unit", _unit, {"enum": [unit.value for unit in MemoryUnit]}),
    "hamiMemoryFactor": ("hami_memory_factor", _number(_MOST_FACTOR), _whole(_MOST_FACTOR)),
    "hamiDefaultCount": ("hami_default_count", _number(_MOST_CARDS), _whole(_MOST_CARDS)),
    "volcanoMemoryFactor": ("volcano_memory_factor", _number(_MOST_FACTOR), _whole(_MOST_FACTOR)),
    "nvidiaReplicas": ("nvidia_replicas", _number(_MOST_PARTS), _whole(_MOST_PARTS)),
    "awsVgpusPerCard": ("aws_vgpus_per_card", _number(_MOST_PARTS), _whole(_MOST_PARTS)),
    "tensorFusionRuns": ("tensor_fusion_runs", _flag, _FLAG),
    "kaiRuns": ("kai_runs", _flag, _FLAG),
}


def dialect_schemas() -> dict[str, Any]:
    """Return the JSON schemas of ``dialects`` and ``dialectOptions``, by key."""
    return {
        DIALECTS: {"type": "array", "items": {"enum": list(NAMES)}},
        DIALECT_OPTIONS: {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: dict(accepted) for key, (_, _, accepted) in _OPTIONS.items()},
        },
    }


ALL: Final = "all"

NONE: Final = "none"

# A label value may not contain commas.
SEPARATOR: Final = "."


class EnabledDialects(msgspec.Struct, frozen=True, kw_only=True):
    """The dialects that are enabled, and warnings about how they were enabled."""

    dialects: frozenset[str]
    warnings: tuple[str, ...] = ()


def enabled_dialects(
    namespace_labels: Mapping[str, str], *, cluster: frozenset[str] = frozenset()
) -> EnabledDialects:
    """Return the dialects that are enabled in a namespace.

    The label ``fracgpu.io/dialects`` has names joined by dots, ``all`` or ``none``, and replaces
    the setting of the cluster. A name that does not exist causes only a warning: a typing mistake
    in a label must not keep a namespace's pods from starting.
    """
    text = namespace_labels.get(names.DIALECTS_LABEL)
    if text is None:
        return EnabledDialects(dialects=cluster)
    if text == NONE:
        return EnabledDialects(dialects=frozenset())
    if text == ALL:
        return EnabledDialects(dialects=frozenset(NAMES))
    parts = [part for part in text.split(SEPARATOR) if part]
    unknown = [part for part in parts if part not in NAMES]
    return EnabledDialects(
        dialects=frozenset(parts) & frozenset(NAMES),
        warnings=tuple(_unknown_part(part) for part in unknown),
    )


def _unknown_part(part: str) -> str:
    hint = did_you_mean(part, NAMES)
    hint = f"; {hint}" if hint else ""
    return (
        f"the namespace's label {names.DIALECTS_LABEL} names '{part}'; want names of "
        f"{', '.join(NAMES)}, joined by dots, or '{ALL}' or '{NONE}'{hint}"
    )
