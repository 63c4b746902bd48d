"""The rebalancer's policy: the key ``rebalancer`` of the ConfigMap, parsed strictly."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import Enum
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

from component.config_keys import REBALANCER
from component.config_watcher import strict_mapping
from fracgpu.disruption.aggressiveness import DEFAULT_LEVEL, LEVELS, policy_at
from fracgpu.disruption.change_freeze import ChangeFreeze, parse_duration, parse_schedule
from fracgpu.disruption.policy import MakeRoom, Mode, Namespaces, RebalancerPolicy
from fracgpu.errors import shorten
from fracgpu.spelling import unknown_keys

KEY: Final = REBALANCER

_T = TypeVar("_T")

_MOST_SHOWN: Final = 60
_MOST_FREEZES: Final = 20
_FREEZE_KEYS: Final = ("schedule", "duration", "timeZone")

# Keys of earlier versions, by what decides in their place. Beside them the rest still counts.
FORMER: Final[Mapping[str, tuple[str, ...]]] = {
    "`aggressiveness`": (
        *("fastWindowS", "fastHotRatio", "slowWindowS", "slowHotRatio", "forecastWindowS"),
        *("memoryWindowS", "settleS", "maxCordonedRatio", "minPodBusyRatio", "minPodAgeS"),
        *("maxPerNamespacePerHour", "maxPerOwnerPerHour", "maxPerOwnerPerDay", "maxPerPodPerHour"),
        *("ownerCooldownS", "cardCooldownS", "returnCooldownS", "makeRoomMoves"),
    ),
    "`hotRatio`": ("clearRatio", "ceilingRatio"),
    "`maxInFlight`": ("maxInFlightPerNode",),
    "what is measured": (
        *("scrapeIntervalS", "staleAfterS", "replacementTtlS"),
        *("breakerUselessRatio", "breakerUselessS"),
    ),
    "a fixed value": (
        *("tickS", "startupGraceS", "minActiveRatio", "holdCycles", "stepS", "coverageRatio"),
        *("freshCardsRatio", "freeMarginMib", "attributionRatio", "giveUpCooldownS", "cordonS"),
        *("breakerWindowS", "breakerAborts", "breakerApiErrors", "breakerLostS", "breakerBlindS"),
        *("makeRoomHoldS", "planTtlS", "readyS", "evictTtlS"),
    ),
}
_FORMER: Final = frozenset(key for keys in FORMER.values() for key in keys)


def parse_policy(text: str, *, base: RebalancerPolicy | None = None) -> RebalancerPolicy:
    """Parse a policy.

    Keys of `FORMER` are listed in the policy, and set nothing.

    Args:
        text: the YAML in the ConfigMap.
        base: what is left out comes from it, at the level of ``aggressiveness``.

    Raises:
        ValueError: the message lists every mistake: unknown keys, wrong types and values out of
            range.
    """
    found = strict_mapping(text)
    ignored = tuple(sorted(_FORMER & found.keys()))
    mistakes = unknown_keys(found.keys() - _FORMER, KEYS)
    values: dict[str, Any] = {}
    for key, known in KEYS.items():
        try:
            if key in found:
                values[known.field] = known.read(found[key])
        except ValueError as error:
            mistakes.append(f"{key}{error}")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    policy = policy_at(values.pop("aggressiveness", DEFAULT_LEVEL), base=base)
    # Of the two budgets the one that is left out makes room for the other.
    hour, day = (values.get(name) for name in ("max_per_hour", "max_per_day"))
    budgets = {
        "max_per_hour": min(policy.max_per_hour, day or policy.max_per_hour),
        "max_per_day": max(policy.max_per_day, hour or 0),
    }
    return replace(policy, **{**budgets, **values, "ignored_keys": ignored})


def schema() -> dict[str, Any]:
    """Return the JSON schema of what `parse_policy` reads, for the values of the Helm chart."""
    properties: dict[str, Any] = {
        key: {"description": known.plain_meaning, **known.schema} for key, known in KEYS.items()
    }
    # null is how Helm removes a value, and what is ignored may be anything.
    properties |= {key: {"description": "ignored"} for key in sorted(_FORMER)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the ConfigMap: the field that it sets, and what may be written.

    Attributes:
        accepted: what may be written, for the documentation.
        read: converts what YAML found; the ValueError says, after the key, what was there and what
            was wanted.
    """

    field: str
    meaning: str
    accepted: str
    read: Callable[[object], object]
    schema: Mapping[str, Any]

    @property
    def plain_meaning(self) -> str:
        """The meaning without Markdown."""
        return self.meaning.replace("`", "")


