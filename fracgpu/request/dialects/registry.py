"""All dialects, and which of them are enabled; a new one is a file in `systems` and a line here.

What enables dialects: two keys of the ConfigMap's ``admission``, and a label of a namespace.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fracgpu import names
from fracgpu.errors import WireError
from fracgpu.request.dialects.dialect import Dialect, MemoryUnit, Options
from fracgpu.request.dialects.systems.aws import AWS
from fracgpu.request.dialects.systems.elastic import ELASTIC
from fracgpu.request.dialects.systems.gpushare import GPUSHARE
from fracgpu.request.dialects.systems.hami import HAMI
from fracgpu.request.dialects.systems.kai import KAI
from fracgpu.request.dialects.systems.koordinator import KOORDINATOR
from fracgpu.request.dialects.systems.nos import NOS
from fracgpu.request.dialects.systems.nvidia import NVIDIA
from fracgpu.request.dialects.systems.tencent import QGPU, VCUDA
from fracgpu.request.dialects.systems.tensor_fusion import TENSOR_FUSION
from fracgpu.request.dialects.systems.vgpu_manager import VGPU_MANAGER
from fracgpu.request.dialects.systems.volcano import CCE, VOLCANO
from fracgpu.spelling import did_you_mean

# A key of two dialects belongs to the first of them that is enabled: ``nvidia.com/gpu`` is HAMi's,
# then NVIDIA's.
DIALECTS: Final[tuple[Dialect, ...]] = (
    GPUSHARE,
    HAMI,
    KAI,
    VCUDA,
    QGPU,
    ELASTIC,
    NOS,
    VOLCANO,
    CCE,
    VGPU_MANAGER,
    TENSOR_FUSION,
    KOORDINATOR,
    AWS,
    NVIDIA,
)
NAMES: Final = tuple(dialect.name for dialect in DIALECTS)
SCHEDULERS: Final = frozenset(name for dialect in DIALECTS for name in dialect.schedulers)


class _Index:
    """The dialects that own each key: a dictionary for names, a short list for patterns."""

    def __init__(self, *, limits: bool) -> None:
        sets = [
            (dialect, dialect.limits if limits else dialect.annotations) for dialect in DIALECTS
        ]
        self.exact: dict[str, tuple[Dialect, ...]] = {}
        for dialect, owned in sets:
            for key in owned.exact:
                self.exact[key] = (*self.exact.get(key, ()), dialect)
        self.patterns = [
            (dialect, pattern) for dialect, owned in sets for pattern in owned.patterns
        ]

    def owners(self, key: str) -> tuple[Dialect, ...]:
        found = self.exact.get(key)
        if found is not None:
            return found
        return tuple([dialect for dialect, pattern in self.patterns if pattern.fullmatch(key)])


_LIMITS: Final = _Index(limits=True)
_ANNOTATIONS: Final = _Index(limits=False)
_FOREIGN: Final = frozenset((*_LIMITS.exact, *_ANNOTATIONS.exact))
_FOREIGN_PATTERN: Final = re.compile(
    "|".join(pattern.pattern for _, pattern in (*_LIMITS.patterns, *_ANNOTATIONS.patterns)),
    re.ASCII,
)


def limit_owners(key: str) -> tuple[Dialect, ...]:
    """Return the dialects that parse *key* in a container's limits, in the registry's order."""
    return _LIMITS.owners(key)


def annotation_owners(key: str) -> tuple[Dialect, ...]:
    """Return the dialects that parse *key* in a pod's annotations, in the registry's order."""
    return _ANNOTATIONS.owners(key)


def any_foreign(keys: Collection[str]) -> bool:
    """Report whether any dialect parses one of *keys*, in limits or annotations."""
    return not _FOREIGN.isdisjoint(keys) or any(map(_FOREIGN_PATTERN.fullmatch, keys))


_FAMILIES: Final = tuple(prefix for dialect in DIALECTS for prefix in dialect.family)


def is_of_family(key: str) -> bool:
    """Report whether *key* has the prefix of any system here, even if no dialect parses it."""
    return key.startswith(_FAMILIES)


DIALECTS_KEY: Final = "dialects"

DIALECT_OPTIONS_KEY: Final = "dialectOptions"

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
    dialects = admission.get(DIALECTS_KEY, [])
    if not isinstance(dialects, list) or not all(isinstance(name, str) for name in dialects):
        raise WireError(what=DIALECTS_KEY, message=f"want a list of {', '.join(NAMES)}")
    for name in dialects:
        _known(name, NAMES, what=DIALECTS_KEY)
    options = admission.get(DIALECT_OPTIONS_KEY, {})
    if not isinstance(options, Mapping):
        raise WireError(
            what=DIALECT_OPTIONS_KEY, message=f"want a mapping of {', '.join(_OPTIONS)}"
        )
    values: dict[str, Any] = {}
    for key, value in options.items():
        _known(key, _OPTIONS, what=DIALECT_OPTIONS_KEY)
        attribute, read, _ = _OPTIONS[key]
        values[attribute] = read(value, f"{DIALECT_OPTIONS_KEY}.{key}")
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


def _integer(high: int) -> Mapping[str, object]:
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
    "hamiMemoryFactor": ("hami_memory_factor", _number(_MOST_FACTOR), _integer(_MOST_FACTOR)),
    "hamiDefaultCount": ("hami_default_count", _number(_MOST_CARDS), _integer(_MOST_CARDS)),
    "volcanoMemoryFactor": ("volcano_memory_factor", _number(_MOST_FACTOR), _integer(_MOST_FACTOR)),
    "nvidiaReplicas": ("nvidia_replicas", _number(_MOST_PARTS), _integer(_MOST_PARTS)),
    "awsVgpusPerCard": ("aws_vgpus_per_card", _number(_MOST_PARTS), _integer(_MOST_PARTS)),
    "tensorFusionRuns": ("tensor_fusion_runs", _flag, _FLAG),
    "kaiRuns": ("kai_runs", _flag, _FLAG),
    "burst": ("burst", _flag, _FLAG),
}


def dialect_schemas() -> dict[str, Any]:
    """Return the JSON schemas of ``dialects`` and ``dialectOptions``, by key."""
    return {
        DIALECTS_KEY: {"type": "array", "items": {"enum": list(NAMES)}},
        DIALECT_OPTIONS_KEY: {
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
