"""Years of metrics in a second: blocks for a real Prometheus, made by its own promtool."""

import math
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One series: its labels, and its value at each (seconds before the end)."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    points: Mapping[float, float]


def steady(
    value: float, *, since_s: float = 4200, until_s: float = 0, every_s: float = 15
) -> dict[float, float]:
    """Return the same value at every scrape from *since_s* to *until_s* before the end."""
    count = int((since_s - until_s) / every_s)
    return {until_s + n * every_s: value for n in range(count + 1)}


def wavering(
    value: float, *, since_s: float = 4200, until_s: float = 0, every_s: float = 15
) -> dict[float, float]:
    """Return nearly the same value at every scrape: a frozen exporter repeats it exactly."""
    flat = steady(value, since_s=since_s, until_s=until_s, every_s=every_s)
    return {ago_s: value + number % 2 for number, (ago_s, value) in enumerate(flat.items())}


def write_blocks(data: Path, series: Iterable[Past], *, end_s: float) -> None:
    """Write the series as TSDB blocks into *data*; *end_s* is Unix time."""
    families: dict[str, list[Past]] = {}
    for member in series:
        families.setdefault(member.name, []).append(member)
    lines = []
    for name, members in families.items():
        lines.append(f"# TYPE {name} gauge")
        for member in members:
            labels = ",".join(f'{key}="{value}"' for key, value in member.labels.items())
            for ago_s, value in sorted(member.points.items(), reverse=True):
                shown = "NaN" if math.isnan(value) else repr(value)
                lines.append(f"{name}{{{labels}}} {shown} {end_s - ago_s:.3f}")
    text = data.with_suffix(".openmetrics")
    data.mkdir(parents=True, exist_ok=True)
    text.write_text("\n".join([*lines, "# EOF", ""]))
    promtool = shutil.which("promtool")
    assert promtool, "promtool comes with prometheus"
    subprocess.run(  # noqa: S603 - our own file, the distribution's tool
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)],
        check=True,
        capture_output=True,
    )