def _number(field: str, meaning: str, low: float, high: float, *, integer: bool = True) -> Key:
    def read(value: object) -> object:
        kinds = int if integer else int | float
        # bool is an int to Python, and NaN fails the comparison.
        if (
            not isinstance(value, bool)
            and isinstance(value, int | float)
            and isinstance(value, kinds)
            and low <= value <= high
        ):
            return value
        words = "a whole number" if integer else "a number"
        raise ValueError(f" is {_shown(value)}; want {words} from {low:g} to {high:g}")

    kind = "integer" if integer else "number"
    return Key(
        field=field,
        meaning=meaning,
        accepted=f"{low:g} to {high:g}",
        read=read,
        schema={"type": kind, "minimum": low, "maximum": high},
    )


def _choice(field: str, meaning: str, choices: type[Enum]) -> Key:
    words = [choice.value for choice in choices]

    def read(value: object) -> object:
        for choice in choices:
            # YAML 1.1 reads a bare `off` as False.
            if value == choice.value or (value is False and choice.value == "off"):
                return choice
        raise ValueError(f" is {_shown(value)}; want one of {', '.join(words)}")

    return Key(
        field=field,
        meaning=meaning,
        accepted=", ".join(f"`{word}`" for word in words),
        read=read,
        schema={"enum": [*words, *([False] if "off" in words else [])]},
    )


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f" is {_shown(value)}; want true or false")  # noqa: TRY004
    return value


def _time(value: object) -> datetime:
    if isinstance(value, str):
        with suppress(ValueError):  # reported below
            value = datetime.fromisoformat(value)
    # YAML makes a time of what looks like one; without an offset it is nobody's time.
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(
            f" is {_shown(value)}; want a time with an offset, e.g. 2026-01-31T12:00:00Z"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:  # in the first or last year
        raise ValueError(f" is {_shown(value)}; want a time that exists in UTC") from None


def _freezes(value: object) -> tuple[ChangeFreeze, ...]:
    if not isinstance(value, list) or len(value) > _MOST_FREEZES:
        raise ValueError(f" is {_shown(value)}; want a list of at most {_MOST_FREEZES} freezes")
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


def _shown(value: object) -> str:
    return shorten(repr(value), limit=_MOST_SHOWN)


KEYS: Final[Mapping[str, Key]] = {
    "mode": _choice("mode", "how far the rebalancer may go", Mode),
    "paused": Key(
        field="paused",
        meaning="begin no move; those under way are finished",
        accepted="true, false",
        read=_flag,
        schema={"type": "boolean"},
    ),
    "aggressiveness": _number(
        "aggressiveness",
        "the dial, from hardly ever moving to moving often: sets all that is not set here",
        LEVELS[0],
        LEVELS[-1],
    ),
    "namespaces": _choice(
        "namespaces",
        "whose pods may be moved, by the label `fracgpu.io/rebalance` (`never`, `allow`)",
        Namespaces,
    ),
    "changeFreezes": Key(
        field="change_freezes",
        meaning="times in which no move is begun: a list of `schedule` (cron), `duration` and "
        "`timeZone` (default UTC)",
        accepted=f"{_MOST_FREEZES} at most",
        read=_freezes,
        schema={
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
    "hotRatio": _number(
        "hot_ratio", "busy share above which a sample is hot", 0.2, 1, integer=False
    ),
    "maxInFlight": _number("max_in_flight", "moves at once", 1, 20),
    "maxPerHour": _number("max_per_hour", "moves in any hour", 1, 1000),
    "maxPerDay": _number("max_per_day", "moves in any day", 1, 10000),
    "noticeS": _number(
        "notice_s", "seconds between a notice to the pod and its move", 0, 300, integer=False
    ),
    "makeRoom": _choice("make_room", "how far it may go for a pod that waits", MakeRoom),
    "makeRoomAfterS": _number(
        "make_room_after_s",
        "seconds that a pod must have been unschedulable before room is made",
        0,
        86400,
        integer=False,
    ),
    "resetBreakersAt": Key(
        field="reset_breakers_at",
        meaning="what happened before this time opens no circuit breaker",
        accepted="a time as in RFC 3339",
        read=_time,
        schema={"type": "string", "minLength": 1},
    ),
}
"""What an administrator can set, in the order of the documentation."""
