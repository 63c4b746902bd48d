"""The rules that are shipped, evaluated by promtool over series that a test gives."""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.yaml_files import read_yaml

RULES: Final = Path(__file__).parents[2] / "deploy" / "alerts" / "fracgpu.rules.yaml"
_LIMIT_S: Final = 60


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run promtool, or skip the test."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no program 'promtool' in PATH; it comes with Prometheus")
    return subprocess.run(  # noqa: S603 - promtool
        [found, *words],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env={**os.environ, "GOGC": "off"},  # it ends before there is much to collect
    )


@functools.cache
def _groups() -> tuple[dict[str, Any], ...]:
    return tuple(read_yaml(RULES.read_text())["groups"])


def _only(wanted: Collection[str]) -> dict[str, Any]:
    """Return the shipped rules that make these alerts and series, and those that they read."""
    rules = [rule for group in _groups() for rule in group["rules"]]
    kept = [rule for rule in rules if {rule.get("alert"), rule.get("record")} & set(wanted)]
    while read := [
        rule
        for rule in rules
        if rule not in kept and any(rule.get("record", "ALERTS") in it["expr"] for it in kept)
    ]:
        kept += read
    groups = [
        {**group, "rules": [rule for rule in group["rules"] if rule in kept]} for group in _groups()
    ]
    return {"groups": [group for group in groups if group["rules"]]}


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
    samples = (
        [
            {
                "labels": "{" + ", ".join(f'{key}="{text}"' for key, text in labels.items()) + "}",
                "value": 1,
            }
        ]
        if labels
        else []
    )
    judged = {"expr": expr, "exp_samples": samples}
    _run(folder, _only(alert.split("|")), series, minutes, judged)


def assert_recorded(
    folder: Path,
    record: str,
    series: Mapping[str, float | str],
    wanted: Mapping[str, float],
) -> None:
    """Check which series *record* has, by their labels as PromQL writes them."""
    samples = [{"labels": f"{record}{labels}", "value": value} for labels, value in wanted.items()]
    _run(folder, _only([record]), series, 10, {"expr": record, "exp_samples": samples})


def _run(
    folder: Path,
    rules: Mapping[str, Any],
    series: Mapping[str, float | str],
    minutes: int,
    judged: Mapping[str, Any],
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
    (folder / "rules.yaml").write_text(json.dumps(rules))
    file = folder / "test.yaml"
    file.write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": [test]}))

    done = promtool("test", "rules", str(file))

    assert done.returncode == 0, done.stdout + done.stderr


def _is_notation(value: float | str) -> bool:
    return isinstance(value, str) and ("x" in value or " " in value)
