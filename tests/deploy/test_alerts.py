"""deploy/alerts/: every rule is about a figure that there is."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from scheduler.metrics import SchedulerMetrics

RULES = Path(__file__).parents[2] / "deploy" / "alerts" / "fracgpu.rules.yaml"
FIGURE = re.compile(r"\bfracgpu_\w+")


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def test_every_rule_asks_for_a_figure_of_the_scheduler_and_says_what_it_means() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry)
    there = {sample.name for family in registry.collect() for sample in family.samples}

    assert len(rules()) >= 3
    for rule in rules():
        asked = set(FIGURE.findall(rule["expr"]))
        assert asked, rule["alert"]
        assert asked <= there, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_there_is_an_alert_for_any_card_promised_beyond_its_memory() -> None:
    (rule,) = [it for it in rules() if it["alert"] == "FracGPUCardOverbooked"]

    assert rule["expr"] == "fracgpu_scheduler_overbooked_cards > 0"
    assert "for" not in rule


def test_promtool_reads_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no program 'promtool' in PATH; it comes with Prometheus")
    command = [promtool, "check", "rules", str(RULES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - promtool

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout
