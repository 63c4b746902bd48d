"""The rebalancer's policy: the key ``rebalancer`` of the ConfigMap, parsed strictly."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from enum import Enum
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import structlog

from component.config_keys import REBALANCER
from component.config_watcher import strict_mapping
from fracgpu.disruption.aggressiveness import DEFAULT_LEVEL, LEVELS, policy_at
from fracgpu.disruption.change_freeze import ChangeFreeze, parse_duration, parse_schedule
from fracgpu.disruption.disruption_state import DisruptionState, PlanIndex
from fracgpu.disruption.planner import plan_moves
from fracgpu.disruption.policy import (
    MakeRoom,
    Mode,
    Namespaces,
    RebalancerPolicy,
    Tunable,
    tunables,
)
from fracgpu.errors import shorten
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.spelling import unknown_keys

log = structlog.get_logger()

KEY: Final = REBALANCER
# What earlier versions had to be told. The rest of a policy that has such a key still counts.
LEARNT: Final = ("breakerUselessRatio", "breakerUselessS", "scrapeIntervalS", "staleAfterS")

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)

_MOST_SHOWN: Final = 60
_MOST_FREEZES: Final = 20
_FREEZE_KEYS: Final = ("schedule", "duration", "timeZone")


def parse_policy(text: str) -> RebalancerPolicy:
    """Parse a policy.

    ``aggressiveness`` sets every value that is left out; without it they keep their defaults (of
    mode, ``dryRun``). A key of `LEARNT` is logged and ignored.

    Raises:
        ValueError: the message lists every mistake: unknown keys, wrong types, values out of
            range, and values that contradict each other.
    """
    found = strict_mapping(text)
    by_key = {camel(tunable.name): tunable for tunable in tunables()}
    found = _without_learnt(found)
    mistakes = unknown_keys(found, (*by_key, *_READERS))
    values: dict[str, Any] = {}
    for key, value in found.items():
        try:
            if key in _READERS:
                name, read, _ = _READERS[key]
                values[name] = read(value)
            elif key in by_key:
                values[by_key[key].name] = _number(value, by_key[key])
        except ValueError as error:
            mistakes.append(f"{key}{error}" if str(error)[0] == "[" else f"{key} is {error}")
    policy = policy_at(values.pop("aggressiveness", DEFAULT_LEVEL))
    if not mistakes:
        policy = replace(policy, **values)
        # Ranges were checked above, under the ConfigMap's keys; pairs are checked here.
        pairs = [_in_camel(mistake) for mistake in policy.mistakes()]
        if pairs:
            pairs[-1] += f" (aggressiveness {policy.aggressiveness} set what is not set here)"
        mistakes += pairs
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return policy


def _without_learnt(found: dict[str, Any]) -> dict[str, Any]:
    if ignored := [key for key in LEARNT if key in found]:
        log.warning("settings_ignored", keys=ignored, why="what they said is learnt now")
    return {key: value for key, value in found.items() if key not in ignored}


def policy_hash(policy: RebalancerPolicy) -> str:
    """Return a short hash of a policy, by which a move record names its policy."""
    return hashlib.sha256(repr(policy).encode()).hexdigest()[:12]


def camel(name: str) -> str:
    """Return a field's name as the ConfigMap has it: ``hotRatio`` for ``hot_ratio``."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def schema() -> dict[str, Any]:
    """Return the JSON schema of what `parse_policy` reads, for the values of the Helm chart."""
    numbers = {
        camel(tunable.name): {
            "description": tunable.meaning,
            "type": "integer" if tunable.integer else "number",
            "minimum": tunable.low,
            "maximum": tunable.high,
        }
        for tunable in tunables()
    }
    others = {key: dict(accepted) for key, (_, _, accepted) in _READERS.items()}
    ignored = {key: {"description": "ignored: it is learnt", "type": "number"} for key in LEARNT}
    properties = {**others, **numbers, **ignored}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def reference() -> str:
    """Return the table of all keys, for the documentation."""
    levels = {level: policy_at(level) for level in LEVELS}
    default = RebalancerPolicy()
    lines = ["| key | meaning | default | range |", "|---|---|---|---|"]
    modes = ", ".join(f"`{mode.value}`" for mode in Mode)
    choices = ", ".join(f"`{choice.value}`" for choice in MakeRoom)
    whose = ", ".join(f"`{choice.value}`" for choice in Namespaces)
    lines += [
        f"| `mode` | how far the rebalancer may go | `{default.mode.value}` | {modes} |",
        f"| `makeRoom` | how far it may go for a pod that waits | `{default.make_room.value}` | "
        f"{choices} |",
        "| `namespaces` | whose pods may be moved, by the label `fracgpu.io/rebalance` "
        f"(`never`, `allow`) | `{default.namespaces.value}` | {whose} |",
        "| `paused` | begin no move; those under way are finished | false | true, false |",
        "| `aggressiveness` | sets all values that are not set here "
        f"| {default.aggressiveness} | {LEVELS[0]} to {LEVELS[-1]} |",
        "| `changeFreezes` | times in which no move is begun: a list of `schedule` (cron), "
        f"`duration` and `timeZone` (default UTC) | none | {_MOST_FREEZES} at most |",
        "| `resetBreakersAt` | what happened before this time opens no circuit breaker "
        "| never | a time as in RFC 3339 |",
    ]
    lines += [
        f"| `{camel(tunable.name)}` | {tunable.meaning} | {_with_unit(tunable)} "
        f"| {tunable.low:g}\u2013{tunable.high:g} |"
        for tunable in tunables()
    ]
    lines += [
        "",
        "## Aggressiveness",
        "",
        "The values that differ from those of level 3, above:",
        "",
    ]
    del levels[DEFAULT_LEVEL]
    lines.append(f"| `aggressiveness` | {' | '.join(str(level) for level in levels)} |")
    lines.append("|---|" + "---|" * len(levels))
    for tunable in tunables():
        values = [getattr(policy, tunable.name) for policy in levels.values()]
        if len(set(values)) > 1:
            cells = " | ".join(f"{value:g}" for value in values)
            lines.append(f"| `{camel(tunable.name)}` | {cells} |")
    return "\n".join(lines) + "\n"


