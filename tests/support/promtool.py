"""The rules that are shipped, evaluated by promtool over series that a test gives."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

RULES: Final = Path(__file__).parents[2] / "deploy" / "alerts" / "fracgpu.rules.yaml"
_LIMIT_S: Final = 60


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run promtool, or skip the test."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no program 'promtool' in PATH; it comes with Prometheus")
    return subprocess.run(  # noqa: S603 - promtool
        [found, *words], capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )


def assert_alert(
    folder: Path,
    alert: str,
    series: Mapping[str, float | str],
    minutes: int,
    labels: Mapping[str, str] | None,
) -> None:
    """Check that *alert* fires with *labels* after *minutes*, or not at all if they are None.

    *alert* may be several names with ``|`` between them.
    A series is given by a number that stays, or in promtool's notation, one value a minute.
    """
    firing = f'ALERTS{{alertname=~"{alert}",alertstate="firing"}}'
    # Only these labels are compared: promtool compares all annotations if any is given.
    expr = f"count by ({', '.join(labels or ['alertname'])}) ({firing})"
    _assert_samples(folder, series, minutes, expr, [(labels, 1)] if labels else [])


def assert_recorded(
    folder: Path,
    record: str,
    series: Mapping[str, float | str],
    wanted: Mapping[str, float],
) -> None:
    """Check which series *record* has, by their labels as PromQL writes them."""
    samples = [{"labels": f"{record}{labels}", "value": value} for labels, value in wanted.items()]
    _run(folder, series, 10, {"expr": record, "exp_samples": samples})


def _assert_samples(
    folder: Path,
    series: Mapping[str, float | str],
    minutes: int,
    expr: str,
    wanted: list[tuple[Mapping[str, str], float]],
) -> None:
    samples = [
        {
            "labels": "{" + ", ".join(f'{key}="{text}"' for key, text in labels.items()) + "}",
            "value": value,
        }
        for labels, value in wanted
    ]
    _run(folder, series, minutes, {"expr": expr, "exp_samples": samples})


def _run(
    folder: Path, series: Mapping[str, float | str], minutes: int, judged: Mapping[str, Any]
) -> None:
    given = [
        {"series": name, "values": value if _is_notation(value) else f"{value} " * (minutes + 1)}
        for name, value in series.items()
    ]
    test = {
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [{"eval_time": f"{minutes}m", **judged}],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))

    done = promtool("test", "rules", str(file))

    assert done.returncode == 0, done.stdout + done.stderr


def _is_notation(value: float | str) -> bool:
    return isinstance(value, str) and ("x" in value or " " in value)
