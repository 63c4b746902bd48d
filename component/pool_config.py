"""The key ``pools`` of the ConfigMap: the card classes that node pools can offer."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from component.config_keys import POOLS
from component.config_watcher import ConfigWatcher, strict_mapping
from component.metrics import ConfigMetrics
from fracgpu import names
from fracgpu.cards.card import DEFAULT_SLOTS, SHARE_GRANULE_MIB
from fracgpu.cards.card_class import has_one_vendor
from fracgpu.cards.pool_catalogue import (
    NO_CATALOGUE,
    Pool,
    PoolCatalogue,
    PoolClass,
    overlaps,
)
from fracgpu.errors import shorten
from fracgpu.globs import MAX_GLOB_CHARS
from fracgpu.k8s.node import Taint
from fracgpu.spelling import unknown_keys
from fracgpu.units import MAX_MIB, Mib
from kube.client import KubeClient

KEY: Final = POOLS

_MOST_CLASSES: Final = 64
_MOST_POOLS: Final = 32  # of a class
_MOST_GLOBS_CHARS: Final = 4_000  # of all models together: each two globs are compared
_MOST_CARDS: Final = 64
_MOST_SLOTS: Final = 1_000
_MOST_SHOWN: Final = 80

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", re.ASCII)
# Sources: apimachinery/pkg/util/validation, IsQualifiedName and IsValidLabelValue.
_KEY: Final = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_OF_CLASS: Final = ("models", "mib", "pools")
_OF_POOL: Final = ("name", "cards", "slotsPerCard", "labels", "taints")
_OF_TAINT: Final = ("key", "value", "effect")
# Nothing else of ours is said by the administrator of a pool, but by its class.
_OUR_LABELS: Final = names.ISOLATION_LABELS


def parse_pools(text: str, *, measured: Mapping[str, Mib] | None = None) -> PoolCatalogue:
    """Parse the pool catalogue.

    Args:
        text: a YAML mapping of class names.
        measured: by model, the smallest shareable MiB of a card; None while unknown.

    Raises:
        ValueError: the message lists every mistake: unknown keys, wrong types, invalid values,
            classes that overlap, and those that promise more memory than a measured card has.
    """
    found = strict_mapping(text)
    if len(found) > _MOST_CLASSES:
        raise ValueError(f"has {len(found)} classes; want at most {_MOST_CLASSES}")
    mistakes: list[str] = []
    classes = [
        _class(name, value, mistakes) for name, value in found.items() if _named(name, mistakes)
    ]
    if mistakes:
        raise ValueError("; ".join(mistakes))
    catalogue = PoolCatalogue(classes=tuple(classes))
    if sum(len(glob) for each in classes for glob in each.models) > _MOST_GLOBS_CHARS:
        raise ValueError(f"models have more than {_MOST_GLOBS_CHARS} characters together")
    pools = [pool.name for each in classes for pool in each.pools]
    mistakes += [
        f"two pools are named {name}; want each name once"
        for name in dict.fromkeys(pools)
        if pools.count(name) > 1
    ]
    mistakes += [*overlaps(classes), *catalogue.above_measured(measured or {})]
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return catalogue


def watch_pools(  # noqa: PLR0913 - one keyword per independent fact
    client: KubeClient,
    *,
    name: str,
    namespace: str,
    on_change: Callable[[PoolCatalogue], None],
    parse: Callable[[str], PoolCatalogue] = parse_pools,
    on_refused: Callable[[str], None] | None = None,
    metrics: ConfigMetrics | None = None,
) -> ConfigWatcher[PoolCatalogue]:
    """Return the watcher of the key in a ConfigMap; without the key there is no catalogue."""
    return ConfigWatcher(
        client,
        name=name,
        namespace=namespace,
        key=KEY,
        parse=parse,
        default=NO_CATALOGUE,
        on_change=on_change,
        on_refused=on_refused,
        metrics=metrics,
    )


def pools_schema() -> dict[str, Any]:
    """Return the JSON schema of what `parse_pools` reads, for the values of the Helm chart."""
    taint = _object(
        {
            "key": {"type": "string", "pattern": f"^{_KEY.pattern}$"},
            "value": {"type": "string", "pattern": f"^{_VALUE.pattern}$"},
            "effect": {"enum": list(_EFFECTS)},
        },
        required=["key", "effect"],
    )
    pool = _object(
        {
            "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
            "cards": {"type": "integer", "minimum": 1, "maximum": _MOST_CARDS},
            "slotsPerCard": {"type": "integer", "minimum": 1, "maximum": _MOST_SLOTS},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "taints": {"type": "array", "items": taint},
        },
        required=["name", "cards"],
    )
    text = {"type": "string", "minLength": 1, "maxLength": MAX_GLOB_CHARS}
    pool_class = _object(
        {
            "models": {"anyOf": [text, {"type": "array", "minItems": 1, "items": text}]},
            "mib": {"type": "integer", "minimum": SHARE_GRANULE_MIB, "maximum": MAX_MIB},
            "pools": {"type": "array", "minItems": 1, "maxItems": _MOST_POOLS, "items": pool},
        },
        required=list(_OF_CLASS),
    )
    return {
        "type": "object",
        "maxProperties": _MOST_CLASSES,
        "propertyNames": {"pattern": f"^{_NAME.pattern}$"},
        "additionalProperties": pool_class,
    }


def _object(properties: dict[str, Any], *, required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }


def _named(name: str, mistakes: list[str]) -> bool:
    if _NAME.fullmatch(name):
        return True
    mistakes.append(
        f"{shorten(name)} is no name of a class; want small letters, digits, dots and dashes, e.g. "
        "a100-80gb"
    )
    return False


def _class(name: str, value: object, mistakes: list[str]) -> PoolClass:
    found = _fields(name, value, _OF_CLASS, required=_OF_CLASS, mistakes=mistakes)
    models = found.get("models", ["x"])
    globs = [models] if isinstance(models, str) else models
    if not (isinstance(globs, list) and globs and all(map(_is_glob, globs))):
        mistakes.append(
            f"{name}.models is {_shown(models)}; want a model or glob, or a list of them, of at "
            f"most {MAX_GLOB_CHARS} characters, e.g. 'NVIDIA-A100-SXM4-80GB'"
        )
        globs = []
    mistakes += [
        f"{name}.models has {_shown(glob)}, which may match cards of both vendors; want it to "
        f"begin with AMD for AMD's cards, and with another word, e.g. NVIDIA, for NVIDIA's"
        for glob in globs
        if not has_one_vendor(glob)
    ]
    pools = found.get("pools", [])
    if not (isinstance(pools, list) and (pools or "pools" not in found)):
        mistakes.append(f"{name}.pools is {_shown(pools)}; want a list of {{name, cards, ...}}")
        pools = []
    elif len(pools) > _MOST_POOLS:
        mistakes.append(f"{name}.pools has {len(pools)}; want at most {_MOST_POOLS}")
        pools = []
    low = SHARE_GRANULE_MIB
    wanted = "the shareable MiB of one card, e.g. 80960"
    return PoolClass(
        name=name,
        models=tuple(globs),
        nominal_mib=Mib(
            _number(f"{name}.mib", found.get("mib", low), low, MAX_MIB, wanted, mistakes)
        ),
        pools=tuple(
            _pool(f"{name}.pools[{index}]", pool, mistakes) for index, pool in enumerate(pools)
        ),
    )


def _pool(where: str, value: object, mistakes: list[str]) -> Pool:
    found = _fields(where, value, _OF_POOL, required=("name", "cards"), mistakes=mistakes)
    name = found.get("name", "x")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        mistakes.append(f"{where}.name is {_shown(name)}; want the name of a pool, e.g. a100-8")
    taints = found.get("taints", [])
    if not isinstance(taints, list):
        mistakes.append(f"{where}.taints is {_shown(taints)}; want a list of {{key, effect}}")
        taints = []
    cards, slots = found.get("cards", 1), found.get("slotsPerCard", DEFAULT_SLOTS)
    wanted = f"1 to {_MOST_CARDS}, the cards of each node"
    also = f"1 to {_MOST_SLOTS}, as the node agents' --slots-per-card"
    return Pool(
        name=str(name),
        cards=_number(f"{where}.cards", cards, 1, _MOST_CARDS, wanted, mistakes),
        slots_per_card=_number(f"{where}.slotsPerCard", slots, 1, _MOST_SLOTS, also, mistakes),
        labels=_labels(f"{where}.labels", found.get("labels", {}), mistakes),
        taints=tuple(
            _taint(f"{where}.taints[{index}]", taint, mistakes)
            for index, taint in enumerate(taints)
        ),
    )


def _labels(where: str, value: object, mistakes: list[str]) -> Mapping[str, str]:
    if not isinstance(value, dict):
        mistakes.append(f"{where} is {_shown(value)}; want a mapping of labels")
        return {}
    for key, text in value.items():
        if not (isinstance(key, str) and _KEY.fullmatch(key)):
            mistakes.append(f"{where} has {_shown(key)}; want the key of a label")
        elif key.startswith(names.PREFIX) and key not in _OUR_LABELS:
            mistakes.append(
                f"{where} has {shorten(key)}, which follows from the class; leave it out"
            )
        elif not (isinstance(text, str) and _VALUE.fullmatch(text)):
            mistakes.append(
                f"{where}.{shorten(key)} is {_shown(text)}; want the value of a label, in quotes "
                "if it looks like a number or a boolean"
            )
    return {str(key): str(text) for key, text in value.items()}


def _taint(where: str, value: object, mistakes: list[str]) -> Taint:
    found = _fields(where, value, _OF_TAINT, required=("key", "effect"), mistakes=mistakes)
    key, text = found.get("key", "x"), found.get("value", "")
    effect = found.get("effect", _EFFECTS[0])
    if not (isinstance(key, str) and _KEY.fullmatch(key)):
        mistakes.append(f"{where}.key is {_shown(key)}; want the key of a taint")
    if not (isinstance(text, str) and _VALUE.fullmatch(text)):
        mistakes.append(
            f"{where}.value is {_shown(text)}; want the value of a taint, in quotes if it looks "
            "like a number or a boolean"
        )
    if effect not in _EFFECTS:
        mistakes.append(f"{where}.effect is {_shown(effect)}; want one of {', '.join(_EFFECTS)}")
    return Taint(key=str(key), value=str(text), effect=str(effect))


def _fields(
    where: str,
    value: object,
    known: tuple[str, ...],
    *,
    required: tuple[str, ...],
    mistakes: list[str],
) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        mistakes.append(f"{where} is {_shown(value)}; want a mapping of {', '.join(known)}")
        return {}
    mistakes += [f"{where}: {mistake}" for mistake in unknown_keys(value, known)]
    mistakes += [f"{where} has no {key}" for key in required if key not in value]
    return value


def _is_glob(value: object) -> bool:
    return (
        isinstance(value, str)
        and bool(value.strip())
        and not value.startswith("!")
        and len(value) <= MAX_GLOB_CHARS
    )


def _number(
    where: str, value: object, low: int, high: int, wanted: str, mistakes: list[str]
) -> int:
    # bool is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        mistakes.append(f"{where} is {_shown(value)}; want {wanted}")
        return low
    return value


def _shown(value: object) -> str:
    return shorten(repr(value), limit=_MOST_SHOWN)
