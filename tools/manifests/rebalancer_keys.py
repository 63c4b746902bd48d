"""The tables of the rebalancer's keys, at the end of docs/rebalancer-settings.md."""

from enum import Enum
from pathlib import Path
from typing import Final

from fracgpu.disruption.aggressiveness import DIAL, LEVELS, policy_at
from fracgpu.disruption.policy import RebalancerPolicy
from rebalancer.config import FORMER, KEYS

SETTINGS_PAGE: Final = Path(__file__).parents[2] / "docs" / "rebalancer-settings.md"
HEADING: Final = "## All settings\n"


def page(source: Path = SETTINGS_PAGE) -> str:
    """Return the page with what follows the heading as it is read."""
    return f"{source.read_text().partition(HEADING)[0]}{HEADING}\n{reference()}"


def reference() -> str:
    """Return the tables of all keys, of the levels and of former keys, for the documentation."""
    default = RebalancerPolicy()
    lines = ["| key | meaning | default | accepted |", "|---|---|---|---|"]
    for key, known in KEYS.items():
        value = getattr(default, known.field)
        shown = f"{value} s" if known.field.endswith("_s") else _as_written(value, known.field)
        lines.append(f"| `{key}` | {known.meaning} | {shown} | {known.accepted} |")
    levels = [policy_at(level) for level in LEVELS]
    lines += [
        "",
        "## Aggressiveness",
        "",
        f"| what a level sets | {' | '.join(str(level) for level in LEVELS)} |",
        "|---|" + "---|" * len(LEVELS),
        *(
            f"| {meaning} | "
            f"{' | '.join(_as_written(getattr(policy, name), name) for policy in levels)} |"
            for name, (meaning, _) in DIAL.items()
        ),
        "",
        "## Keys of earlier versions",
        "",
        "They set nothing any more. A ConfigMap that has them is valid all the same: the log, the "
        "Event\n`SettingsIgnored` on the ConfigMap and `fracgpu doctor` name them.",
        "",
        "| what decides now | keys |",
        "|---|---|",
        *(
            f"| {instead} | {', '.join(f'`{key}`' for key in keys)} |"
            for instead, keys in FORMER.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _as_written(value: object, field: str) -> str:
    """Return a value as in the ConfigMap, but times with their unit; none for what is unset."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _span(value) if field.endswith("_s") else f"{value:g}"
    return f"`{value.value}`" if isinstance(value, Enum) else "none"


def _span(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
