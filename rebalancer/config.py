"""The rebalancer's policy: the key ``rebalancer`` of the ConfigMap, parsed strictly."""

import hashlib
from typing import Any, Final

from component.config_keys import REBALANCER
from component.config_watcher import strict_mapping
from fracgpu.disruption.policy import Mode, RebalancerPolicy, Tunable, tunables
from fracgpu.errors import shorten
from fracgpu.spelling import unknown_keys

KEY: Final = REBALANCER

_MODE: Final = "mode"

_MOST_SHOWN: Final = 60


def parse_policy(text: str) -> RebalancerPolicy:
    """Parse a policy; keys that are left out keep their default (of mode, ``dryRun``).

    Raises:
        ValueError: the message lists every mistake: unknown keys, wrong types, figures out of
            range, and figures that contradict each other.
    """
    found = strict_mapping(text)
    by_key = {camel(tunable.name): tunable for tunable in tunables()}
    mistakes = unknown_keys(found, (*by_key, _MODE))
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key == _MODE:
            values["mode"] = _mode(value, mistakes)
        elif key in by_key:
            values[by_key[key].name] = _figure(key, value, by_key[key], mistakes)
    if not mistakes:
        # Ranges were checked above, under the ConfigMap's keys; pairs are checked here.
        mistakes += [_in_camel(mistake) for mistake in RebalancerPolicy(**values).mistakes()]
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return RebalancerPolicy(**values)


def policy_hash(policy: RebalancerPolicy) -> str:
    """Return a short hash of a policy, by which a move record names its policy."""
    return hashlib.sha256(repr(policy).encode()).hexdigest()[:12]


def camel(name: str) -> str:
    """Return a field's name as the ConfigMap has it: ``hotRatio`` for ``hot_ratio``."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def reference() -> str:
    """Return the table of all keys, for the documentation."""
    lines = ["| key | meaning | default | range |", "|---|---|---|---|"]
    modes = ", ".join(f"`{mode.value}`" for mode in Mode)
    lines.append(
        f"| `mode` | how far the rebalancer may go | `{RebalancerPolicy().mode.value}` | {modes} |"
    )
    lines += [
        f"| `{camel(tunable.name)}` | {tunable.meaning} | {tunable.default:g} "
        f"| {tunable.low:g} to {tunable.high:g} |"
        for tunable in tunables()
    ]
    return "\n".join(lines) + "\n"


def _mode(value: object, mistakes: list[str]) -> Mode:
    for mode in Mode:
        # YAML 1.1 reads a bare `off` as False.
        if value == mode.value or (value is False and mode is Mode.OFF):
            return mode
    wanted = ", ".join(mode.value for mode in Mode)
    mistakes.append(f"mode is {_shown(value)}; want one of {wanted}")
    return Mode.OFF


def _figure(key: str, value: object, tunable: Tunable, mistakes: list[str]) -> float:
    whole = RebalancerPolicy.__annotations__[tunable.name] is int
    kinds = int if whole else int | float
    # bool is an int to Python, and NaN fails the comparison.
    if (
        not isinstance(value, bool)
        and isinstance(value, int | float)
        and isinstance(value, kinds)
        and tunable.low <= value <= tunable.high
    ):
        return value
    words = "a whole number" if whole else "a number"
    wanted = f"{words} from {tunable.low:g} to {tunable.high:g}"
    mistakes.append(f"{key} is {_shown(value)}; want {wanted}")
    return tunable.default


def _in_camel(mistake: str) -> str:
    for tunable in sorted(tunables(), key=lambda field: -len(field.name)):
        mistake = mistake.replace(tunable.name, camel(tunable.name))
    return mistake


def _shown(value: object) -> str:
    return shorten(repr(value), limit=_MOST_SHOWN)