def _with_unit(tunable: Tunable) -> str:
    """Return the default with the unit in which the name ends."""
    unit = {"s": " s", "mib": " MiB"}.get(tunable.name.rpartition("_")[2], "")
    return f"{tunable.default:g}{unit}"


def _mode(value: object) -> Mode:
    return _choice(value, Mode)


def _make_room(value: object) -> MakeRoom:
    return _choice(value, MakeRoom)


def _namespaces(value: object) -> Namespaces:
    return _choice(value, Namespaces)


def _choice(value: object, choices: type[_E]) -> _E:
    for choice in choices:
        # YAML 1.1 reads a bare `off` as False.
        if value == choice.value or (value is False and choice.value == "off"):
            return choice
    wanted = ", ".join(choice.value for choice in choices)
    raise ValueError(f"{_shown(value)}; want one of {wanted}")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)}; want true or false")  # noqa: TRY004 - see parse_policy
    return value


def _level(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in LEVELS:
        raise ValueError(f"{_shown(value)}; want a whole number from {LEVELS[0]} to {LEVELS[-1]}")
    return value


def _time(value: object) -> datetime:
    if isinstance(value, str):
        with suppress(ValueError):  # reported below
            value = datetime.fromisoformat(value)
    # YAML makes a time of what looks like one; without an offset it is nobody's time.
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{_shown(value)}; want a time with an offset, e.g. 2026-01-31T12:00:00Z")
    return value.astimezone(UTC)


def _freezes(value: object) -> tuple[ChangeFreeze, ...]:
    if not isinstance(value, list) or len(value) > _MOST_FREEZES:
        raise ValueError(f"{_shown(value)}; want a list of at most {_MOST_FREEZES} freezes")
    return tuple(_freeze(number, entry) for number, entry in enumerate(value))


def _freeze(number: int, entry: object) -> ChangeFreeze:
    if not isinstance(entry, dict) or not all(isinstance(key, str) for key in entry):
        raise ValueError(f"[{number}] is {_shown(entry)}; want schedule, duration and timeZone")
    mistakes = unknown_keys(entry, _FREEZE_KEYS)
    if mistakes:
        raise ValueError(f"[{number}]: {'; '.join(mistakes)}")
    return ChangeFreeze(
        text=str(entry.get("schedule")),
        schedule=_part(number, entry, "schedule", parse_schedule),
        duration=_part(number, entry, "duration", parse_duration),
        zone=_part(number, entry, "timeZone", _zone) if "timeZone" in entry else UTC,
    )


def _part(number: int, entry: dict[str, Any], key: str, parse: Callable[[str], _T]) -> _T:
    value = entry.get(key)
    try:
        if not isinstance(value, str):
            raise ValueError("want a text")  # noqa: TRY004, TRY301 - see below
        return parse(value)
    except ValueError as error:
        raise ValueError(f"[{number}].{key} is {_shown(value)}; {error}") from None


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # no such zone, no file, or no name of one
        raise ValueError("want a name of the IANA time zone database, e.g. Europe/Berlin") from None


def _number(value: object, tunable: Tunable) -> float:
    kinds = int if tunable.integer else int | float
    # bool is an int to Python, and NaN fails the comparison.
    if (
        not isinstance(value, bool)
        and isinstance(value, int | float)
        and isinstance(value, kinds)
        and tunable.low <= value <= tunable.high
    ):
        return value
    words = "a whole number" if tunable.integer else "a number"
    raise ValueError(f"{_shown(value)}; want {words} from {tunable.low:g} to {tunable.high:g}")


def _in_camel(mistake: str) -> str:
    for tunable in sorted(tunables(), key=lambda field: -len(field.name)):
        mistake = mistake.replace(tunable.name, camel(tunable.name))
    return mistake


def _shown(value: object) -> str:
    return shorten(repr(value), limit=_MOST_SHOWN)


# What is not a number: the field that each key sets, what reads it, and its JSON schema. The
# ValueError says what was there and what was wanted.
_READERS: Final[Mapping[str, tuple[str, Callable[[object], object], Mapping[str, Any]]]] = {
    # YAML 1.1 reads a bare `off` as False.
    "mode": ("mode", _mode, {"enum": [*(mode.value for mode in Mode), False]}),
    "makeRoom": ("make_room", _make_room, {"enum": [*(each.value for each in MakeRoom), False]}),
    "namespaces": ("namespaces", _namespaces, {"enum": [each.value for each in Namespaces]}),
    "paused": ("paused", _flag, {"type": "boolean"}),
    "aggressiveness": ("aggressiveness", _level, {"type": "integer", "enum": list(LEVELS)}),
    "changeFreezes": (
        "change_freezes",
        _freezes,
        {
            "type": "array",
            "maxItems": _MOST_FREEZES,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["schedule", "duration"],
                "properties": {key: {"type": "string"} for key in _FREEZE_KEYS},
            },
        },
    ),
    "resetBreakersAt": ("reset_breakers_at", _time, {"type": "string", "minLength": 1}),
}


class PolicyTrial:
    """Remembers the state of the last cycle; before the first one only the text is checked."""

    def __init__(self) -> None:
        self._last: tuple[DisruptionState, datetime] | None = None
        self._index = SnapshotIndex()  # its own: a plan may be under way in another thread

    def remember(self, state: DisruptionState, *, now: datetime) -> None:
        """Try the next policies on *state*."""
        own = replace(state, index=self._index, plan_index=PlanIndex())
        self._last = (own, now)

    def parse(self, text: str) -> RebalancerPolicy:
        """Return the policy in *text*, with which a plan could be made for the last state.

        Raises:
            ValueError: the text has mistakes, or planning failed.
        """
        policy = parse_policy(text)
        if self._last is not None:
            state, now = self._last
            try:
                plan_moves(state, policy=policy, now=now)
            except Exception as error:  # whatever it is, the policy in use does not raise it
                raise ValueError(
                    f"tried on the last state, planning fails: {type(error).__name__}: {error}"
                ) from error
        return policy
